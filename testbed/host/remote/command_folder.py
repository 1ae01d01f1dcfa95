"""The folder of a command for a client of another host: what the client sent, and where the command starts.

The leash and each detached job of the command use it, by a shared flock(2) on the folder; the last user removes it.
One whose users were all killed is removed by the next leash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testbed.core.remote.leash_frames import COMMAND_FOLDER

__all__ = ["CommandFolder", "told_what_helps"]

_PARENT: Final = Path("/var/tmp")
_PREFIX: Final = "testbed-on-"


class CommandFolder:
    """A use of the folder at ``path``, until :meth:`leave`. Raises OSError if there is no such folder (any more)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _opened(path)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        if not os.fstat(self._descriptor).st_nlink:  # removed by its last user before this lock was taken
            self.leave()
            raise FileNotFoundError(f"{path} was removed")

    @classmethod
    def make(cls, parent: Path = _PARENT) -> CommandFolder:
        """Make a folder, and remove those that are left of users that were killed. Raises OSError."""
        for folder in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_unused(folder, _opened(folder))
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            with contextlib.suppress(FileNotFoundError):  # another leash removed it before it was locked
                return cls(path)

    @classmethod
    def of_this_process(cls) -> CommandFolder | None:
        """Return a use of the folder of the command that this process is part of; None if there is none."""
        with contextlib.suppress(KeyError, OSError):
            return cls(Path(os.environ[COMMAND_FOLDER]))
        return None

    def leave(self) -> None:
        """End this use; the last one removes the folder."""
        if self._descriptor >= 0:
            _remove_unused(self.path, self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def told_what_helps() -> Iterator[None]:
    """Raise OSError with what helps where something for the client cannot be stored in such a folder."""
    try:
        yield
    except OSError as error:
        where = f"{_PARENT} of {os.uname().nodename}"
        raise OSError(
            f"expected to store what the client sends in {where}, got: {error.strerror or error}; free space there"
        ) from error


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_unused(path: Path, descriptor: int) -> None:
    """Remove the folder if no other descriptor has a lock on it and it is this user's; close ``descriptor``."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # its other users go on
    finally:
        os.close(descriptor)
