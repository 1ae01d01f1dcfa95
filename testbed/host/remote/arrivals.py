"""Runs and files that arrive from another host: whole or not at all, and nothing but plain files and folders.

They are another machine's data. A name that leads out of the folder, a link, a device or a pipe is refused, and with it
the whole run.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from testbed.core.units import format_size
from testbed.core.user_text import printable
from testbed.errors import HostError, StorageError

__all__ = ["replace", "unpack"]

_LONGEST_PATH = 1024
_MOST_BYTES, _MOST_FILES = 1 << 38, 1_000_000
_BUFFER, _COPIED = 1 << 16, 1 << 20
"""tarfile copies the rest of its buffer for each header; large files are read in larger pieces."""


class _Stream:
    """The pieces as a file, counted."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")
        self.byte_count = 0

    def read(self, count: int) -> memoryview:
        """Return at most ``count`` bytes, none at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        taken, self._rest = self._rest[:count], self._rest[count:]
        self.byte_count += len(taken)
        if self.byte_count > _MOST_BYTES:
            raise HostError(f"expected at most {_MOST_BYTES} bytes of a run, got more")
        return taken

    def drain(self) -> None:
        for _ in self._pieces:
            pass


def unpack(pieces: Iterator[bytes], target: Path) -> int:
    """Make ``target`` of a tar stream; return the bytes that arrived.

    Raises HostError (something in it is refused, or the stream ends early; ``target`` is not there then) and
    StorageError (it exists, or cannot be written).
    """
    hidden = _hidden(target)
    stream = _Stream(pieces)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise StorageError(f"{target} exists")
        _remove_unused(target)
        hidden.mkdir(mode=0o755)
        made = hidden.stat().st_ino
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER) as tar:  # type: ignore[call-overload]
                for count, member in enumerate(tar):
                    if count > _MOST_FILES:
                        raise HostError(f"expected at most {_MOST_FILES} files of a run, got more")
                    if member.issparse():  # a few bytes of the stream, and any size on the disk
                        raise HostError(f"refused: {printable(member.name)} is a sparse file")
                    _put(tar, member, hidden)
                    tar.members.clear()  # tarfile remembers each file otherwise
            stream.drain()
        except (tarfile.TarError, EOFError, ValueError, OverflowError, MemoryError) as error:  # of odd headers
            raise HostError(f"{target.name} did not arrive whole: {error}") from error
        if hidden.stat().st_ino != made:
            raise StorageError(f"cannot write {target}: another process removed {hidden.name} meanwhile")
        hidden.rename(target)
        return stream.byte_count
    except OSError as error:
        raise _unwritable(target, stream.byte_count, error) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def replace(pieces: Iterator[bytes], target: Path) -> int:
    """Make ``target`` of the pieces of a file, in place of what it was; return the bytes that arrived.

    Raises HostError (not all of it arrives; ``target`` is as before then) and StorageError (it cannot be written).
    """
    hidden = _hidden(target)
    byte_count = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                byte_count += len(piece)
                if byte_count > _MOST_BYTES:
                    raise HostError(f"expected at most {_MOST_BYTES} bytes of {target}, got more")
                file.write(piece)
        hidden.replace(target)
        return byte_count
    except OSError as error:
        raise _unwritable(target, byte_count, error) from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)


def _hidden(target: Path) -> Path:
    """Return where ``target`` is until all of it is there."""
    return target.with_name(f".{target.name}.arrives-{os.getpid()}")


def _remove_unused(target: Path) -> None:
    """Remove the parts of ``target`` that processes left which were killed."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.arrives-*"):
        pid = part.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(part, ignore_errors=True)


def _unwritable(target: Path, byte_count: int, error: OSError) -> StorageError:
    fix = "free space there, or name another folder" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return StorageError(
        f"cannot write {target}: {error.strerror or error}, after {format_size(byte_count)}{'; ' if fix else ''}{fix}"
    )


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = PurePosixPath(member.name).parts
    odd = not parts or parts[0] == "/" or ".." in parts or len(member.name) > _LONGEST_PATH
    if odd or not all(part.isprintable() for part in parts):
        raise HostError(f"refused: a file named {member.name[:100]!r}")
    path = folder.joinpath(*parts)
    if member.isdir():
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise HostError(f"refused: {member.name} is neither a file nor a folder")
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode & 0o755 | 0o600)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, _COPIED)
    os.utime(path, (member.mtime, member.mtime))
