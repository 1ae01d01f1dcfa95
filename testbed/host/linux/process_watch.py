"""Notice at once when a process ends that is not a child: pidfd_open(2) and poll(2).

Used for containers: docker need not be running, and nothing is polled while the processes live.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping

__all__ = ["ProcessWatch"]


class ProcessWatch:
    """Calls ``ended`` from a thread of its own, once for each name of ``pids`` (name to pid) whose process ends."""

    def __init__(self, pids: Mapping[str, int], ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._closing = threading.Lock()
        self._closed = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._names: dict[int, str] = {}
        gone = []
        for name, pid in pids.items():
            try:
                self._names[os.pidfd_open(pid)] = name
            except ProcessLookupError:
                gone.append(name)
        threading.Thread(target=self._run, args=(gone,), name="processes", daemon=True).start()

    def stop(self) -> None:
        """Report no further ends, which are expected from now on. Idempotent."""
        with self._closing:  # a closed descriptor may be another file's meanwhile
            if not self._closed:
                os.eventfd_write(self._stop, 1)

    def _run(self, gone: list[str]) -> None:
        for name in gone:
            self._ended(name)
        poll = select.poll()
        for descriptor in (self._stop, *self._names):
            poll.register(descriptor, select.POLLIN)
        while self._names:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._stop in ready:
                break
            for descriptor in ready:
                poll.unregister(descriptor)
                os.close(descriptor)
                self._ended(self._names.pop(descriptor))
        with self._closing:
            self._closed = True
            for descriptor in (*self._names, self._stop):
                os.close(descriptor)
