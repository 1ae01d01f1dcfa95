"""Processes of a node: whether one is in it, and which one it is by the number that it has in a container."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["is_inside", "pid_on_host"]


def is_inside(netns: Path, pid: int) -> bool:
    """Whether there is such a process, by its number here, and it is in this network namespace."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == netns.stat().st_ino
    except OSError:
        return False


def pid_on_host(netns: Path, pid: int) -> int:
    """The number that we know it by: of the process that is ``pid`` in a pid namespace below ours (pid_namespaces(7))
    and is in this network namespace; 0 if there is none."""
    try:
        inode = netns.stat().st_ino
    except OSError:
        return 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                lines = (entry / "status").read_text(errors="replace").splitlines()
                numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
                if len(numbers) > 1 and numbers[-1] == str(pid) and (entry / "ns" / "net").stat().st_ino == inode:
                    return int(entry.name)
    return 0
