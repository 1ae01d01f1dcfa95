"""Rates of packet trains drawn here: jitter at the ends, packets delayed by the scheduler, trains that were starved."""

from __future__ import annotations

import random
import statistics

import pytest

from testbed.core.certification.dispersion import FEWEST_PAIRS, TrainArrival, pair_rates_bps, rate_bps

FRAME_BITS = 1538 * 8
RATE = 0.8e9


def train(
    *,
    rate: float = RATE,
    packets: int = 520,
    jitter_s: float = 0.0,
    in_order: bool = True,
    together: int = 1,
    seed: int = 1,
) -> list[TrainArrival]:
    """Arrivals of a train that fills the queue at once, packet by packet: ``together`` share a receive stamp."""
    rng = random.Random(seed)
    left, last, arrivals = 0.0, 0.0, []
    for _ in range(0, packets, together):
        left += together * FRAME_BITS / rate
        out = left + 200e-6 + (jitter_s * max(-4.0, min(4.0, rng.gauss(0, 1))) if jitter_s else 0.0)
        if in_order:
            out = last = max(out, last)
        arrivals.append(TrainArrival(out, float(together * FRAME_BITS)))
    return arrivals


def measured(
    arrivals: list[TrainArrival], jitter_s: float = 0.0, last_bits: float | None = None, target: float = RATE
) -> float:
    rate = rate_bps(pair_rates_bps(arrivals, target, 8 * jitter_s, last_bits))
    assert rate is not None
    return rate


@pytest.mark.parametrize("rate", [1e6, 0.4e9, 0.8e9, 100e9])
@pytest.mark.parametrize("together", [1, 8, 40])
def test_a_train_without_jitter_gives_its_rate(rate: float, together: int) -> None:
    assert measured(train(rate=rate, together=together), target=rate) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("jitter_s", [10e-6, 40e-6, 100e-6])
def test_jitter_does_not_bias_the_rate(jitter_s: float, in_order: bool) -> None:
    found = [measured(train(jitter_s=jitter_s, in_order=in_order, seed=seed), jitter_s) for seed in range(40)]
    spread = 4.9 * jitter_s / (520 * FRAME_BITS / RATE)
    assert statistics.fmean(found) == pytest.approx(RATE, rel=0.004)
    assert all(abs(each - RATE) < max(0.01, spread) * RATE for each in found)


def test_the_span_of_a_short_train_is_biased_by_the_jitter_of_its_ends() -> None:
    """What was measured before: bytes over the time from the first packet to the last."""
    found, before = [], []
    for seed in range(40):
        arrivals = train(packets=160, jitter_s=40e-6, seed=seed)
        found.append(measured(arrivals, 40e-6))
        before.append(159 * FRAME_BITS / (arrivals[-1][0] - arrivals[0][0]))
    assert statistics.fmean(before) < 0.985 * RATE
    assert statistics.fmean(found) == pytest.approx(RATE, rel=0.01)


@pytest.mark.parametrize("share", [0.94, 1.06])
def test_a_wrong_rate_is_outside_five_percent_whatever_the_jitter(share: float) -> None:
    for seed in range(20):
        assert abs(measured(train(rate=share * RATE, seed=seed)) - RATE) > 0.05 * RATE


def held(
    arrivals: list[TrainArrival], first: int, late_s: float, spacing_s: float = 0.0, behind: bool = True
) -> list[TrainArrival]:
    """Delay arrivals from ``first`` on to one that is late; ``behind``: those that arrive later by themselves too."""
    late_t = arrivals[first].at_s + late_s
    return [
        *arrivals[:first],
        *(
            TrainArrival(max(t, late_t + number * spacing_s), bits, behind and t >= late_t)
            for number, (t, bits, *_) in enumerate(arrivals[first:], first)
        ),
    ]


@pytest.mark.parametrize("first", [0, 100, 300, 519])
def test_rate_where_the_scheduler_delays_a_packet(first: int) -> None:
    assert measured(held(train(), first, 1.5e-3)) == pytest.approx(RATE, rel=0.01)


@pytest.mark.parametrize("from_share", [0.82, 0.9, 0.97])
def test_rate_where_a_tail_is_held_up_for_long(from_share: float) -> None:
    """The emulator lost the CPU for 50 ms and sent the rest at once; of more than a fifth its lateness tells."""
    arrivals = train()
    late = held(arrivals, round(from_share * len(arrivals)), 50e-3, 1e-6, behind=False)
    assert measured(late) == pytest.approx(RATE, rel=0.01)


def test_only_what_was_queued_at_the_end_is_used_if_no_more_is_known() -> None:
    """The head of the train trickled in at half the rate; its last quarter was queued when the sender was done."""
    slow, fast = train(rate=RATE / 2, packets=390), train(packets=130)
    arrivals = slow + [TrainArrival(arrival.at_s + slow[-1].at_s, arrival.bits) for arrival in fast]
    assert measured(arrivals) < 0.7 * RATE
    assert measured(arrivals, last_bits=130 * FRAME_BITS) == pytest.approx(RATE, rel=1e-3)


def test_too_little_arrives_to_tell() -> None:
    assert pair_rates_bps([], RATE) == ()
    assert pair_rates_bps(train(packets=2), RATE) == ()
    assert pair_rates_bps([TrainArrival(1.0, FRAME_BITS)] * 50, RATE) == ()
    assert rate_bps(()) is None
    assert rate_bps([RATE] * (FEWEST_PAIRS - 1)) is None
