"""Streams of the leash that may block, each in a thread of its own, and the runs and files that it sends to its client.

A client's cable may be dark, or a command may not read: a write waits then for as long as it likes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from testbed.core.remote.leash_frames import FAILED, LONGEST, WHY_BYTES
from testbed.errors import TestbedError
from testbed.host.linux.descriptor import write_all

__all__ = ["Shown", "Spool", "Task", "send_file", "send_run"]

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


# ---- runs and files for the client: in pieces of known length, whole or with why not


_LAST_WORDS_S = 30.0
"""How long the process of a detached run may take from the end of the run to its own: it takes the lab down."""


class _Chunks:
    """Writes pieces with their length before them; the length 0 ends them, and FAILED is followed by why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, piece: bytes) -> None:
        """Write a piece of at most LONGEST bytes."""
        write_all(self._descriptor, struct.pack(">I", len(piece)) + piece)

    def end(self, why: str = "") -> None:
        reason = why.encode()[:WHY_BYTES].ljust(WHY_BYTES) if why else b""
        write_all(self._descriptor, struct.pack(">I", FAILED if why else 0) + reason)


def send_run(descriptor: int, run: Path) -> None:
    """Send a run directory, by its name or path, as a tar stream of files and folders with names relative to it.

    The name of the run comes first, as a piece of its own. A run that has not ended, or holds anything else than files
    and folders, is not sent. Raises OSError if ``descriptor`` cannot be written.
    """
    from testbed.host.files import (  # takes a quarter of a second, before which the leash would not answer
        runs_folder,
        store,
    )

    chunks = _Chunks(descriptor)
    try:
        stored_run = runs_folder.find(run)
        path = stored_run.path
        over = store.read_state(stored_run).word != "running"
        if not over or (
            store.detached_log(stored_run) is not None and not store.wait_for_maker(stored_run, _LAST_WORDS_S)
        ):
            raise OSError(f"run {path.name} has not ended")
        entries = list(_entries(path))  # all are judged before the first is sent
        chunks.write(path.name.encode())
        for member in entries:
            _add(chunks, member, str(member.relative_to(path)))
        chunks.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar stream
    except BrokenPipeError:
        raise
    except (OSError, TestbedError) as error:
        chunks.end(str(error))
    else:
        chunks.end()


def send_file(descriptor: int, opened: Callable[[], BinaryIO]) -> None:
    """Send the content of the file that ``opened`` opens, or why it cannot be opened or read. Raises OSError alike."""
    chunks = _Chunks(descriptor)
    try:
        with opened() as file:
            while piece := file.read(LONGEST):
                chunks.write(piece)
    except BrokenPipeError:
        raise
    except OSError as error:
        chunks.end(str(error.strerror or error))
    else:
        chunks.end()


def _entries(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise OSError(f"{path.relative_to(folder)} is neither a file nor a folder")
        yield path


def _add(chunks: _Chunks, path: Path, name: str) -> None:
    """Send a file or folder as tarfile would write it, but not through tarfile, whose stream copies each byte often.

    Raises OSError, also for a file that became shorter.
    """
    if path.is_dir():
        chunks.write(_header(os.lstat(path), name, tarfile.DIRTYPE))
        return
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        state = os.fstat(file.fileno())
        head, left = _header(state, name, tarfile.REGTYPE), state.st_size
        padding = bytes(-left % tarfile.BLOCKSIZE)
        while left or head:
            piece = file.read(min(left, LONGEST - len(head))) or b""
            if left and not piece:
                raise OSError(f"{name} became shorter while it was sent")
            left -= len(piece)
            chunks.write(head + piece)
            head = b""
        if padding:
            chunks.write(padding)


def _header(state: os.stat_result, name: str, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, stat.S_IMODE(state.st_mode), state.st_mtime
    member.size = state.st_size if kind == tarfile.REGTYPE else 0
    return member.tobuf(tarfile.PAX_FORMAT)
