"""What a program says beside the protocol, kept in a log: of a flood the beginning and the end, to spare the disk."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path
from typing import Final

__all__ = ["LAST_BYTES", "MOST_KEPT", "CappedLog"]

MOST_KEPT: Final = 16 << 20
"""Bytes of one log, of all programs that write into it one after the other."""

LAST_BYTES: Final = 4096
"""So much of the end is kept whatever came before: why a program died is among its last words."""

_READ: Final = 1 << 16
_READS_AT_ONCE: Final = 16
"""Of a pipe, which holds 64 KiB unless somebody made it larger, up to 1 MiB (pipe(7)): all that a dead program left."""


class CappedLog:
    """The log of one program at ``path``, which is appended to.

    The program is given :attr:`pipe` as its standard error. A thread empties that, full log or not: a program that is
    not listened to stands still in the middle of a word, and one whose pipe is closed dies of it. A full disk is no
    error: what it does not take is lost. Any thread may call the methods.

    Raises OSError if the log cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._last = b""
        self._dropped = 0
        self._closed = False
        with contextlib.ExitStack() as stack:
            # Unbuffered: what a full disk does not take must not come up again when it is closed.
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
        """Words that came another way."""
        with self._lock:
            self._keep(data)

    def last_line(self) -> str:
        """The last line that this program has said so far; empty if it said nothing."""
        with self._lock:
            if not self._closed:
                self._take()
            lines = self._last.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """Hear what has been said to the end, and close the log; call it when the program has ended."""
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
        for it in (self._out, self._end):
            poller.register(it, select.POLLIN)
        while True:
            ready = {file for file, _ in poller.poll()}
            if self._end in ready:
                return
            with self._lock:
                self._take()

    def _take(self) -> None:
        """What is in the pipe by now; of one that is being filled all the time a part."""
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
                self._append(b"\n[testbed: the log is full; of what follows the end is kept]\n")
            self._dropped += left

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(data)


def _no_link(path: str, flags: int) -> int:
    """The programs' folder may be theirs too: through a link of theirs no file of the host's is written."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
