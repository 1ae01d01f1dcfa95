"""Read a file of a user's program as it grows.

The program can put anything in its place, at any time: a link out of the folder, a pipe, an endless file. Nothing is
followed and nothing blocks (``host/files/beneath.py``); each call reads a bounded amount.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.host.files import beneath

__all__ = ["LAST_BOUND_S", "MOST_BYTES", "FileTail", "Grown", "monotonic"]

MOST_BYTES: Final = 1 << 20
"""Bytes read in one call."""
LAST_BOUND_S: Final = 3.0
"""How long the last reading of a file may take once the program has ended: something that it left behind may write on,
and a file with a hole can be of any size."""
_HEAD_BYTES: Final = 1 << 16


def monotonic(unix_s: float) -> float:
    """Return a time of the real-time clock as one of CLOCK_MONOTONIC, by what the two clocks show now."""
    return unix_s - (time.time() - time.monotonic())


@dataclass(frozen=True)
class Grown:
    """What was added to a file. ``t``: when it was last written to (CLOCK_MONOTONIC), by the file system's own stamp.

    ``anew``: the data begins where the file begins; if there was data before, another file took its place, or it was
    shortened. ``has_unread``: there is more to read.
    """

    t: float
    data: bytes
    anew: bool
    has_unread: bool


class FileTail:
    """The file ``name`` below ``folder``. ``skip``: of a file that exists already, skip what it has now.

    :attr:`head` is the begin of what was skipped, which may have the names of columns.
    """

    def __init__(self, folder: Path, name: str, *, skip: bool = False) -> None:
        self._folder, self._name = folder, name
        self._inode: tuple[int, int] | None = None
        self._offset = 0
        self.head = b""
        if skip:
            try:
                descriptor = beneath.open_file(folder, name)
            except OSError:
                return
            try:
                state = os.fstat(descriptor)
                self.head = os.pread(descriptor, _HEAD_BYTES, 0)
            except OSError:
                return
            finally:
                os.close(descriptor)
            self._inode, self._offset = (state.st_dev, state.st_ino), state.st_size

    def read(self) -> Grown | None:
        """Return what is new; None for nothing: no such file yet, or none that may be read."""
        try:
            descriptor = beneath.open_file(self._folder, self._name)
        except OSError:
            return None
        try:
            state = os.fstat(descriptor)
            inode = (state.st_dev, state.st_ino)
            if inode != self._inode or state.st_size < self._offset:
                self._inode, self._offset = inode, 0
            if state.st_size <= self._offset:
                return None
            data = os.pread(descriptor, min(MOST_BYTES, state.st_size - self._offset), self._offset)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        anew = self._offset == 0
        self._offset += len(data)
        t = min(monotonic(state.st_mtime), time.monotonic())
        return Grown(t, data, anew, self._offset < state.st_size) if data else None
