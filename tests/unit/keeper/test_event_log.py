"""The keeper's log on a full disk."""

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


def test_a_full_disk_costs_the_lines_of_the_log_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    events, full = EventLog(), FullDisk()
    monkeypatch.setattr(sys, "stderr", full)
    for number in range(3):
        events.add("fault-phase", number=number)
    assert [it["number"] for it in events.since(0)["events"]] == [0, 1, 2]
    assert full.refused >= 3
