"""The lines of a log as it grows, also of one that its writer moves aside when it has become too large."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["LogTail"]


class LogTail:
    """What has not been read of the log at ``path`` yet. Its predecessor is at ``aside``, if it can have one."""

    def __init__(self, path: Path, aside: Path | None = None) -> None:
        self._path, self._aside = path, aside
        self._inode: int | None = None
        self._offset = 0

    def lines(self, *, torn: bool = True) -> Iterator[str]:
        """Yield the lines since the last call; ``torn``: a last one without its newline too."""
        with contextlib.ExitStack() as opened:
            files: list[IO[bytes]] = []
            # The log first: one that is moved aside in between is then found again at its new place.
            for path in filter(None, (self._path, self._aside)):
                with contextlib.suppress(FileNotFoundError):
                    files.insert(0, opened.enter_context(path.open("rb")))
            inodes = [os.fstat(it.fileno()).st_ino for it in files]
            if len(set(inodes)) < len(inodes):
                del files[0], inodes[0]
            if self._inode in inodes:
                del files[: inodes.index(self._inode)]
            for file in files:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                data = file.read()
                # Nothing is written to the predecessor any more.
                whole = data if torn or file is not files[-1] else data[: data.rfind(b"\n") + 1]
                self._offset += len(whole)
                yield from whole.decode(errors="replace").splitlines()
