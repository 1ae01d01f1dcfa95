"""Silences in counters against the times of the bytes themselves, which the testbed does not see."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.traffic_gaps import TrafficTrack, evaluate
from testbed.core.records.samples import FiberSample, NodeSample

SIZE = 10_000
"""Bytes of a packet: enough that each is more than nothing."""


def fiber(t: float, moved: int, direction: str = "north:west") -> FiberSample:
    return FiberSample(t, direction, 0, 0, moved, {}, None, (), ())


def track(packets: list[float], readings: list[float], windows=(), **more) -> TrafficTrack | None:
    samples = [fiber(t, SIZE * sum(it <= t for it in packets)) for t in readings]
    found = evaluate(samples, (), windows, None, None, **more).of("fiber")
    return found[0] if found else None


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.0, 40.0), min_size=2, max_size=25, unique=True),
    st.floats(0.0, 0.9),
    st.lists(st.floats(-0.05, 0.05), min_size=42, max_size=42),
)
def test_each_silence_lies_within_its_bounds_and_every_long_one_is_found(packets, phase, jitter):
    packets = sorted(packets)
    readings = [phase + second + late for second, late in enumerate(jitter)]
    readings = [it for it in readings if it >= packets[0] - 2]
    found = track(packets, readings)
    assume(found is not None and readings[0] < packets[0])
    assert found is not None
    gaps = list(itertools.pairwise([it for it in packets if it <= readings[-1]]))
    closed = [it for it in found.silences if it.ended_t is not None]
    for silence in closed:
        last = max(it for it in packets if it <= silence.began_t)
        first = min(it for it in packets if it > silence.ended_t)
        assert (last, first) in gaps, "nothing moved in it"
        assert silence.least_s <= first - last <= silence.most_s
        assert silence.back_by_t >= first
    longest_interval = max(after - before for before, after in itertools.pairwise(readings))
    long = [(last, first) for last, first in gaps if first - last > 2 * longest_interval]
    assert len(closed) >= len(long), "a silence of two intervals contains a whole one"
    for last, first in long:
        assert any(last <= it.began_t and it.ended_t < first for it in closed)


def test_traffic_is_back_at_most_so_long_after_the_fault():
    packets = [0.1 * it for it in range(100)] + [18.55 + 0.1 * it for it in range(100)]
    readings = [0.5 + second for second in range(28)]
    cut = FaultWindow("f1", "cut", "north", ("north",), 9.95, 17.95)
    found = track(packets, readings, [cut])
    assert found is not None
    (back,) = found.back
    assert (back.silence.least_s, back.silence.most_s) == (8.0, 10.0)
    assert back.back_within_s == pytest.approx(19.5 - 9.95), "the first reading with traffic again"
    assert found.longest_calm is None


def test_an_ordinary_silence_is_no_fault_s():
    packets = [0.1 * it for it in range(50)] + [15.0 + 0.1 * it for it in range(200)]
    harmless = FaultWindow("f1", "cut", "south", ("south",), 25.0, 26.0)
    found = track(packets, [0.5 + second for second in range(33)], [harmless])
    assert found is not None and found.longest_calm is not None
    assert (found.back, found.longest_calm.least_s) == ((), 9.0)


def test_what_follows_the_last_traffic_counts_only_of_a_program_that_did_not_end_well():
    packets = [0.1 * it for it in range(100)]
    readings = [0.5 + second for second in range(30)]
    cut = FaultWindow("f1", "cut", "north", ("north",), 9.95, None)
    done, dead = track(packets, readings, [cut], done=True), track(packets, readings, [cut])
    assert done is not None and dead is not None
    assert (done.silences, done.back) == ((), ())
    (back,) = dead.back
    assert (back.back_within_s, back.silence.ended_t, back.silence.least_s) == (None, None, 19.0)


def test_probes_and_a_counter_that_begins_again_are_no_traffic_and_no_silence():
    """TCP's probes go on while nothing comes through; a restarted emulator counts from zero."""
    moved = [1_000_000 * it for it in range(10)] + [9_000_000 + 60 * it for it in range(8)]
    moved += [500_000 * it for it in range(1, 10)]
    found = evaluate([fiber(float(t), count) for t, count in enumerate(moved)], (), (), None, None).of("fiber")
    (silence,) = found[0].silences
    assert (silence.began_t, silence.ended_t) == (9.0, 17.0)
    assert found[0].byte_count == 9_000_000 + 60 * 7 + 4_500_000


def test_fibers_add_up_by_the_site_that_they_end_at_and_nodes_are_told_apart():
    """North falls silent as south takes over: no silence toward west."""
    fibers = [
        sample
        for t in range(20)
        for sample in (
            fiber(float(t), 1_000_000 * min(t, 10)),
            fiber(float(t), 1_000_000 * max(0, t - 10), "south:west"),
            fiber(float(t), 0, "south:east"),
        )
    ]
    nodes = [NodeSample(float(t), "west-0", 1_000_000 * t, 1_000_000 * min(t, 5)) for t in range(20)]
    found = evaluate(fibers, nodes, (), None, None)
    assert [(it.name, len(it.silences)) for it in found.tracks] == [
        ("toward west", 0),
        ("north:west", 1),
        ("south:west", 0),
        ("west-0, sent", 0),
        ("west-0, received", 1),
    ]
    assert found.idle == ("toward east", "south:east")
