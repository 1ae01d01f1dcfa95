"""Capture of a program's output outside the protocol in a log; of a flood it keeps the beginning and the end."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path
from typing import Final

__all__ = ["LAST_BYTES", "MOST_KEPT", "CappedLog"]

MOST_KEPT: Final = 16 << 20
"""Bytes of one log, over all programs that write to it one after the other."""

LAST_BYTES: Final = 4096
"""Bytes of the end that are always kept: the reason why a program died is usually in its last lines."""

_READ: Final = 1 << 16
_READS_AT_ONCE: Final = 16
"""A pipe holds 64 KiB unless it was enlarged, up to 1 MiB (pipe(7)): enough reads for all that a dead program left."""


class CappedLog:
    """The log of one program at ``path``, in append mode.

    The program's standard error is :attr:`pipe`. A thread empties the pipe even when the log is full, because a program
    blocks in the middle of a write if nothing reads its pipe, and is killed by SIGPIPE if the pipe is closed. A full
    disk is no error: what it does not take is lost. The methods are thread-safe.

    Raises OSError if the log cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._last = b""
        self._dropped = 0
        self._closed = False
        with contextlib.ExitStack() as stack:
            # Unbuffered: what a full disk refused must not be written again at close.
            self._file = stack.enter_context(open(path, "ab", buffering=0, opener=_no_link))
            self._room = max(0, MOST_KEPT - os.fstat(self._file.fileno()).st_size)
            self._out, into = os.pipe()
            stack.callback(os.close, self._out)
            self.pipe = stack.enter_context(os.fdopen(into, "wb", buffering=0))
            self._end = os.eventfd(0)
            stack.callback(os.close, self._end)
            os.set_blocking(self._out, False)  # ours alone: the program's end of it blocks, as it expects
            self._thread = threading.Thread(target=self._listen, name="capture", daemon=True)
            self._thread.start()
            self._files = stack.pop_all()

    def write(self, data: bytes) -> None:
        """Append output that did not come through the pipe."""
        with self._lock:
            self._keep(data)

    def last_line(self) -> str:
        """Return the last line that this program has written so far; empty if there is none."""
        with self._lock:
            if not self._closed:
                self._take()
            lines = self._last.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """Read the rest of the output and close the log; call it when the program has ended."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.eventfd_write(self._end, 1)
        self._thread.join()
        with self._lock:
            self._take()
            if self._dropped:
                last = self._last[-self._dropped :]
                self._append(b"[testbed: %d bytes are left out here]\n" % (self._dropped - len(last)) + last)
            self._files.close()

    # ---- inside; the lock is held

    def _listen(self) -> None:
        poller = select.poll()
        for descriptor in (self._out, self._end):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = {file for file, _ in poller.poll()}
            if self._end in ready:
                return
            with self._lock:
                self._take()

    def _take(self) -> None:
        """Read what is in the pipe now; only a part of it if the program keeps writing."""
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._out, _READ)
            except BlockingIOError:
                return
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._last = (self._last + data)[-LAST_BYTES:]
        kept, left = data[: self._room], len(data) - self._room
        if kept:
            self._append(kept)
            self._room -= len(kept)
        if left > 0:
            if not self._dropped:
                self._append(b"\n[testbed: the log is full; only the end of what follows is kept]\n")
            self._dropped += left

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(data)


def _no_link(path: str, flags: int) -> int:
    """Open without following a link: programs may own the folder, and must not redirect the write to a host's file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
