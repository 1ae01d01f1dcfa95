"""What the report says of overlapping faults: which values were in force when, and who made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.reports import check, document_of, report_of
from builders.run_factory import edit

from testbed.core.records.event import Event
from testbed.core.report.sections import in_force_section


def event(t: float, kind: str, dark_by: list[str], *values: tuple[str, str, list[str]], masked: Any = ()) -> Event:
    told = {
        "direction": "north:west",
        "dark_by": dark_by,
        "values": [{"key": key, "text": text, "by": by} for key, text, by in values],
        "masked": [{"fault": fault, "key": key} for fault, key in masked],
    }
    return Event(t, kind, {"in_force": {"north:west": told}})


EVENTS = (
    event(11, "fault-began", [], ("loss", "0.0001%", ["f1"])),
    event(12, "fault-phase", [], ("loss", "1%", ["f1"])),
    event(13, "fault-phase", [], ("loss", "5%", ["f1"])),
    event(14, "fault-began", ["f2"], ("loss", "5%", ["f1"])),
    event(15, "fault-phase", [], ("loss", "5%", ["f1"])),
    event(16, "fault-phase", ["f2"], ("loss", "5%", ["f1"])),
    event(17, "fault-ended", ["f2"]),
    event(18, "fault-ended", []),
    event(19, "fault-began", [], ("jitter", "20 us normal", ["f4"]), masked=[("f3", "jitter")]),
)


def test_ramps_and_flaps_share_a_line() -> None:
    ramp, both, flap, jitter = in_force_section.lines(EVENTS, 10.0)
    assert (ramp.began_s, ramp.ended_s, ramp.outages) == (1, 4, 0)
    assert [(str(it), it.by) for it in ramp.values] == [("loss 0.0001% to 5%", ("f1",))]
    assert (both.began_s, both.ended_s, both.outages, both.dark_by) == (4, 7, 2, ("f2",))
    assert [str(it) for it in both.values] == ["loss 5%"]
    assert (flap.began_s, flap.ended_s, flap.outages, flap.values) == (7, 8, 1, ())
    assert (jitter.began_s, jitter.ended_s, jitter.masked) == (9, None, ("jitter of f3",))


@pytest.mark.parametrize(
    "damage", [{}, {"in_force": 3}, {"in_force": {"north:west": None}}, {"in_force": {"x": {"values": [1]}}}]
)
def test_older_and_damaged_events_have_nothing_to_tell(damage: dict[str, Any]) -> None:
    assert in_force_section.lines([Event(1, "fault-began", damage)], 0.0) == ()


def test_the_report_has_it_in_every_form(run: Path) -> None:
    fault = {"fault": "f9", "type": "impair"}
    lines = [{"t": event.t, "event": event.event, **fault, **event.fields} for event in EVENTS]
    report = report_of(edit(run, "events.jsonl", lambda events: events + lines))
    assert len(document_of(report)["in_force"]) == 4
    shown = ["Values in force", "loss 0.0001% to 5%: f1", "dark 2 times: f2", "jitter of f3"]
    check(report, shown=shown)
