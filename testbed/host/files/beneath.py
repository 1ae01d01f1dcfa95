"""Open files below a folder that other users can write to, without following links out of it.

Unprivileged ranks own files and folders in a run directory (in containers the folder of all records), and under sudo
the whole run directory belongs to the caller once the run has ended; root reads and writes there too. If a name were
replaced by a symbolic link, root would overwrite, or change the owner of, any file of the host. So each component is
opened relative to the previous one, and none may be a link (openat(2), O_NOFOLLOW). Files that are not regular are
refused as well: opening a pipe would block.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = [
    "Folder",
    "Owner",
    "append",
    "give",
    "give_all",
    "let_through",
    "make_folder",
    "make_path",
    "move",
    "names",
    "open_file",
    "remove",
    "remove_all",
    "replace",
    "replace_by",
]

Folder = Path | int
"""A path, whose last component must be no link, or the descriptor of an open folder, which cannot be exchanged."""

Owner = tuple[int, int] | None
"""User and group that own created files; None: the calling process's."""

DEEPEST: Final = 128

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def _parent(folder: Folder, name: str) -> Iterator[tuple[int, str]]:
    """Yield (descriptor of the folder that contains ``name``, last component of ``name``)."""
    *above, last = PurePosixPath(name).parts
    if not name or ".." in (*above, last) or name.startswith("/"):
        raise OSError(errno.EINVAL, "expected a relative path without '..'", name)
    held = _opened(folder)
    try:
        for part in above:
            inner = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        yield held, last
    finally:
        os.close(held)


def _opened(folder: Folder) -> int:
    return os.open(".", _FOLDER, dir_fd=folder) if isinstance(folder, int) else os.open(folder, _FOLDER)


def owner(folder: Folder) -> tuple[int, int]:
    """Return user and group of a folder."""
    held = _opened(folder)
    try:
        state = os.fstat(held)
        return state.st_uid, state.st_gid
    finally:
        os.close(held)


def let_through(folder: Folder) -> None:
    """Let every user enter a folder, whatever the umask was when it was made."""
    held = _opened(folder)
    try:
        os.fchmod(held, stat.S_IMODE(os.fstat(held).st_mode) | 0o011)
    finally:
        os.close(held)


def names(folder: Folder, name: str) -> list[str]:
    """Return the names in the folder ``name`` below ``folder``. Raises OSError."""
    with _parent(folder, name) as (above, last):
        held = os.open(last, _FOLDER, dir_fd=above)
        try:
            return os.listdir(held)  # noqa: PTH208
        finally:
            os.close(held)


def make_folder(folder: Folder, name: str, owner: Owner = None, mode: int = 0o755) -> None:
    """Make the folder ``name`` unless it exists, with any owner. Raises OSError; ENOTDIR for anything else there."""
    with _parent(folder, name) as (above, last):
        with suppress(FileExistsError):
            os.mkdir(last, mode, dir_fd=above)
        held = os.open(last, _FOLDER, dir_fd=above)
        try:
            os.fchmod(held, mode)
            give(held, owner)
        finally:
            os.close(held)


def make_path(path: Path, owner: Owner = None) -> None:
    """``mkdir -p``: make ``path`` and what is missing above it, each new level with ``owner``. Raises OSError.

    Links above the first new level are followed, as they were there before; none takes the place of a new level.
    """
    missing = list(itertools.takewhile(lambda level: not level.exists(), (path, *path.parents)))
    held = os.open(missing[-1].parent if missing else path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for level in reversed(missing):
            made = True
            try:
                os.mkdir(level.name, dir_fd=held)
            except FileExistsError:
                made = False  # by another process, in between
            inner = os.open(level.name, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
            if made:
                give(held, owner)
    finally:
        os.close(held)


def open_file(folder: Folder, name: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """Return a descriptor of the regular file ``name`` (``a/b``) below ``folder``. Raises OSError; ELOOP for a link."""
    with _parent(folder, name) as (above, last):
        descriptor = os.open(last, flags | _FILE, mode, dir_fd=above)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def append(folder: Folder, name: str, owner: Owner = None) -> int:
    """As :func:`open_file`, for appending; a missing file is created and given to ``owner``."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        made = open_file(folder, name, flags | os.O_EXCL)
    except FileExistsError:
        return open_file(folder, name, flags)
    give(made, owner)
    return made


def replace(folder: Folder, name: str, content: bytes, owner: Owner = None) -> None:
    """Replace a file atomically and durably: after a power failure it is the old one or the new one, never a part."""
    with _parent(folder, name) as (above, last):
        beside = f".{last}.{secrets.token_hex(4)}"
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=above)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchmod(descriptor, 0o644)  # reports are for everyone to read
                give(descriptor, owner)
                os.fsync(descriptor)
            os.replace(beside, last, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            os.unlink(beside, dir_fd=above)
            raise


def replace_by(folder: Folder, reserved: str, name: str, content: bytes, owner: Owner = None) -> None:
    """As :func:`replace`, by a file ``reserved`` beside it that has the space already. Raises OSError."""
    descriptor = open_file(folder, reserved, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.ftruncate(descriptor, len(content))
        os.fchmod(descriptor, 0o644)
        give(descriptor, owner)
        os.fsync(descriptor)
    with _parent(folder, name) as (above, last):
        os.replace(PurePosixPath(reserved).name, last, src_dir_fd=above, dst_dir_fd=above)


def move(folder: Folder, name: str, target: Folder, new: str) -> None:
    """Move the file ``name`` below ``folder`` to ``new`` below ``target``, of the same file system. Raises OSError."""
    with _parent(folder, name) as (above, last), _parent(target, new) as (below, last_new):
        os.rename(last, last_new, src_dir_fd=above, dst_dir_fd=below)


def remove(folder: Folder, name: str) -> None:
    """Remove the file ``name`` below a folder; of a link, the link itself. Raises OSError, also for a folder."""
    with _parent(folder, name) as (above, last):
        os.unlink(last, dir_fd=above)


def remove_all(folder: Path) -> None:
    """Remove the files of a folder, but not its subfolders. Ignores errors, and a folder that is a link or missing."""
    with suppress(OSError):
        held = os.open(folder, _FOLDER)
        try:
            with os.scandir(held) as inside:
                names = [child.name for child in inside]
            for name in names:
                with suppress(OSError):
                    os.unlink(name, dir_fd=held)
        finally:
            os.close(held)


def give(descriptor: int, owner: Owner) -> None:
    """Change the owner of an open file or folder."""
    if owner is not None:
        os.fchown(descriptor, *owner)


def give_all(folder: Folder, owner: Owner) -> None:
    """Change the owner of a folder and of everything below; links are changed themselves, never followed.

    A file with more than one name is left as it is: a rank may have made the other one of a file of the host's. So is
    what lies more than :data:`DEEPEST` levels below: each level takes a descriptor and a frame.
    """
    if owner is None:
        return
    top = _opened(folder)
    try:
        for path, folders, files, above in os.fwalk(".", follow_symlinks=False, dir_fd=top):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):
                    _give_name(above, name, owner)
            if path.count("/") >= DEEPEST:
                folders.clear()
        give(top, owner)
    finally:
        os.close(top)


def _give_name(above: int, name: str, owner: tuple[int, int]) -> None:
    # What is examined is what is changed: between two looks at a name, another file could take it.
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        state = os.fstat(held)
        if stat.S_ISDIR(state.st_mode) or state.st_nlink == 1:
            os.chown(f"/proc/self/fd/{held}", *owner)
    finally:
        os.close(held)
