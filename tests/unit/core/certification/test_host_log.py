"""Packets are delayed by the host if its logs prove it; their own delay does not count."""

from __future__ import annotations

import dataclasses

import pytest
from builders.inputs import by_input
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.certification.host_log import HELD_UP_S, ON_TIME_S, STALL_PERIOD_S, Crossing, HostLog, Leg
from testbed.core.intervals import Intervals

NORTH = Leg("north:west", 200e-6)
SENT = (10.0, 10.0 + 30e-6)
CLEAN = HostLog(crossings={("north:west", 7): Crossing(10.00022, 10.00023, 1)})


def stalled(log: HostLog, began_t: float, length_s: float) -> HostLog:
    return dataclasses.replace(log, stalls=HostLog.of([(0, began_t, length_s)], None, 1.0, 2).stalls)


def test_a_packet_that_nothing_held_up_is_kept() -> None:
    assert not CLEAN.delays(*SENT, 7, [NORTH])


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(HostLog(crossings={}), id="not recorded"),
        pytest.param(
            HostLog(crossings={("north:west", 7): Crossing(10.00022, 10.00022 + 2 * ON_TIME_S, 1)}), id="sent late"
        ),
        pytest.param(stalled(CLEAN, 9.999, 0.0011), id="stall while it was sent"),
        pytest.param(stalled(CLEAN, 10.00021, 0.0003), id="stall when it was due"),
    ],
)
def test_a_packet_that_the_host_delayed_is_not(log: HostLog) -> None:
    assert log.delays(*SENT, 7, [NORTH])


def test_a_long_call_held_the_sender_up() -> None:
    assert CLEAN.delays(10.0, 10.0 + 2 * HELD_UP_S, 7, [NORTH])


def test_a_stall_at_another_time_excludes_nothing() -> None:
    assert not stalled(CLEAN, 10.0 + STALL_PERIOD_S + 0.001, 0.01).delays(*SENT, 7, [NORTH])


def test_an_echo_must_be_on_time_in_both_directions() -> None:
    back = Leg("north:east", 200e-6)
    assert CLEAN.delays(*SENT, 7, [NORTH, back])
    crossings = dict(CLEAN.crossings or {}) | {("north:east", 7): Crossing(10.00045, 10.00046, 1)}
    assert not HostLog(crossings=crossings).delays(*SENT, 7, [NORTH, back])


@by_input("stall_t, excluded", {10.000235: True, 10.0015: False})
def test_without_a_record_a_stall_excludes_what_was_to_arrive_then(stall_t: float, excluded: bool) -> None:
    assert stalled(HostLog(), stall_t, 0.001).delays(*SENT, 7, [NORTH]) is excluded


@given(later_s=st.floats(0.0, 1.0))
def test_a_fiber_that_delays_packets_cannot_hide_behind_the_host(later_s: float) -> None:
    """The emulator records when the packet was due by its own values: a wrong delay is on time."""
    wrong = HostLog(crossings={("north:west", 7): Crossing(10.00022 + later_s, 10.00023 + later_s, 1)})
    assert not wrong.delays(*SENT, 7, [NORTH])


def test_the_share_is_the_mean_of_the_cores() -> None:
    log = HostLog.of([(0, 1.0, 0.2), (1, 1.1, 0.2), (1, 2.0, 0.1)], None, 5.0, 2)
    assert (log.stall_count, log.longest_stall_s) == (3, 0.2)
    assert log.stalled_share == pytest.approx(0.5 / 10)
    assert log.stalls.length_s(0.0, 5.0) == pytest.approx(0.3 + 0.1 + 2 * STALL_PERIOD_S)


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
