"""Find the processes of a launched program inside a lab's nodes, children that left their rank's session included.

A process belongs to a job if it is in a network namespace of the lab's and carries the job's mark in the environment
that it began with (proc(5)), or is in a session that one of the job's ranks began. So what `exec` runs in the same
nodes, and the training agents, are never among them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from typing import Final

from testbed.host.linux import process

__all__ = ["VARIABLE", "end", "find", "mark"]

VARIABLE: Final = "TESTBED_JOB"
"""Variable of a rank's environment, and so of its children's, which says to which job of which lab it belongs."""

_ROUNDS: Final = 5
"""How often processes are looked for: one that is being ended may fork another meanwhile."""


def mark(lab: str, job: str) -> str:
    """Return the value of :data:`VARIABLE`; no lab's name has a slash."""
    return f"{lab}/{job}"


def find(inodes: Collection[int], marked: str, sessions: Collection[int] = ()) -> list[tuple[int, int]]:
    """Return (pid, start time) of the job's processes in network namespaces with these ``inodes``."""
    wanted = f"{VARIABLE}={marked}".encode()
    return [
        (pid, began)
        for pid, began in process.inside(inodes)
        if _session(pid) in sessions or wanted in _environment(pid)
    ]


def end(
    inodes: Collection[int], marked: str, sessions: Collection[int] = (), *, grace_s: float = 0.0
) -> list[tuple[int, int]]:
    """End the job's processes, with ``grace_s`` by SIGTERM first; return those that are left."""
    for number in range(_ROUNDS):
        processes = find(inodes, marked, sessions)
        if not processes:
            return []
        process.end_all(processes, grace_s=0.0 if number else grace_s)
    return find(inodes, marked, sessions)


def _session(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return process.environment(pid)
    return []
