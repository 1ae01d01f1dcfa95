"""TCP congestion controls of the kernel (tcp(7)): those that are loaded, and those in modules loaded on demand."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["has", "lacking"]

_LOADED = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_MODULES = Path("/lib/modules")


def has(name: str) -> bool:
    """Return whether connections can use the congestion control ``name``: a route that names it loads its module."""
    try:
        if name in _LOADED.read_text().split():
            return True
    except OSError:
        return True  # without /proc it is not known, and nothing is claimed
    try:
        listed = (_MODULES / os.uname().release / "modules.dep").read_text()
    except OSError:
        return False
    return any(Path(line.partition(":")[0]).name.partition(".")[0] == f"tcp_{name}" for line in listed.splitlines())


def lacking(name: str) -> str:
    """Return what a topology that names ``name`` loses on this host; empty if the kernel has it."""
    return "" if has(name) else f"this kernel lacks the TCP congestion control {name}, and uses its default instead"
