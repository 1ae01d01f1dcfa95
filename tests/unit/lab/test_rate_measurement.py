"""Rates from trains and the host's logs, both simulated, and other traffic that crossed meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tables import table

from testbed.core.certification.host_log import ON_TIME_S, Crossing, HostLog
from testbed.core.intervals import Intervals
from testbed.core.physics.impairment import Impairment
from testbed.host.measure.rate_trains import Passage
from testbed.lab import rate_measurement
from testbed.lab.packet_log import Counters
from testbed.lab.rate_measurement import RateSample

MTU, COUNT, TRAINS, TARGET = 1500, 1300, 2, 0.8e9
FRAME = MTU + 14
SENT = COUNT * TRAINS
BITS = 8.0 * (FRAME + 24)
BEFORE = Counters(0, 0, 0.0, segments=7, bytes=7 * FRAME, dropped=0, duplicated=0)
NAME = "north:west"


def plan(duplicate: float = 0.0) -> Any:
    train: Any = SimpleNamespace(mtu=MTU, count=COUNT, frame_bits=BITS)
    return rate_measurement.TrainPlan(NAME, train, TRAINS, 0.0, Impairment(rate_bps=TARGET, duplicate=duplicate))


Late = Callable[[int], float]


def passage(rate_bps: float = TARGET, late_s: Late = lambda number: 0.0) -> Passage:
    return Passage(arrivals=[(number * BITS / rate_bps + late_s(number), BITS, number) for number in range(COUNT)])


def sample(train: Passage, log: HostLog) -> RateSample:
    return rate_measurement.sample_of(plan(), list(rate_measurement.rates_on_time(plan(), [train], log)), 0.0, 1)


def measured(
    rate_bps: float, late_s: Late = lambda number: 0.0, period: Callable[[int], int] = lambda number: 1
) -> RateSample:
    """Return the sample of a train at this rate; the emulator records ``late_s`` and ``period`` of each packet."""
    train = passage(rate_bps, late_s)
    crossings = {
        (NAME, number): Crossing(1.0 + number * BITS / rate_bps, 1.0 + at_s + 10e-6, period(number))
        for at_s, _, number in train.arrivals
    }
    return sample(train, HostLog(Intervals(), crossings))


def test_a_train_gives_its_rate() -> None:
    assert measured(0.79e9).bps == pytest.approx(0.79e9)


@pytest.mark.parametrize("rate_bps", [0.752e9, 0.8e9, 0.848e9])
def test_a_stall_of_the_emulator_and_the_burst_after_it_change_nothing(rate_bps: float) -> None:
    """5 ms into the train, fiberd stalls for 8 ms, then sends all packets that have become due at once."""

    def late_s(number: int) -> float:
        return max(0.0, 0.013 - number * BITS / rate_bps) if number * BITS / rate_bps > 0.005 else 0.0

    assert measured(rate_bps, late_s).bps == pytest.approx(rate_bps, rel=1e-3)


@table(
    "measure, why",
    {
        "all packets were sent late": (
            lambda: measured(TARGET, lambda number: 2 * ON_TIME_S),
            "0 pairs of packets were on time",
        ),
        # The sender lost the CPU every 2.5 ms for 2.5 ms, which halves the rate unless gaps are recorded.
        "the queue ran empty": (
            lambda: measured(0.4e9, period=lambda number: number // 60),
            "pairs of packets were on time",
        ),
    },
)
def test_sample_without_a_rate(measure: Callable[[], RateSample], why: str) -> None:
    found = measure()
    assert found.bps is None and why in found.unmeasured


def second_half_late(by_s: float) -> Late:
    return lambda number: by_s if number >= COUNT // 2 else 0.0


def test_gap_in_the_middle_leaves_both_halves() -> None:
    train = passage(late_s=second_half_late(0.004))
    crossings = {
        (NAME, number): Crossing(1.0 + at_s, 1.0 + at_s, number // (COUNT // 2)) for at_s, _, number in train.arrivals
    }
    assert sample(train, HostLog(Intervals(), crossings)).bps == pytest.approx(TARGET, rel=1e-3)


def stalled(train: Passage, begin_s: float, end_s: float) -> HostLog:
    """Return the log of a host whose cores stalled between these times after the train began."""
    began_t = train.epoch_ns * 1e-9 + rate_measurement.monotonic_offset_s()
    return HostLog(Intervals.union([(began_t + begin_s, began_t + end_s)]))


def test_without_a_record_stalls_of_cores_exclude_packets() -> None:
    train = passage()
    assert not list(rate_measurement.rates_on_time(plan(), [train], stalled(train, -1.0, 1.0)))
    assert list(rate_measurement.rates_on_time(plan(), [train], HostLog()))


def test_without_a_record_no_pair_spans_a_stall() -> None:
    """A token bucket of the kernel does not make up for what did not leave during a stall of 5 ms."""
    train, middle_s = passage(late_s=second_half_late(0.005)), COUNT // 2 * BITS / TARGET
    log = stalled(train, middle_s - 0.001, middle_s + 0.005)
    assert sample(train, log).bps == pytest.approx(TARGET, rel=1e-3)


def beside(extra_bytes: int, duplicate: float = 0.0, before: Counters = BEFORE, **changes: Any) -> float:
    """Return the traffic beside the trains, with ``extra_bytes`` besides theirs."""
    counted = (7 + SENT) * FRAME + extra_bytes
    after = dataclasses.replace(before, emptied=TRAINS, segments=7 + SENT, bytes=counted, **changes)
    return rate_measurement.bytes_beside(plan(duplicate), before, after)


def test_bytes_beside_are_those_beyond_the_trains() -> None:
    assert beside(0) == 0.0
    assert beside(40 * 66) == pytest.approx(40 * 66 / (SENT * FRAME))


def test_bytes_beside_are_not_lost_and_duplicated_packets_of_the_trains() -> None:
    assert beside(-30 * FRAME, dropped=30) == 0.0
    assert beside(50 * FRAME, duplicated=50) == 0.0
    uncounted = dataclasses.replace(BEFORE, duplicated=None)
    assert beside(50 * FRAME, 50 / SENT, uncounted) == pytest.approx(0)
