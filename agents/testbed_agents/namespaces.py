"""Enter namespaces, give up root, and end with the parent process: setns(2), capabilities(7), prctl(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Mapping
from typing import Any

_KINDS = {"net": 0x40000000, "uts": 0x04000000, "ipc": 0x08000000, "mnt": 0x00020000}
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 8, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAP_SETPCAP = 8
_CAPABILITY_VERSION_3 = 0x20080522

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


def become(user: Mapping[str, Any]) -> None:
    """Become ``user`` for good: groups, gid and uid; empty bounding, inheritable and ambient sets; no_new_privs.

    Clears PDEATHSIG, so call :func:`die_with` afterwards. A process that is not root keeps its uid and groups. Raises
    OSError.
    """
    if os.geteuid() == 0:
        _prctl("PR_SET_KEEPCAPS", _PR_SET_KEEPCAPS, 1)  # the bounding set is emptied after the change of uid
        os.setgroups([int(group) for group in user["groups"]])
        os.setresgid(*[int(user["gid"])] * 3)
        os.setresuid(*[int(user["uid"])] * 3)
        _set_capabilities(1 << _CAP_SETPCAP)
        capability = 0
        while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == 0:
            capability += 1
        if (number := ctypes.get_errno()) != errno.EINVAL:  # EINVAL: beyond the last capability of this kernel
            raise OSError(number, f"prctl(PR_CAPBSET_DROP, {capability}) failed: {os.strerror(number)}")
    _set_capabilities(0)
    _prctl("PR_CAP_AMBIENT_CLEAR_ALL", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)
    for name in user["unset"]:
        os.environ.pop(name, None)
    os.environ.update({str(name): str(value) for name, value in user["environment"].items()})


def _set_capabilities(bits: int) -> None:
    """Set the permitted and effective sets to ``bits`` and empty the inheritable one (capset(2))."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    if _libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset failed: {os.strerror(number)}")


def _prctl(name: str, option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({name}) failed: {os.strerror(number)}")


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends; exit at once if the parent has already ended."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _setns(handle: int, kind: int, path: str) -> None:
    # os.setns needs Python 3.12.
    if _libc.setns(handle, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the namespace: {os.strerror(number)}", path)
