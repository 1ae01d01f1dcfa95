"""Packets are delayed by the host if its logs prove it; their own delay does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.certification.host_log import HELD_UP_S, ON_TIME_S, STALL_PERIOD_S, Crossing, HostLog, Leg
from testbed.core.intervals import Intervals

NORTH = Leg("north:west", 200e-6)
SENT = (10.0, 10.0 + 30e-6)


def unrecorded(begin_t: float, length_s: float) -> HostLog:
    """Return a log without a record of packets, with a stall that begins at a time and has a length."""
    return HostLog(stalls=HostLog.of([(0, begin_t, length_s)], None, 1.0, 2).stalls)


def log(*stall: float, due_t: float = 10.00022, sent_t: float = 10.00023) -> HostLog:
    """Return the log of packet 7, with a stall or none."""
    crossings = {("north:west", 7): Crossing(due_t, sent_t, 1)}
    return replace(unrecorded(*stall) if stall else HostLog(), crossings=crossings)


@table(
    "kept, sent, delayed",
    {
        "nothing held it up": (log(), SENT, False),
        "not recorded": (HostLog(crossings={}), SENT, True),
        "sent late": (log(sent_t=10.00022 + 2 * ON_TIME_S), SENT, True),
        "a stall while it was sent": (log(9.999, 0.0011), SENT, True),
        "a stall when it was due": (log(10.00021, 0.0003), SENT, True),
        "a stall at another time": (log(10.0 + STALL_PERIOD_S + 0.001, 0.01), SENT, False),
        "a long call held the sender up": (log(), (10.0, 10.0 + 2 * HELD_UP_S), True),
        "without a record, a stall when it was to arrive": (
            unrecorded(10.000235, 0.001),
            SENT,
            True,
        ),
        "without a record, a stall at another time": (
            unrecorded(10.0015, 0.001),
            SENT,
            False,
        ),
    },
)
def test_host_log_that_delays_a_packet(kept: HostLog, sent: tuple[float, float], delayed: bool) -> None:
    assert kept.delays(*sent, 7, [NORTH]) is delayed


def test_host_log_of_an_echo_that_must_be_on_time_in_both_directions() -> None:
    legs = [NORTH, Leg("north:east", 200e-6)]
    there = log().crossings or {}
    assert log().delays(*SENT, 7, legs)
    both = HostLog(crossings={**there, ("north:east", 7): Crossing(10.00045, 10.00046, 1)})
    assert not both.delays(*SENT, 7, legs)


@given(later_s=st.floats(0.0, 1.0))
def test_a_fiber_that_delays_packets_cannot_hide_behind_the_host(later_s: float) -> None:
    """The emulator records when the packet was due by its own values: a wrong delay is on time."""
    assert not log(due_t=10.00022 + later_s, sent_t=10.00023 + later_s).delays(*SENT, 7, [NORTH])


def test_the_share_is_the_mean_of_the_cores() -> None:
    cores = HostLog.of([(0, 1.0, 0.2), (1, 1.1, 0.2), (1, 2.0, 0.1)], None, 5.0, 2)
    assert (cores.stall_count, cores.longest_stall_s) == (3, 0.2)
    assert cores.stalled_share == pytest.approx(0.5 / 10)
    assert cores.stalls.length_s(0.0, 5.0) == pytest.approx(0.3 + 0.1 + 2 * STALL_PERIOD_S)


def test_nothing_is_known_of_stalls_that_are_not_logged() -> None:
    assert HostLog.of(None, None, 1.0, 2).stall_count is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), max_size=20), st.floats(0, 100), st.floats(0, 20))
def test_intervals_agree_with_counting_points(
    spans: list[tuple[float, float]], begin_t: float, length_s: float
) -> None:
    union = Intervals.union((start, start + length) for start, length in spans)
    end_t = begin_t + length_s
    points = [begin_t + length_s * (number + 0.5) / 400 for number in range(400)]
    inside = sum(any(start <= point <= start + length for start, length in spans) for point in points)
    assert union.length_s(begin_t, end_t) == pytest.approx(
        length_s * inside / 400, abs=1e-9 + length_s * (len(spans) + 1) / 200
    )
    assert union.overlaps(begin_t, end_t) or inside == 0
    assert sum(end - start for start, end in union.within(begin_t, end_t)) == pytest.approx(
        union.length_s(begin_t, end_t), abs=1e-6
    )
