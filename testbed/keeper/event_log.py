"""The keeper's events, kept for requests, captures in progress, and the keeper's log."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.keeper.protocol import CaptureState, Event, EventsPage

__all__ = ["LOG_BYTES", "MOST_EVENTS", "Captures", "EventLog", "bound_log", "log"]

MOST_EVENTS: Final = 100_000
"""Events that are kept: a fiber that flaps for days must not fill the memory. Recorders get each at once."""

STDERR: Final = 2

LOG_BYTES: Final = 320 * 1024
"""A log of this size is moved aside and a fresh one begun; the one that was aside before is lost."""


class EventLog:
    """Events by number, from 0. Thread-safe."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._events: list[Event] = []
        self._forgotten = 0
        self._changed = threading.Condition()
        self.added: Callable[[], None] = lambda: None
        """Called after each :meth:`add`."""

    @property
    def next(self) -> int:
        """The number of the next event."""
        with self._changed:
            return self._forgotten + len(self._events)

    def add(self, kind: str, /, t: float | None = None, **content: Any) -> None:
        """Add an event, also to the log; ``t`` is a time of CLOCK_MONOTONIC, by default now."""
        # Whatever the content says, the kind is ``kind``.
        event: Event = {"t": time.monotonic() if t is None else t, "event": kind, **content} | {"event": kind}
        with self._changed:
            self._events.append(event)
            if len(self._events) > 2 * self._most:  # dropped in blocks, so that each event is moved once at most
                self._forgotten += len(self._events) - self._most
                del self._events[: -self._most]
            self._changed.notify_all()
        self.added()
        # In the log, for people, what is in force on each direction would hide the rest.
        fields = (
            f" {key}={_short(field)}" for key, field in content.items() if field not in (None, "") and key != "in_force"
        )
        log(kind + "".join(fields))

    def since(self, number: int, wait_s: float = 0.0) -> EventsPage:
        """Return the events from ``number`` on; wait up to ``wait_s`` seconds (10 at most) for the first one."""
        with self._changed:
            if number >= self._forgotten + len(self._events) and wait_s > 0:
                self._changed.wait(min(wait_s, 10.0))
            return {
                "events": self._events[max(0, number - self._forgotten) :],
                "next": self._forgotten + len(self._events),
            }


class Captures:
    """Captures of packets in progress: they cost CPU, so the lab's events and the runs meanwhile list them.

    There is one per connection, its ``owner``, and it ends with the connection. Thread-safe.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._running: dict[object, CaptureState] = {}

    @property
    def running(self) -> list[CaptureState]:
        """The captures in progress, the oldest first."""
        with self._lock:
            return list(self._running.values())

    def begin(self, owner: object, directions: Sequence[str], before: bool) -> str:
        """Note a capture; return its id."""
        with self._lock:
            state: CaptureState = {
                "capture": f"c{next(self._numbers)}",
                "directions": list(directions),
                "before": before,
                "began_t": time.monotonic(),
            }
            self._running[owner] = state
        self._events.add(
            "capture-began", state["began_t"], capture=state["capture"], directions=state["directions"], before=before
        )
        return state["capture"]

    def end(self, owner: object, counted: Mapping[str, int] | None = None) -> None:
        """Note the end of a connection's capture, if it has one; without ``counted`` its process has ended early."""
        with self._lock:
            state = self._running.pop(owner, None)
        if state is not None:
            number, directions, before = state["capture"], state["directions"], state["before"]
            self._events.add(
                "capture-ended", None, capture=number, directions=directions, before=before, counted=dict(counted or {})
            )


def _short(value: object) -> object:
    return f"{value:.6f}" if isinstance(value, float) else value


def log(text: str) -> None:
    """Write a line to keeper.log (stderr); on a full disk the line is lost."""
    with contextlib.suppress(OSError):  # an error here would end the thread that advances the faults
        print(f"{time.strftime('%H:%M:%S')} keeper: {text}", file=sys.stderr, flush=True)
    if _bound is not None:
        with contextlib.suppress(OSError):
            _bound.turn_over()


class _Bound:
    """The log at ``path``, which is stderr, and how large it may become."""

    def __init__(self, path: Path, aside: Path, most_bytes: int) -> None:
        self._path, self._aside, self._most_bytes = path, aside, most_bytes
        self._turning = threading.Lock()

    def turn_over(self) -> None:
        """Move a log that is too large aside, and begin another. Moving copies nothing, so no fault waits for it; a
        crash in between leaves the one that was moved."""
        if os.fstat(STDERR).st_size < self._most_bytes:
            return
        with self._turning:
            if os.fstat(STDERR).st_size < self._most_bytes:
                return  # another thread has done it
            with contextlib.suppress(FileNotFoundError):  # moved before, when no other could be begun
                self._path.rename(self._aside)
            fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.dup2(fresh, STDERR)
            os.close(fresh)


_bound: _Bound | None = None


def bound_log(path: Path, aside: Path, most_bytes: int = LOG_BYTES) -> None:
    """Keep the log at ``path``, which is this process's stderr, and its predecessor ``aside`` below ``most_bytes``
    each, but for one line."""
    global _bound
    _bound = _Bound(path, aside, most_bytes)
