"""Captures of packets in progress: they cost CPU, so the lab's events and the runs meanwhile say so."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence

from testbed.keeper.event_log import EventLog
from testbed.keeper.protocol import CaptureState
from testbed.keeper.service import Caller

__all__ = ["Captures"]


class Captures:
    """One capture per connection, which ends with it. Thread-safe."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._running: dict[Caller, CaptureState] = {}

    @property
    def running(self) -> list[CaptureState]:
        """The captures in progress, the oldest first."""
        with self._lock:
            return list(self._running.values())

    def begin(self, caller: Caller, directions: Sequence[str], before: bool) -> str:
        """Note a capture; return its id."""
        with self._lock:
            state: CaptureState = {
                "capture": f"c{next(self._numbers)}",
                "directions": list(directions),
                "before": before,
                "began_t": time.monotonic(),
            }
            self._running[caller] = state
        self._events.add(
            "capture-began", state["began_t"], capture=state["capture"], directions=state["directions"], before=before
        )
        return state["capture"]

    def end(self, caller: Caller, counted: Mapping[str, int] | None = None) -> None:
        """Note the end of a connection's capture, if it has one; without ``counted`` its process has ended early."""
        with self._lock:
            state = self._running.pop(caller, None)
        if state is not None:
            number, directions, before = state["capture"], state["directions"], state["before"]
            self._events.add(
                "capture-ended", None, capture=number, directions=directions, before=before, counted=dict(counted or {})
            )
