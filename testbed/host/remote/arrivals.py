"""Runs and files that arrive from another host: whole or not at all, and nothing but plain files and folders.

They are another machine's data. A name that leads out of the folder, a link, a device or a pipe is refused, and with it
the whole run.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from testbed.errors import HostError, StorageError

__all__ = ["replace", "unpack"]

_LONGEST_PATH = 1024
_MOST_BYTES, _MOST_FILES = 1 << 38, 1_000_000


class _Stream(io.RawIOBase):
    """The pieces as a file, counted."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""
        self.byte_count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                return 0
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self.byte_count += count
        if self.byte_count > _MOST_BYTES:
            raise HostError(f"expected at most {_MOST_BYTES} bytes of a run, got more")
        return count

    def drain(self) -> None:
        for _ in self._pieces:
            pass


def unpack(pieces: Iterator[bytes], target: Path) -> int:
    """Make ``target`` of a tar stream; return the bytes that arrived.

    Raises HostError (something in it is refused, or the stream ends early; ``target`` is not there then) and
    StorageError (it exists, or cannot be written).
    """
    hidden = target.with_name(f".{target.name}.arrives-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise StorageError(f"{target} exists")
        hidden.mkdir(mode=0o755)
        stream = _Stream(pieces)
        try:
            with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar:
                for count, member in enumerate(tar):
                    if count > _MOST_FILES:
                        raise HostError(f"expected at most {_MOST_FILES} files of a run, got more")
                    _put(tar, member, hidden)
            stream.drain()
        except (tarfile.TarError, EOFError) as error:
            raise HostError(f"{target.name} did not arrive whole: {error}") from error
        hidden.rename(target)
        return stream.byte_count
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def replace(pieces: Iterator[bytes], target: Path) -> int:
    """Make ``target`` of the pieces of a file, in place of what it was; return the bytes that arrived.

    Raises HostError (not all of it arrives; ``target`` is as before then) and StorageError (it cannot be written).
    """
    hidden = target.with_name(f".{target.name}.arrives-{os.getpid()}")
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
        raise StorageError(f"{target}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


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
        shutil.copyfileobj(content, file, 1 << 20)
    os.utime(path, (member.mtime, member.mtime))
