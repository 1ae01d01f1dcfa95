"""Threads that answer requests at real-time priority: begun when all others are busy, kept for the next request.

Where the system refuses another thread (a limit of processes), work waits for those that there are.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from testbed.errors import LabError
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
        """Threads that wait, less the work that is queued for them: below 0 if the system refused threads."""
        self._begun = 0
        with self._lock:
            self._begin(FIRST)

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do ``work``: at once, unless the system refuses a thread for it. Raises LabError if there is
        no thread at all."""
        with self._lock:
            self._begin(1)
            if not self._begun:
                raise LabError("the keeper cannot answer: the system lets it begin no thread")
            self._idle -= 1
        self._work.put(work)

    def _begin(self, wanted: int) -> None:
        """Begin threads until ``wanted`` are idle; also those that were refused earlier. Their creator has normal
        priority; each raises its own, once."""
        try:
            while self._idle < wanted:
                threading.Thread(target=self._run, name="answer", daemon=True).start()
                self._begun += 1
                self._idle += 1
        except RuntimeError as error:
            log(f"requests wait for one of {self._begun} threads: {error}")

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
