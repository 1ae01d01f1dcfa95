"""Reading tolerates traces of a crash or of a later version, and is strict about the fields that results depend on."""

from __future__ import annotations

from testbed.core.fields import integer, number
from testbed.core.records.event import read_events
from testbed.core.records.rank_log import StepRecord, read_rank
from testbed.core.records.samples import read_metrics

STEP = {"kind": "step", "step": 1, "t_begin": 1.0, "t_ready": 1.5, "t_sync": 1.75, "t_end": 2.0, "tokens": 8}


def test_compute_and_exposed_are_defined_by_the_four_times():
    record = StepRecord.from_dict(STEP)
    assert (record.compute_s, record.exposed_s) == (0.75, 0.25)


def test_unknown_keys_are_ignored_and_bad_lines_counted():
    lines = [
        {**STEP, "colour": "blue"},
        {**STEP, "t_end": "late"},  # no number
        {**STEP, "t_ready": 9.0},  # ready after it was over
        {"kind": "novel"},
        ["no", "object"],
    ]
    log, malformed = read_rank(0, lines)
    assert (len(log.steps), malformed) == (1, 4)


def test_what_is_no_number_is_unknown():
    values: tuple[object, ...] = (None, "1", True, float("nan"), float("inf"), 10**400, [])
    for value in values:
        assert number({"x": value}, "x") is None
    assert integer({"x": 3.0}, "x") == 3


def test_events_come_in_the_order_of_time():
    events, malformed = read_events([{"t": 2, "event": "b"}, {"t": 1, "event": "a"}, {"event": "no time"}])
    assert [event.event for event in events] == ["a", "b"]
    assert malformed == 1


def test_a_histogram_with_a_hole_is_malformed_rather_than_shifted():
    line = {
        "t": 1,
        "kind": "fiber",
        "direction": "north:west",
        "bytes": 5,
        "lateness": {"bounds_s": [1, None], "counts": []},
    }
    metrics, malformed = read_metrics([line])
    assert (metrics.fibers, malformed) == ((), 1)
