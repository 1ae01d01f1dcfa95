"""What a keeper tells of: its events, kept for whoever asks, and its log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any, Final

from testbed.keeper.protocol import Event, EventsPage

__all__ = ["MOST_EVENTS", "EventLog", "log"]

MOST_EVENTS: Final = 100_000
"""Events that are kept: a fiber that flaps for days must not fill the memory. Recorders ask several times a second."""


class EventLog:
    """Events by number, from 0. Safe for several threads."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._events: list[Event] = []
        self._forgotten = 0
        self._changed = threading.Condition()

    def add(self, kind: str, t: float | None = None, **content: Any) -> None:
        """``t`` is a time of CLOCK_MONOTONIC, now if not given."""
        event: Event = {"t": time.monotonic() if t is None else t, "event": kind, **content}
        with self._changed:
            self._events.append(event)
            if len(self._events) > 2 * self._most:  # by halves, so that each is moved once at most
                self._forgotten += len(self._events) - self._most
                del self._events[: -self._most]
            self._changed.notify_all()
        log(kind + "".join(f" {key}={_short(value)}" for key, value in content.items() if value not in (None, "")))

    def since(self, number: int, wait_s: float = 0.0) -> EventsPage:
        """Events from ``number`` on, and the number of the next; waits up to ``wait_s`` (10 at most) for one."""
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
    """One line of keeper.log (our stderr); on a full disk it is left out: what it tells of has happened."""
    with contextlib.suppress(OSError):  # or the thread that leads the faults ends with its first word
        print(f"{time.strftime('%H:%M:%S')} keeper: {text}", file=sys.stderr, flush=True)
