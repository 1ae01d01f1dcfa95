"""Find processes of a node: by network namespace, and by the pid that they have in a container."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["is_inside", "pid_on_host"]


def is_inside(netns: Path, pid: int) -> bool:
    """Return whether process ``pid`` exists and is in this network namespace."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == netns.stat().st_ino
    except OSError:
        return False


def pid_on_host(netns: Path, pid: int) -> int:
    """Return the host's pid of the process in this network namespace that has ``pid`` in a child pid namespace.

    See pid_namespaces(7); 0 if there is none.
    """
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
