"""Faults with times fixed beforehand: the keeper injects them on time, however busy the command that planned them is.

Faults of one time begin together. A schedule belongs to a connection and ends with it: once the command is gone, none
of its faults begins.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Iterable

from testbed.core.faults.fault_kind import Compiled
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import EventLog
from testbed.keeper.faults import Faults, plan_of
from testbed.keeper.protocol import CompiledFault

__all__ = ["Schedule"]

Wanted = tuple[CompiledFault, Compiled]
"""As :meth:`Faults.inject` takes it; ``planned_t``, of CLOCK_MONOTONIC, is when it is due."""


class Schedule:
    """The scheduled faults of one lab. Thread-safe, except :meth:`run`, which has a thread of its own."""

    def __init__(self, faults: Faults, events: EventLog) -> None:
        self._faults, self._events = faults, events
        self._due: list[tuple[float, int, object, Wanted]] = []
        self._numbers = itertools.count()  # orders faults of the same time by when they were added
        self._changed = threading.Condition()
        self._beginning: object = None
        """The owner of the faults that are being injected right now."""

    def add(self, owner: object, wanted: Iterable[Wanted]) -> None:
        """Add faults; those that are due already are injected at once."""
        with self._changed:
            for it in wanted:
                heapq.heappush(self._due, (it[0]["planned_t"], next(self._numbers), owner, it))
            self._changed.notify_all()

    def cancel(self, owner: object) -> int:
        """Drop the faults of ``owner`` that have not begun; return their number. None begins after the return."""
        with self._changed:
            left = [it for it in self._due if it[2] is not owner]
            cancelled = len(self._due) - len(left)
            self._due = left
            heapq.heapify(self._due)
            while self._beginning is owner:
                self._changed.wait()
            return cancelled

    def run(self, ended: threading.Event) -> None:
        """Inject faults when they are due, until ``ended``."""
        use_realtime_priority()
        while not ended.is_set():
            with self._changed:
                if not self._due:
                    self._changed.wait()
                    continue
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                together = [heapq.heappop(self._due)]
                planned_t, _, self._beginning, _ = together[0]
                while self._due and self._due[0][0] == planned_t and self._due[0][2] is self._beginning:
                    together.append(heapq.heappop(self._due))
            try:
                self._faults.begin([it for _, _, _, it in together])
            except Exception as error:
                for _, _, _, (fault, _) in together:
                    content = {"type": fault["type"], "target": fault["target"], **plan_of(fault)}
                    self._events.add("fault-failed", why=str(error), **content)
            finally:
                with self._changed:
                    self._beginning = None
                    self._changed.notify_all()
