"""The keeper's events, kept for requests, and its log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any, Final

from testbed.keeper.protocol import Event, EventsPage

__all__ = ["MOST_EVENTS", "EventLog", "log"]

MOST_EVENTS: Final = 100_000
"""Events that are kept: a fiber that flaps for days must not fill the memory. Recorders poll several times a second."""


class EventLog:
    """Events by number, from 0. Thread-safe."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._events: list[Event] = []
        self._forgotten = 0
        self._changed = threading.Condition()

    def add(self, kind: str, t: float | None = None, **content: Any) -> None:
        """Add an event, also to the log; ``t`` is a time of CLOCK_MONOTONIC, by default now."""
        event: Event = {"t": time.monotonic() if t is None else t, "event": kind, **content}
        with self._changed:
            self._events.append(event)
            if len(self._events) > 2 * self._most:  # dropped in blocks, so that each event is moved once at most
                self._forgotten += len(self._events) - self._most
                del self._events[: -self._most]
            self._changed.notify_all()
        # In the log, for people, what is in force on each direction would hide the rest.
        told = {key: it for key, it in content.items() if it not in (None, "") and key != "in_force"}
        log(kind + "".join(f" {key}={_short(value)}" for key, value in told.items()))

    def since(self, number: int, wait_s: float = 0.0) -> EventsPage:
        """Return the events from ``number`` on; wait up to ``wait_s`` seconds (10 at most) for the first one."""
        with self._changed:
            if number >= self._forgotten + len(self._events) and wait_s > 0:
                self._changed.wait(min(wait_s, 10.0))
            return {
                "events": self._events[max(0, number - self._forgotten) :],
                "next": self._forgotten + len(self._events),
            }


def _short(value: object) -> object:
    return f"{value:.6f}" if isinstance(value, float) else value


def log(text: str) -> None:
    """Write a line to keeper.log (stderr); on a full disk the line is lost."""
    with contextlib.suppress(OSError):  # an error here would end the thread that advances the faults
        print(f"{time.strftime('%H:%M:%S')} keeper: {text}", file=sys.stderr, flush=True)
