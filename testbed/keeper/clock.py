"""Does work when it is due: phases and ends of faults, scheduled faults, switches of protected links."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import log

__all__ = ["Clock"]


class Clock:
    """Work by the time at which it is due, in seconds of CLOCK_MONOTONIC. Thread-safe, except :meth:`run`, which has a
    thread of its own: work of one clock waits for no work of another."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, object, Callable[[], object]]] = []
        self._numbers = itertools.count()  # orders work of one time by when it was added
        self._changed = threading.Condition()
        self._owner: object = None
        """Of the work in progress."""

    def at(self, t: float, work: Callable[[], object], owner: object = None) -> None:
        """Do ``work`` at ``t``, or at once if that is past."""
        with self._changed:
            heapq.heappush(self._due, (t, next(self._numbers), owner, work))
            self._changed.notify_all()

    def cancel(self, owner: object) -> None:
        """Drop the work of ``owner`` that has not begun. None begins after the return."""
        with self._changed:
            self._due = [due for due in self._due if due[2] is not owner]
            heapq.heapify(self._due)
            self._changed.wait_for(lambda: self._owner is not owner)

    def run(self, ended: threading.Event) -> None:
        """Do what is due, until ``ended``."""
        use_realtime_priority()
        while not ended.is_set():
            with self._changed:
                left_s = self._due[0][0] - time.monotonic() if self._due else threading.TIMEOUT_MAX
                if left_s > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                    continue
                _, _, self._owner, work = heapq.heappop(self._due)
            try:
                work()
            except RuntimeError:
                return  # the engine's thread has ended, and the lab with it
            except Exception as error:
                log(f"due work failed: {error!r}")
            finally:
                with self._changed:
                    self._owner = None
                    self._changed.notify_all()
