"""Faults of the ranks of a launched program: killed, paused, slowed, throttled, without its help.

The testbed's agents take part in their faults; a program of the user's does not know of any. Its processes are found
when a fault begins (``host/linux/rank_processes.py``), and signals reach them by pidfd. A *slowed* rank runs for
:data:`RUN_S` and is stopped (SIGSTOP) for as much longer as it is to be slower, in turn, so that its computing and its
communication both take longer, whatever else the machine does.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from testbed.errors import HostError, LabError
from testbed.host.linux import namespace, process, rank_processes
from testbed.keeper.throttle import Throttle

__all__ = ["RUN_S", "ProgramRanks", "let_run"]

RUN_S: Final = 0.01
"""How long a slowed rank runs at a time. Shorter turns spread the slowness more evenly, and cost more switches."""

_SEARCH_S: Final = 1.0
"""How often a slowed rank is searched for new processes."""


class ProgramRanks:
    """The ranks of the program that a lab runs; ``nodes`` returns the nodes, ``path`` a node's network namespace."""

    def __init__(self, lab: str, path: Callable[[str], Path]) -> None:
        self._path, self._throttle = path, Throttle(lab, path)
        self.nodes: tuple[str, ...] = ()
        self.ranks_per_node = 1
        """Of the program that was launched last."""
        self._paused: set[int] = set()
        self._slow: dict[int, _Slowness] = {}

    def running(self) -> bool:
        """Whether any rank of a program has a process."""
        inodes = {inode for node in self.nodes if (inode := namespace.inode(self._path(node)))}
        return bool(inodes and rank_processes.ranks_of(rank_processes.inside(inodes)))

    def processes(self, rank: int) -> list[tuple[int, int]]:
        """Return (pid, start time) of the processes of a rank; none where no program runs."""
        number = rank // self.ranks_per_node
        if number >= len(self.nodes):
            return []
        inode = namespace.inode(self._path(self.nodes[number]))
        by_rank = rank_processes.ranks_of(rank_processes.inside({inode})) if inode else {}
        return [(rank_process.pid, rank_process.began) for rank_process in by_rank.get(rank, [])]

    def is_touched(self, rank: int) -> bool:
        """Whether a fault has paused or slowed this rank of a program."""
        return rank in self._paused or rank in self._slow

    def kill(self, rank: int) -> bool:
        """Kill a rank's processes; return whether there were any. Raises HostError when one does not end."""
        processes = self.processes(rank)
        # Processes may fork meanwhile: the second pass ends those, the third finds none.
        for _ in range(3):
            victims = self.processes(rank)
            if not victims:
                break
            if stuck := process.end_all(victims):
                raise HostError(f"processes {stuck} of rank {rank} did not end after SIGKILL")
        return bool(processes)

    def pause(self, rank: int, paused: bool) -> None:
        """Stop or continue a rank's processes. Raises LabError if there are none to stop."""
        (self._paused.add if paused else self._paused.discard)(rank)
        if not paused and rank in self._slow:
            return  # it runs again in its turn
        self._send(rank, signal.SIGSTOP if paused else signal.SIGCONT, needed=paused)

    def slow(self, rank: int, by: float) -> None:
        """Make a rank take ``1 + by`` times as long; 0: as it is. Raises LabError if it has no process."""
        if (before := self._slow.pop(rank, None)) is not None:
            before.stop()
        if by > 0:
            if not self.processes(rank):
                raise LabError(_none(rank))
            self._slow[rank] = _Slowness(lambda: self.processes(rank), by, lambda: rank in self._paused)
        elif rank not in self._paused:
            self._send(rank, signal.SIGCONT, needed=False)

    def throttle(self, rank: int, node: str, cpu: float | None) -> None:
        """Limit a rank's processes, or the whole container of its node, to ``cpu`` CPUs; None: no limit.

        Raises LabError if there are none to limit, HostError.
        """
        processes = self.processes(rank) if cpu is not None else []
        if cpu is not None and not processes:
            raise LabError(_none(rank))
        self._throttle.set(node, cpu, processes[0][0] if processes else 0)
        for pid, _ in processes[1:]:
            self._throttle.join(node, pid)

    def _send(self, rank: int, number: signal.Signals, *, needed: bool) -> None:
        processes = self.processes(rank)
        if needed and not processes:
            raise LabError(_none(rank))
        for pid, began in processes:
            process.send(pid, began, number)


class _Slowness:
    """Stops and continues processes in turn, in a thread, until :meth:`stop`."""

    def __init__(self, find: Callable[[], list[tuple[int, int]]], by: float, paused: Callable[[], bool]) -> None:
        self._find, self._by, self._paused = find, by, paused
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="slowness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        processes = self._find()
        searched_t = time.monotonic()
        while not self._over.wait(RUN_S):
            if time.monotonic() - searched_t > _SEARCH_S:
                with contextlib.suppress(OSError):
                    processes, searched_t = self._find(), time.monotonic()
            if self._paused():
                continue
            _tell(processes, signal.SIGSTOP)
            self._over.wait(self._by * RUN_S)
            if not self._paused():
                _tell(processes, signal.SIGCONT)


def let_run(inodes: Iterable[int]) -> None:
    """Continue every process in these network namespaces that a keeper, which is gone, has stopped."""
    _tell(process.inside(set(inodes)), signal.SIGCONT)


def _tell(processes: Iterable[tuple[int, int]], number: signal.Signals) -> None:
    for pid, began in processes:
        process.send(pid, began, number)


def _none(rank: int) -> str:
    return f"rank {rank} runs no program at present"
