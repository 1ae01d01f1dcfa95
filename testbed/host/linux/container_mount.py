"""Mount a folder of the host into a running container, at the same path.

A container's mounts are fixed when it is created, but the folders of a job are known only later: the run directory, and
the folder that a program is launched from. The kernel's mount interface can attach them afterwards: open_tree(2) clones
a mount of the host, move_mount(2) attaches it in the container (Linux 5.2).
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path
from typing import Final

from testbed.errors import HostError, UserError
from testbed.host.linux import namespace

__all__ = ["mount", "pin"]

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on every architecture (Documentation/process/adding-syscalls.rst)
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _MOVE_MOUNT_F_EMPTY_PATH = 1, os.O_CLOEXEC, 4
_AT_FDCWD = -100

_OWN: Final = tuple(map(Path, (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt/testbed/agents", "/opt/testbed/bin", "/opt/testbed/lib", "/proc",
    "/sbin", "/sys", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/usr/sbin",
)))  # fmt: skip
"""Folders that a container needs from its own image (agents/Dockerfile), so no mount may hide them."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(folder: Path, pid: int) -> None:
    """Mount ``folder`` (absolute) in the mount namespace of process ``pid``, read-write, unless it is there already.

    The mount ends with the container. Raises HostError; UserError for a folder that would hide the container's own.
    """
    plain = Path(os.path.normpath(folder))
    if any(plain.is_relative_to(own) or own.is_relative_to(plain) for own in _OWN):
        raise UserError(
            f"cannot mount {folder} into containers: it would hide their system folders; use another folder, or"
            " --driver netns"
        )
    _attach(folder, Path(f"/proc/{pid}/ns/mnt"), "container", if_missing=True)


def pin(folder: Path, mounts: Path) -> None:
    """Mount ``folder`` onto itself in the mount namespace held at ``mounts``. Raises HostError.

    From inside, a mount point cannot be renamed or removed (EBUSY), regardless of the owner of the folder above.
    """
    _attach(folder, mounts, "node", if_missing=False)


def _attach(folder: Path, mounts: Path, place: str, *, if_missing: bool) -> None:
    """Mount a clone of ``folder`` at its own path in the mount namespace held at ``mounts``. Raises HostError.

    ``place`` is for errors: what has that namespace. ``if_missing``: create the path inside if need be, and leave it
    alone if it is the same folder already.
    """
    here = _call("clone the mount of", folder, "syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(folder),
                 _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)  # fmt: skip

    def attach() -> None:
        there = os.open(mounts, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mine = folder.stat()
            # Only this thread enters the namespace; its view of the file system ends with it.
            _call("leave for", folder, "unshare", namespace.CLONE_FS)
            _call(f"enter the {place} for", folder, "setns", there, namespace.CLONE_NEWNS)
        finally:
            os.close(there)
        if if_missing:
            folder.mkdir(parents=True, exist_ok=True)
            _let_through(folder)
        if not (if_missing and os.path.samestat(folder.stat(), mine)):
            _call("attach", folder, "syscall", _MOVE_MOUNT, here, b"", _AT_FDCWD, os.fsencode(folder),
                  _MOVE_MOUNT_F_EMPTY_PATH)  # fmt: skip

    try:
        namespace.in_a_thread(attach)
    except OSError as error:
        raise HostError(f"could not mount {folder} into a {place}: {error.strerror}") from error
    finally:
        os.close(here)


def _let_through(folder: Path) -> None:
    """Let every user reach ``folder``, in a container: its image's /root, or folders just made with a strict umask,
    would bar the programs that the folder is for. What the host has mounted above it stays as it is."""
    own = Path("/").stat().st_dev
    for above in folder.parents:
        state = above.stat()
        if state.st_dev == own and state.st_mode & 0o011 != 0o011:
            above.chmod(stat.S_IMODE(state.st_mode) | 0o011)


def _call(doing: str, folder: Path, name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        raise HostError(f"could not {doing} {folder}: {os.strerror(ctypes.get_errno())}")
    return result
