"""The handler of faults of ranks and nodes: paused, slowed, throttled, killed, without power.

Signals go through the rank's fork server, which holds a pidfd, so a recycled pid is never hit, in containers neither. A
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
from testbed.errors import HostError, TestbedError, raise_all
from testbed.host.drivers.driver import Facts
from testbed.host.linux import namespace, process
from testbed.keeper.agent_pool import AgentPool

__all__ = ["KINDS", "RankFaultHandler"]

KINDS: tuple[type[Step], ...] = (Paused, Slowed, Throttled, Killed, Unpowered)


class RankFaultHandler:
    """Applies faults of ranks; ``path`` returns the handle of a node's network namespace."""

    def __init__(self, agents: AgentPool, path: Callable[[str], Path]) -> None:
        self._agents, self._path = agents, path

    def make(self, step: Step) -> Facts:
        if isinstance(step, Killed):
            self._agents.hold([step.rank])
            self._agents.await_end([step.rank])
        elif isinstance(step, Unpowered):
            self._agents.hold(step.ranks)
            self._empty(step.node)
            self._agents.await_end(step.ranks, with_servers=self._agents.servers_inside)
        return {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if isinstance(step, Killed):
            self._agents.release([step.rank])
        elif isinstance(step, Unpowered):
            self._agents.release(step.ranks)

    def assign(self, properties: Sequence[Property]) -> None:
        failures: list[TestbedError] = []
        for it in properties:
            try:
                if isinstance(it, Paused):
                    self._agents.pause(it.rank, it.paused)
                elif isinstance(it, Slowed):
                    self._agents.slow(it.rank, it.by)
                elif isinstance(it, Throttled):
                    self._agents.throttle(it.rank, it.node, it.cpu)
            except TestbedError as error:
                failures.append(error)
        raise_all(failures)

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
