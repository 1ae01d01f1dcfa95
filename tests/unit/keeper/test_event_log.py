"""The keeper's log of events: its numbers, what it forgets, and what a full disk costs."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from testbed.keeper.event_log import EventLog


class FullDisk(io.StringIO):
    refused = 0

    def write(self, text: str) -> int:
        self.refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def numbers(events: EventLog, since: int) -> list[int]:
    return [event["number"] for event in events.since(since)["events"]]


def test_a_full_disk_costs_the_lines_of_the_log_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    events, full = EventLog(), FullDisk()
    monkeypatch.setattr(sys, "stderr", full)
    for number in range(3):
        events.add("fault-phase", number=number)
    assert numbers(events, 0) == [0, 1, 2]
    assert full.refused >= 3


def test_events_are_numbered_and_the_oldest_are_forgotten() -> None:
    events = EventLog(most=10)
    for number in range(35):
        events.add("note", number=number)
    kept = numbers(events, 0)
    assert events.since(0)["next"] == 35
    assert kept == list(range(kept[0], 35))
    assert 10 <= len(kept) <= 20
    assert numbers(events, 34) == [34]
    assert numbers(events, 35) == []
