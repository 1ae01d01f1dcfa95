"""Find the processes of a launched program's rank: what the testbed started for it, and whatever that started.

Every rank has a ``TESTBED_FOLDER`` of its own, which its children inherit; it is read from ``/proc/PID/environ``. A
program that overwrites its environment, as to show another title in ``ps``, is found by its session or its parent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.host.linux import process

__all__ = ["Found", "inside", "ranks_of"]

_VARIABLE = b"TESTBED_FOLDER="


@dataclass(frozen=True)
class Found:
    """One process in a node; ``rank``: by its own environment, None if that does not tell."""

    pid: int
    began: int
    parent: int
    session: int
    rank: int | None


def ranks_of(processes: Iterable[Found]) -> dict[int, list[Found]]:
    """Return the processes of each rank: those that say so, then those of their sessions, and all their descendants."""
    listed = list(processes)
    rank_by_pid = {proc.pid: proc.rank for proc in listed if proc.rank is not None}
    sessions: dict[int, set[int]] = {}
    for proc in listed:
        if proc.rank is not None:
            sessions.setdefault(proc.session, set()).add(proc.rank)
    for proc in listed:
        # A session that several ranks share, as of a shell in a container, tells nothing.
        if proc.pid not in rank_by_pid and len(sharing := sessions.get(proc.session, set())) == 1:
            rank_by_pid[proc.pid] = next(iter(sharing))
    grown = True
    while grown:
        descendants = {
            proc.pid: rank_by_pid[proc.parent]
            for proc in listed
            if proc.pid not in rank_by_pid and proc.parent in rank_by_pid
        }
        rank_by_pid |= descendants
        grown = bool(descendants)
    grouped: dict[int, list[Found]] = {}
    for proc in listed:
        if (number := rank_by_pid.get(proc.pid)) is not None:
            grouped.setdefault(number, []).append(proc)
    return grouped


def inside(inodes: Collection[int]) -> list[Found]:
    """Return the processes in the network namespaces ``inodes``, without the first ones of containers."""
    processes = []
    for pid, began in process.inside(inodes):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            environment = process.environment(pid)
            if not process.is_first(pid):
                processes.append(Found(pid, began, int(fields[1]), int(fields[3]), _rank(environment)))
    return processes


def _rank(environment: Iterable[bytes]) -> int | None:
    """Return the rank that an environment names: the number at the end of its folder, ``…/rank-3``."""
    for variable in environment:
        if variable.startswith(_VARIABLE):
            number = variable.rpartition(b"/rank-")[2]
            return int(number) if number.isdigit() else None
    return None
