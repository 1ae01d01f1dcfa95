"""Silences in counters against the times of the bytes themselves, which the testbed does not see."""

from __future__ import annotations

import itertools

import pytest
from builders.wire_records import sample
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire.traffic_gaps import TrafficTrack, evaluate
from testbed.core.records.samples import NodeSample

SIZE = 10_000
"""Bytes of a packet: enough that each is more than nothing."""


def track(packets: list[float], readings: list[float], windows=(), **options) -> TrafficTrack | None:
    samples = [sample(t, SIZE * sum(packet <= t for packet in packets)) for t in readings]
    tracks = evaluate(samples, (), windows, None, None, **options).of("fiber")
    return tracks[0] if tracks else None


def each_tenth(begin: float, count: int) -> list[float]:
    return [begin + 0.1 * index for index in range(count)]


def readings(count: int) -> list[float]:
    return [0.5 + second for second in range(count)]


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.0, 40.0), min_size=2, max_size=25, unique=True),
    st.floats(0.0, 0.9),
    st.lists(st.floats(-0.05, 0.05), min_size=42, max_size=42),
)
def test_evaluate_finds_each_silence_within_its_bounds_and_every_long_one(packets, phase, jitter):
    packets = sorted(packets)
    times = [phase + second + late for second, late in enumerate(jitter)]
    times = [t for t in times if t >= packets[0] - 2]
    found = track(packets, times)
    assume(found is not None and times[0] < packets[0])
    gaps = list(itertools.pairwise([t for t in packets if t <= times[-1]]))
    closed = [it for it in found.silences if it.ended_t is not None]
    for silence in closed:
        last = max(it for it in packets if it <= silence.began_t)
        first = min(it for it in packets if it > silence.ended_t)
        assert (last, first) in gaps, "nothing moved in it"
        assert silence.least_s <= first - last <= silence.most_s
        assert silence.back_by_t >= first
    longest_interval = max(after - before for before, after in itertools.pairwise(times))
    long = [(last, first) for last, first in gaps if first - last > 2 * longest_interval]
    assert len(closed) >= len(long), "a silence of two intervals contains a whole one"
    for last, first in long:
        assert any(last <= it.began_t and it.ended_t < first for it in closed)


def test_evaluate_traffic_is_back_at_most_so_long_after_the_fault():
    cut = FaultWindow("f1", "cut", "north", ("north",), 9.95, 17.95)
    found = track(each_tenth(0, 100) + each_tenth(18.55, 100), readings(28), [cut])
    (back,) = found.back
    assert (back.silence.least_s, back.silence.most_s) == (8.0, 10.0)
    assert back.back_within_s == pytest.approx(19.5 - 9.95), "the first reading with traffic again"
    assert found.longest_calm is None


def test_evaluate_does_not_put_an_ordinary_silence_down_to_a_fault():
    harmless = FaultWindow("f1", "cut", "south", ("south",), 25.0, 26.0)
    found = track(each_tenth(0, 50) + each_tenth(15.0, 200), readings(33), [harmless])
    assert (found.back, found.longest_calm.least_s) == ((), 9.0)


def test_evaluate_counts_what_follows_the_last_traffic_only_of_a_program_that_did_not_end_well():
    cut = FaultWindow("f1", "cut", "north", ("north",), 9.95, None)
    done, dead = (track(each_tenth(0, 100), readings(30), [cut], done=well) for well in (True, False))
    assert (done.silences, done.back) == ((), ())
    (back,) = dead.back
    assert (back.back_within_s, back.silence.ended_t, back.silence.least_s) == (None, None, 19.0)


def test_evaluate_takes_probes_and_a_counter_that_begins_again_for_no_traffic_and_no_silence():
    """TCP's probes go on while nothing comes through; a restarted emulator counts from zero."""
    moved = [1_000_000 * index for index in range(10)] + [9_000_000 + 60 * index for index in range(8)]
    moved += [500_000 * index for index in range(1, 10)]
    (found,) = evaluate([sample(float(t), count) for t, count in enumerate(moved)], (), (), None, None).of("fiber")
    (silence,) = found.silences
    assert (silence.began_t, silence.ended_t) == (9.0, 17.0)
    assert found.byte_count == 9_000_000 + 60 * 7 + 4_500_000


def test_evaluate_adds_fibers_up_by_the_site_that_they_end_at_and_keeps_nodes_apart():
    """North falls silent as south takes over: no silence toward west."""
    counts = {"north:west": lambda t: min(t, 10), "south:west": lambda t: max(0, t - 10), "south:east": lambda t: 0}
    fibers = [sample(float(t), 1_000_000 * count(t), name) for t in range(20) for name, count in counts.items()]
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
