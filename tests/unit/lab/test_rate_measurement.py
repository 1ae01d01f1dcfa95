"""Rates from trains and the host's logs, both simulated, and other traffic that crossed meanwhile."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.certification.host_log import ON_TIME_S, Crossing, HostLog
from testbed.core.intervals import Intervals
from testbed.core.physics.impairment import Impairment
from testbed.host.measure.rate_trains import Passage
from testbed.lab import rate_measurement
from testbed.lab.emulator_counters import Counters

MTU, COUNT, TRAINS, TARGET = 1500, 1300, 2, 0.8e9
FRAME = MTU + 14
SENT = COUNT * TRAINS
BITS = 8.0 * (FRAME + 24)
BEFORE = Counters(0, 0, 0.0, segments=7, bytes=7 * FRAME, dropped=0, duplicated=0)
NAME = "north:west"


def plan(duplicate: float = 0.0) -> Any:
    train: Any = SimpleNamespace(mtu=MTU, count=COUNT, frame_bits=BITS)
    return rate_measurement._Plan(NAME, train, TRAINS, 0.0, Impairment(rate_bps=TARGET, duplicate=duplicate))


def measured(
    rate_bps: float, late_s: Any = lambda number: 0.0, period: Any = lambda number: 1, stalls: Intervals | None = None
) -> Any:
    """Return the sample of a train at this rate; the emulator records ``late_s`` and ``period`` of each packet."""
    arrivals = [(number * BITS / rate_bps + late_s(number), BITS, number) for number in range(COUNT)]
    crossings = {
        (NAME, number): Crossing(1.0 + number * BITS / rate_bps, 1.0 + at_s + 10e-6, period(number))
        for at_s, _, number in arrivals
    }
    log = HostLog(stalls or Intervals(), crossings)
    pairs = list(rate_measurement._rates(plan(), [Passage(arrivals=arrivals)], log))
    return rate_measurement._sample(plan(), pairs, 0.0, 1)


def test_a_train_gives_its_rate() -> None:
    assert measured(0.79e9).bps == pytest.approx(0.79e9)


@pytest.mark.parametrize("rate_bps", [0.752e9, 0.8e9, 0.848e9])
def test_a_stall_of_the_emulator_and_the_burst_after_it_change_nothing(rate_bps: float) -> None:
    """5 ms into the train, fiberd stalls for 8 ms, then sends all packets that have become due at once."""

    def late_s(number: int) -> float:
        return max(0.0, 0.013 - number * BITS / rate_bps) if number * BITS / rate_bps > 0.005 else 0.0

    assert measured(rate_bps, late_s).bps == pytest.approx(rate_bps, rel=1e-3)


def test_packets_that_were_all_sent_late_give_no_rate() -> None:
    sample = measured(0.8e9, lambda number: 2 * ON_TIME_S)
    assert sample.bps is None and "0 pairs of packets were on time" in sample.unmeasured


def test_a_queue_that_ran_empty_gives_no_rate_across_the_gap() -> None:
    """The sender lost the CPU every 2.5 ms for 2.5 ms, which halves the rate unless gaps are recorded."""
    sample = measured(0.4e9, period=lambda number: number // 60)
    assert sample.bps is None and "pairs of packets were on time" in sample.unmeasured


def test_a_gap_in_the_middle_leaves_both_halves() -> None:
    def late_s(number: int) -> float:
        return 0.004 if number >= COUNT // 2 else 0.0

    arrivals = [(number * BITS / TARGET + late_s(number), BITS, number) for number in range(COUNT)]
    crossings = {
        (NAME, number): Crossing(1.0 + at_s, 1.0 + at_s, number // (COUNT // 2)) for at_s, _, number in arrivals
    }
    pairs = list(rate_measurement._rates(plan(), [Passage(arrivals=arrivals)], HostLog(Intervals(), crossings)))
    assert rate_measurement._sample(plan(), pairs, 0.0, 1).bps == pytest.approx(TARGET, rel=1e-3)


def test_without_a_record_stalls_of_cores_exclude_packets() -> None:
    passage = Passage(arrivals=[(number * BITS / TARGET, BITS, number) for number in range(COUNT)])
    began_t = passage.epoch_ns * 1e-9 + rate_measurement.monotonic_offset_s()
    everywhere = HostLog(Intervals.union([(began_t - 1.0, began_t + 1.0)]))
    assert not list(rate_measurement._rates(plan(), [passage], everywhere))
    assert list(rate_measurement._rates(plan(), [passage], HostLog()))


def test_without_a_record_no_pair_spans_a_stall() -> None:
    """A token bucket of the kernel does not make up for what did not leave during a stall of 5 ms."""
    late_s = [0.005 if number >= COUNT // 2 else 0.0 for number in range(COUNT)]
    passage = Passage(arrivals=[(number * BITS / TARGET + late_s[number], BITS, number) for number in range(COUNT)])
    middle_t = passage.epoch_ns * 1e-9 + rate_measurement.monotonic_offset_s() + COUNT // 2 * BITS / TARGET
    log = HostLog(Intervals.union([(middle_t - 0.001, middle_t + 0.005)]))
    pairs = list(rate_measurement._rates(plan(), [passage], log))
    assert rate_measurement._sample(plan(), pairs, 0.0, 1).bps == pytest.approx(TARGET, rel=1e-3)


def passed(**changes: Any) -> Counters:
    """Return the counters after the trains, without other traffic."""
    return dataclasses.replace(BEFORE, emptied=TRAINS, segments=7 + SENT, bytes=(7 + SENT) * FRAME, **changes)


def test_bytes_of_others_are_those_beyond_the_trains() -> None:
    assert rate_measurement._beside(plan(), BEFORE, passed()) == 0.0
    beside = dataclasses.replace(passed(), bytes=(7 + SENT) * FRAME + 40 * 66)
    assert rate_measurement._beside(plan(), BEFORE, beside) == pytest.approx(40 * 66 / (SENT * FRAME))


def test_lost_and_duplicated_packets_of_the_trains_are_not_taken_for_others() -> None:
    lost = dataclasses.replace(passed(), bytes=(7 + SENT - 30) * FRAME, dropped=30)
    assert rate_measurement._beside(plan(), BEFORE, lost) == 0.0
    twice = dataclasses.replace(passed(), bytes=(7 + SENT + 50) * FRAME, duplicated=50)
    assert rate_measurement._beside(plan(), BEFORE, twice) == 0.0
    uncounted = dataclasses.replace(twice, duplicated=None)
    before = dataclasses.replace(BEFORE, duplicated=None)
    assert rate_measurement._beside(plan(50 / SENT), before, uncounted) == pytest.approx(0)
