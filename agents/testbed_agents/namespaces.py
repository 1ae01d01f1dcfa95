"""Enter namespaces, and end with the parent process: setns(2), prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

_KINDS = {"net": 0x40000000, "uts": 0x04000000, "ipc": 0x08000000, "mnt": 0x00020000}
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def enter(paths: Mapping[str, str]) -> None:
    """Move this single-threaded process permanently into the namespaces ``{kind: path of a handle}``.

    Kinds: net, uts, ipc, mnt; others are unchanged. Raises OSError or ValueError, which name the handle.
    """
    if unknown := set(paths) - set(_KINDS):
        raise ValueError(f"unknown kind of namespace {', '.join(sorted(unknown))} (available: {', '.join(_KINDS)})")
    # All handles are opened first: in the new mount namespace, a path may name something else.
    handles = {kind: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for kind, path in paths.items()}
    try:
        for kind in sorted(handles, key=list(_KINDS).index):
            _setns(handles[kind], _KINDS[kind], paths[kind])
    finally:
        for handle in handles.values():
            os.close(handle)


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends; exit at once if the parent has already ended."""
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def _setns(handle: int, kind: int, path: str) -> None:
    # os.setns needs Python 3.12.
    if _libc.setns(handle, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the namespace: {os.strerror(number)}", path)
