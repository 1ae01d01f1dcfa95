"""A folder of the host, shown inside a running container at the same path: what nodes that share the host's file
system have anyway.

A container's mounts are settled when it is created, and which folders a job will need is known only later: a run's
directory, the folder that a program is launched from. The kernel's mount interface can attach one afterwards:
open_tree(2) clones the mount here, move_mount(2) attaches it there (Linux 5.2).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from testbed.errors import HostError, UserError
from testbed.host.linux import namespace

__all__ = ["graft"]

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on every architecture (Documentation/process/adding-syscalls.rst)
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _MOVE_MOUNT_F_EMPTY_PATH = 1, os.O_CLOEXEC, 4
_AT_FDCWD = -100

_OWN: Final = tuple(map(Path, (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt/testbed/agents", "/opt/testbed/bin", "/opt/testbed/lib", "/proc",
    "/sbin", "/sys", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/usr/sbin",
)))  # fmt: skip
"""What a container has of its own and cannot do without (agents/Dockerfile): it may not be hidden by ours."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def graft(folder: Path, pid: int) -> None:
    """Show ``folder`` (absolute) in the mount namespace of process ``pid``, read and write. Nothing if it is there.

    It goes with the container. Raises UserError for a folder that would hide what the container lives by, HostError.
    """
    plain = Path(os.path.normpath(folder))
    if any(plain.is_relative_to(own) or own.is_relative_to(plain) for own in _OWN):
        raise UserError(
            f"{folder} cannot be shown inside containers, which have system folders of their own there; work in another"
            " folder, or take --driver netns"
        )
    here = _call("clone the mount of", folder, "syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(folder),
                 _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)  # fmt: skip

    def attach() -> None:
        there = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mine = folder.stat()
            # A thread's own view of the file system, which ends with it: the others stay where they are.
            _call("leave for", folder, "unshare", namespace.CLONE_FS)
            _call("enter the container for", folder, "setns", there, namespace.CLONE_NEWNS)
        finally:
            os.close(there)
        folder.mkdir(parents=True, exist_ok=True)
        seen = folder.stat()
        if (seen.st_dev, seen.st_ino) != (mine.st_dev, mine.st_ino):
            _call("attach", folder, "syscall", _MOVE_MOUNT, here, b"", _AT_FDCWD, os.fsencode(folder),
                  _MOVE_MOUNT_F_EMPTY_PATH)  # fmt: skip

    try:
        namespace.in_a_thread(attach)
    except OSError as error:
        raise HostError(f"could not show {folder} inside a container: {error.strerror}") from error
    finally:
        os.close(here)


def _call(doing: str, folder: Path, name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        raise HostError(f"could not {doing} {folder}: {os.strerror(ctypes.get_errno())}")
    return result
