"""Send runs and files from the leash's host to its client: in pieces of known length, whole or with why not."""

from __future__ import annotations

import os
import stat
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from testbed.core.remote.leash_frames import FAILED, LONGEST, WHY_BYTES
from testbed.errors import TestbedError
from testbed.host.linux.descriptor import write_all

__all__ = ["send_file", "send_run"]


class _Chunks:
    """Writes pieces with their length before them; the length 0 ends them, and FAILED is followed by why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, piece: bytes) -> int:
        for begin in range(0, len(piece), LONGEST):
            part = piece[begin : begin + LONGEST]
            write_all(self._descriptor, struct.pack(">I", len(part)) + part)
        return len(piece)

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
        found = runs_folder.find(run)
        path = found.path
        if store.read_state(found).word == "running":
            raise OSError(f"run {path.name} has not ended")
        entries = list(_entries(path))  # all are judged before the first is sent
        chunks.write(path.name.encode())
        # tarfile's own pieces of 10 KiB would each be a write of their own.
        with tarfile.open(fileobj=chunks, mode="w|", bufsize=LONGEST, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for each in entries:
                _add(tar, each, str(each.relative_to(path)))
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
    for each in sorted(folder.rglob("*")):
        mode = each.lstat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise OSError(f"{each.relative_to(folder)} is neither a file nor a folder")
        yield each


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_dir():
        tar.addfile(_anonymous(tar.gettarinfo(path, arcname=name)))
        return
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        member = tar.gettarinfo(arcname=name, fileobj=file)
        member.type, member.linkname = tarfile.REGTYPE, ""  # a second name of a file is a file
        tar.addfile(_anonymous(member), file)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
