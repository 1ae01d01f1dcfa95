"""Threads that answer requests at real-time priority: begun when all others are busy, kept for the next request."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import log

__all__ = ["Workers"]

FIRST: Final = 2
"""Threads begun at once: a command that waits for a fault must not delay the next command by the start of a thread."""


class Workers:
    """As many threads as there have ever been requests in hand at once; a connection has at most one in hand."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        """Threads that wait, less the work that is queued for them."""
        for _ in range(FIRST):
            self._begin()

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do ``work``, at once."""
        with self._lock:
            if self._idle == 0:
                self._begin()
            self._idle -= 1
        self._work.put(work)

    def _begin(self) -> None:
        """Begin a thread. Its creator has normal priority; the thread raises its own, once."""
        self._idle += 1
        threading.Thread(target=self._run, name="answer", daemon=True).start()

    def _run(self) -> None:
        use_realtime_priority()
        while True:
            work = self._work.get()
            try:
                work()
            except Exception as error:
                log(f"a request failed: {error!r}")
            del work  # a closure would keep its connection until the next request
            with self._lock:
                self._idle += 1
