"""What a report says of captures of packets while it was measured."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.records import capture_record
from testbed.core.records.event import Event
from testbed.core.records.run_info import RunInfo
from testbed.core.report import capture_note
from testbed.core.report.sections import events_section

BEGAN = {"t": 10.0, "event": "capture-began", "capture": "c1", "directions": ["north:west"], "before": False}
COUNTED = {"packets": 304, "super_packets": 3, "dropped": 0}
ENDED = {**BEGAN, "t": 20.0, "event": "capture-ended", "counted": COUNTED}
OTHER = {**BEGAN, "t": 12.0, "capture": "c2", "directions": ["south:west", "south:east"], "before": True}


def info(*events: dict[str, Any]) -> RunInfo:
    return RunInfo.from_dict({"captures": capture_record.of_events(events)})


def test_a_run_without_captures_says_nothing() -> None:
    assert capture_note.sentence(RunInfo.from_dict({})) == ""
    assert capture_record.of_events([{"t": 1.0, "event": "carrier"}, ENDED]) == []


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([BEGAN, ENDED], "north:west behind the fiber for 10 s (304 packets, none dropped by the kernel)"),
        ([BEGAN], "north:west behind the fiber until the end"),
        ([BEGAN, {**ENDED, "counted": {}}], "north:west behind the fiber for 10 s"),
        (
            [BEGAN, OTHER, {**ENDED, "counted": {**COUNTED, "dropped": 7}}],
            "north:west behind the fiber for 10 s (304 packets, 7 more dropped by the kernel);"
            " south:west, south:east before the fiber until the end",
        ),
    ],
)
def test_each_capture_is_told(events: list[dict[str, Any]], told: str) -> None:
    said = capture_note.sentence(info(*events))
    assert said.startswith(f"Packets were captured while this was measured: {told}. Capturing costs CPU")


def test_events_say_it_too() -> None:
    first, last = events_section.lines([Event.from_dict(BEGAN), Event.from_dict(ENDED)], 0.0)
    assert first.text == "packets of north:west, behind the fiber"
    assert last.text.startswith("packets of north:west, behind the fiber: 304 packets")
