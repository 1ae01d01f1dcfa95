"""The handler of faults of ranks and nodes: paused, slowed, throttled, killed, without power.

They act on the ranks of a launched program while one runs (``program_ranks.py``), else on those of the agents. Signals
to an agent go through its fork server, which holds a pidfd, so a recycled pid is never hit, in containers neither. A
node loses power by the end of every process in its network namespace, except a container's first: its end would remove
the container's links for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed, Unpowered
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, LabError, TestbedError, raise_all
from testbed.host.drivers.driver import Facts
from testbed.host.linux import namespace, process
from testbed.keeper.agent_pool import AgentPool
from testbed.keeper.program_ranks import ProgramRanks, let_run

__all__ = ["KINDS", "RankFaultCleanup", "RankFaultHandler"]

KINDS: tuple[type[Step], ...] = (Paused, Slowed, Throttled, Killed, Unpowered)


class RankFaultHandler:
    """Applies faults of ranks; ``path`` returns the handle of a node's network namespace."""

    def __init__(self, agents: AgentPool, programs: ProgramRanks, path: Callable[[str], Path]) -> None:
        self._agents, self._programs, self._path = agents, programs, path

    def make(self, step: Step) -> Facts:
        if isinstance(step, Killed):
            if self._programs.kill(step.rank):
                return {"program": True}
            self._refuse_missing(step.rank)
            self._agents.hold([step.rank])
            self._agents.await_end([step.rank])
        elif isinstance(step, Unpowered):
            self._agents.hold(step.ranks)
            self._empty(step.node)
            self._agents.await_end(step.ranks, with_servers=self._agents.servers_inside)
        return {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if isinstance(step, Killed) and not facts.get("program"):
            self._agents.release([step.rank])
        elif isinstance(step, Unpowered):
            self._agents.release(step.ranks)

    def assign(self, properties: Sequence[Property]) -> None:
        failures: list[TestbedError] = []
        for step in properties:
            try:
                if isinstance(step, Paused):
                    of_program = self._is_of_program(step.rank, step.paused)
                    (self._programs if of_program else self._agents).pause(step.rank, step.paused)
                elif isinstance(step, Slowed):
                    of_program = self._is_of_program(step.rank, step.by > 0)
                    (self._programs if of_program else self._agents).slow(step.rank, step.by)
                elif isinstance(step, Throttled):
                    of_program = self._is_of_program(step.rank, step.cpu is not None)
                    (self._programs if of_program else self._agents).throttle(step.rank, step.node, step.cpu)
            except TestbedError as error:
                failures.append(error)
        raise_all(failures)

    def _is_of_program(self, rank: int, begins: bool) -> bool:
        """Whether a property of ``rank`` is for a program's: while one runs, and until what was done to it is undone.

        Raises LabError for a fault that ``begins`` where there is neither a program nor an agent.
        """
        if self._programs.is_touched(rank):
            return True
        if not begins:
            return False  # a limit of the node, or nothing: either way the agents' own rest value is that of a program
        if self._programs.processes(rank):
            return True
        self._refuse_missing(rank)
        return False

    def _refuse_missing(self, rank: int) -> None:
        if rank not in self._agents.ranks:
            raise LabError(f"rank {rank} runs no program at present")

    def _empty(self, node: str) -> None:
        """End every process of a node. Raises HostError when one does not end."""
        inode = namespace.inode(self._path(node))
        inside = process.inside({inode}) if inode else []
        # Processes may fork meanwhile: the second pass ends those, the third finds none.
        for _ in range(3):
            victims = [(pid, began) for pid, began in inside if not process.is_first(pid)]
            if not victims:
                return
            if stuck := process.end_all(victims):
                raise HostError(f"processes {stuck} of {node} did not end after SIGKILL")
            inside = process.inside({inode})


class RankFaultCleanup:
    """Undoes faults of ranks when the keeper is gone. Its agents are gone with it, but not a program that it had
    stopped: every process of the lab's ``nodes`` is continued."""

    def __init__(self, nodes: Callable[[], Sequence[str]], path: Callable[[str], Path]) -> None:
        self._nodes, self._path = nodes, path

    def make(self, step: Step) -> Facts:
        raise LabError("the keeper of this lab is gone; take the lab down and bring it up again")

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        return None

    def assign(self, properties: Sequence[Property]) -> None:
        let_run(filter(None, (namespace.inode(self._path(node)) for node in self._nodes())))
