"""Streams of the leash that may block: each has a thread of its own, so that the leash hears its client meanwhile.

A client's cable may be dark, or a command may not read: a write waits then for as long as it likes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from testbed.host.linux.descriptor import write_all

__all__ = ["Shown", "Spool", "Task"]

_PIECE = 1 << 16


class Task(threading.Thread):
    """Calls ``work``; an OSError of it ends the thread: the client is gone, which the leash learns from its stdin."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            self._work()


class Shown(threading.Thread):
    """Copies what a terminal shows to a descriptor, until its last process has closed it."""

    def __init__(self, master: int, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._master, self._descriptor = master, descriptor
        self._writing = threading.Lock()
        self._read_t = time.monotonic()
        self._ended = False
        self.start()

    def run(self) -> None:
        while True:
            try:
                piece = os.read(self._master, _PIECE)
            except OSError:  # EIO: the last process on the terminal has ended
                return
            with self._writing:
                self._read_t = time.monotonic()
                if self._ended:
                    continue
                try:
                    write_all(self._descriptor, piece)
                except OSError:
                    return

    def is_drained(self, since_t: float, quiet_s: float) -> bool:
        """Whether the terminal is closed, or has shown nothing for ``quiet_s`` since ``since_t``: nothing follows then.

        A process in the background may have it open for as long as it likes.
        """
        if not self.is_alive():
            return True
        if not self._writing.acquire(blocking=False):
            return False
        try:
            self._ended = time.monotonic() - max(since_t, self._read_t) >= quiet_s
            return self._ended
        finally:
            self._writing.release()


class Spool(threading.Thread):
    """A command's stdin: what :meth:`put` adds is written to ``descriptor`` as fast as the command reads.

    What it has not read yet is in a file without a name in ``folder``, of at most ``most_bytes``.
    """

    def __init__(self, descriptor: int, folder: Path, most_bytes: int, closes: bool) -> None:
        super().__init__(daemon=True)
        self._descriptor, self._most_bytes, self._closes = descriptor, most_bytes, closes
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (as long as the thread)
        self._changed = threading.Condition()
        self._begin = self._end = 0
        self._ended = False
        self.start()

    def put(self, piece: bytes) -> None:
        """Add to what the command may read. Raises ValueError if too much waits, OSError if the disk is full."""
        with self._changed:
            if self._end - self._begin + len(piece) > self._most_bytes:
                raise ValueError(f"expected at most {self._most_bytes} bytes that the command has not read yet")
            done = 0
            while done < len(piece):
                done += os.pwrite(self._file.fileno(), piece[done:], self._end + done)
            self._end += len(piece)
            self._changed.notify()

    def end(self) -> None:
        """Close the command's stdin once it has read everything."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # it does not read (any more)
            while piece := self._next():
                write_all(self._descriptor, piece)
        if self._closes:
            os.close(self._descriptor)

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._end > self._begin or self._ended)
            piece = os.pread(self._file.fileno(), min(_PIECE, self._end - self._begin), self._begin)
            self._begin += len(piece)
            if self._begin == self._end:
                self._begin = self._end = 0
                self._file.truncate(0)
            return piece
