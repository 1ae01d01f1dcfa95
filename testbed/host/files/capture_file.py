"""Where captured packets are written: a file of the caller's, or stdout for a program that reads along."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import StorageError, UserError
from testbed.host.files import beneath
from testbed.host.linux import login
from testbed.host.linux.program_user import caller

__all__ = ["CaptureFile", "ReaderEnded"]


class ReaderEnded(Exception):
    """The program that reads the packets has closed its end; no failure of the capture."""


class CaptureFile:
    """Takes whole blocks, and ends after the last whole one, whatever the disk does. Must be closed.

    ``target`` is a path, or a descriptor that is written to and left open. An existing file of the caller's is
    replaced. ``size`` is what was written, in bytes.
    """

    def __init__(self, target: Path | int) -> None:
        """Raises UserError, StorageError."""
        self.size = 0
        self._error: StorageError | None = None
        self._path = target if isinstance(target, Path) else None
        self._descriptor = _opened(target) if isinstance(target, Path) else target

    def write(self, blocks: Sequence[bytes]) -> int:
        """Write blocks, and return how many: all, unless the disk takes no more, which the next call raises.

        Raises StorageError, ReaderEnded.
        """
        if self._error is not None:
            raise self._error
        joined = b"".join(blocks)
        done = 0
        try:
            while done < len(joined):
                done += os.write(self._descriptor, memoryview(joined)[done:])
        except BrokenPipeError as error:
            raise ReaderEnded from error
        except OSError as error:
            name = self._path or "the output"
            self._error = StorageError(f"{name}: {error.strerror}; what was written before is kept")
        whole, count = 0, 0
        for block in blocks:
            if whole + len(block) > done:
                break
            whole, count = whole + len(block), count + 1
        self.size += whole
        if self._error is not None and self._path is not None:
            with contextlib.suppress(OSError):  # a part of a block would be an error in the file
                os.ftruncate(self._descriptor, self.size)
        return count

    def close(self) -> None:
        if self._path is not None and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _opened(path: Path) -> int:
    if path.name in ("", "..") or path.is_dir():  # Path("") and Path(".") have no name
        raise UserError(f"expected a file to write, got the folder {path}; name a file in it")
    # As root behind sudo, one could otherwise empty a file of anybody's, or lead through a link into one.
    try:
        folder = path.parent.resolve()
        try:
            handle = beneath.open_file(folder, path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            beneath.give(handle, caller())
        except FileExistsError:
            handle = beneath.open_file(folder, path.name, os.O_WRONLY)
            try:
                _refuse_stranger(path, handle)
                os.ftruncate(handle, 0)
            except BaseException:
                os.close(handle)
                raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    return handle


def _refuse_stranger(path: Path, handle: int) -> None:
    by_sudo, owner = caller(), os.fstat(handle).st_uid
    if by_sudo is not None and by_sudo[0] not in (owner, 0):
        raise UserError(f"{path} exists and belongs to {login.user_name(owner)}; name another file")
