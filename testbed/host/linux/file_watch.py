"""Watch which processes write files below a folder: fanotify(7), which tells the process, unlike inotify.

Events are of closed files only, so that a program that writes much costs nothing. Folders that appear later are found
within :data:`LOOK_S`, on the same file system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testbed.errors import HostError

__all__ = ["FileWatch"]

LOOK_S: Final = 1.0
MOST_FOLDERS: Final = 1000
"""A mark on each takes memory of the kernel's, and a look at each a microsecond per second."""

_PASSED_OVER: Final = frozenset({".git", "__pycache__", "node_modules"})

# include/uapi/linux/fanotify.h
_INIT = 0x01 | 0x02  # FAN_CLOEXEC, FAN_NONBLOCK
_ADD_FOLDER = 0x01 | 0x04 | 0x08  # FAN_MARK_ADD, FAN_MARK_DONT_FOLLOW, FAN_MARK_ONLYDIR
_CLOSE_WRITE, _OF_CHILDREN = 0x08, 0x08000000
_EVENT: Final = struct.Struct("=IBBHQii")
_READ_BYTES: Final = 1 << 12
"""170 events. Each is an open file of this process, whose number is limited, often to 1024."""
_AT_FDCWD: Final = -100

_libc: Final = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Calls ``wrote`` with the path of each file below ``folder`` that was written and closed, and the process that
    did; from a thread, until :meth:`close`. Files that are gone by then are left out.
    """

    def __init__(self, folder: Path, wrote: Callable[[Path, int], None]) -> None:
        """Raises HostError where the kernel does not allow it: it takes CAP_SYS_ADMIN."""
        self._wrote = wrote
        self._folders: dict[Path, int] = {}
        """Those that are watched, and when their list of names last changed."""
        # Non-blocking: the kernel opens each file for this process, a named pipe too.
        how = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOATIME
        self._events = _libc.fanotify_init(_INIT, how)
        if self._events < 0:
            raise HostError(f"fanotify_init failed: {os.strerror(ctypes.get_errno())}")
        try:
            self._mark(folder)
            self._device = folder.stat().st_dev
        except OSError as error:
            os.close(self._events)
            raise HostError(f"cannot watch {folder}: {error.strerror}") from error
        self._look([folder])
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._follow, name="file-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when ``wrote`` has been called for everything so far."""
        os.close(self._wake)
        self._thread.join()
        os.close(self._woken)
        os.close(self._events)

    def _follow(self) -> None:
        poll = select.poll()
        for descriptor in (self._events, self._woken):
            poll.register(descriptor, select.POLLIN)
        ended = False
        while not ended:
            ended = any(descriptor == self._woken for descriptor, _ in poll.poll(LOOK_S * 1e3))
            self._read()
            self._look(list(self._folders))

    def _read(self) -> None:
        until_t = time.monotonic() + LOOK_S  # a process without a waiter may write files for ever
        with contextlib.suppress(OSError):  # nothing more, or no descriptor is free for now
            while time.monotonic() < until_t and (unread := os.read(self._events, _READ_BYTES)):
                while unread:
                    size, _, _, _, _, file, pid = _EVENT.unpack_from(unread)
                    unread = unread[size:]
                    if file >= 0:  # else the queue was full, and events are missing
                        self._tell(file, pid)

    def _tell(self, file: int, pid: int) -> None:
        try:
            path = str(Path(f"/proc/self/fd/{file}").readlink())
            gone = os.fstat(file).st_nlink == 0
        finally:
            os.close(file)
        if not gone:
            self._wrote(Path(path), pid)

    def _look(self, folders: list[Path]) -> None:
        """Watch the folders that have appeared below these."""
        while folders and len(self._folders) < MOST_FOLDERS:
            folder = folders.pop()
            with contextlib.suppress(OSError):
                state = folder.stat()
                if state.st_dev != self._device or self._folders.get(folder) == state.st_mtime_ns:
                    continue
                self._mark(folder)  # again after a change: it may be another folder of that name
                self._folders[folder] = state.st_mtime_ns
                with os.scandir(folder) as inside:
                    below = [Path(child) for child in inside if child.is_dir(follow_symlinks=False)]
                folders += [
                    subfolder
                    for subfolder in below
                    if subfolder not in self._folders and subfolder.name not in _PASSED_OVER
                ]

    def _mark(self, folder: Path) -> None:
        events = ctypes.c_uint64(_CLOSE_WRITE | _OF_CHILDREN)
        if _libc.fanotify_mark(self._events, _ADD_FOLDER, events, _AT_FDCWD, os.fsencode(folder)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
