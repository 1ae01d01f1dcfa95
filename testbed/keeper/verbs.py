"""What a lab's keeper is asked over its socket: each verb is a method that begins with ``do_``."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.plan import codec
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.errors import HostError, LabError, UserError
from testbed.host.drivers import containerlab
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.linux import cgroup, process
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.engine import LAB
from testbed.keeper.event_log import log
from testbed.keeper.journal import EMULATOR_DIED
from testbed.keeper.reachability import unheard
from testbed.keeper.service import Notice
from testbed.version import __version__

if TYPE_CHECKING:
    from testbed.keeper.keeper import Keeper

__all__ = ["Verbs"]


class Verbs:
    """See the module. Arguments and answers are JSON; ``owner`` is the connection of whoever asks."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def call(self, verb: str, arguments: dict[str, Any], connection: socket.socket, notice: Notice) -> Any:
        method = getattr(self, "do_" + verb, None)
        if method is None:
            raise LabError(f"this keeper does not know '{verb}'")
        if verb == "build":
            self._keeper.builder = connection
            arguments["notice"] = notice
        elif verb in ("schedule", "unschedule", "waits"):
            arguments["owner"] = connection
        return method(**arguments)

    def do_hello(self) -> dict[str, Any]:
        emulator = self._keeper.emulator.emulator
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self._keeper.journal.state,
            "since_unix_s": self._keeper.up_since,
            "emulator": emulator.info.name if emulator else "none",
            "scheduling": emulator.info.scheduling if emulator else "",
            "emulator_pid": emulator.pid if emulator else None,
            "emulator_died": bool(self._keeper.journal.owned(EMULATOR_DIED)),
            "segmented": list(emulator.segmented()) if emulator else [],
            "dead_containers": self._keeper.dead_containers,
            "waits": list(self._keeper.waits.values()),
            "prometheus": self._keeper.prometheus.address,
            "prometheus_ended": self._keeper.prometheus.ended,
        }

    def do_build(self, plan: list[dict[str, Any]], notice: Callable[[str], None]) -> None:
        """Apply the lab's own plan; the connection that asks must stay open until ``do_open``."""
        parsed = tuple(codec.from_dict(it) for it in plan)
        self._keeper.do(lambda: self._keeper.engine.apply(LAB, parsed, notice))
        self._keeper.know_topology()

    def do_open(self, state: str = "up") -> None:
        """The lab is whole (or ``kept``, broken, on the user's wish)."""
        self._keeper.do(lambda: self._keeper.journal.set_state(state))
        log(f"lab {self._keeper.lab.name} is {state}")
        # What a lab is made of stays as long as it does: a collector that looked through it all would hold faults up.
        self._keeper.do(gc.freeze)
        # Not before: building takes seconds of work, which need no priority.
        self._keeper.do(use_realtime_priority)

    def do_apply(self, owner: str, plan: list[dict[str, Any]]) -> None:
        parsed = tuple(codec.from_dict(it) for it in plan)
        self._keeper.do(lambda: self._keeper.engine.apply(owner, parsed))

    def do_undo(self, owner: str) -> None:
        self._keeper.do(lambda: self._keeper.engine.undo(owner))

    def do_stats(self) -> dict[str, Any]:
        """Counters of every direction, and what the emulator has used of the CPU, in seconds."""
        emulator = self._keeper.emulator.emulator
        if emulator is None:
            return {"t": time.monotonic(), "directions": [], "cpu_s": 0.0}
        found = emulator.stats()
        return {
            "t": time.monotonic(),
            "cpu_s": process.cpu_seconds(emulator.pid) if emulator.pid else 0.0,
            "directions": [_counted(it) for it in found],
        }

    def do_inject(self, fault: dict[str, Any]) -> dict[str, Any]:
        """Begin a fault; ``fault`` has type, target, parameters as written and for_s (seconds or None)."""
        return self._keeper.faults.inject(*self._compiled(fault))

    def do_schedule(self, owner: socket.socket, faults: list[dict[str, Any]]) -> None:
        """Begin faults when they are due: ``planned_t`` of CLOCK_MONOTONIC. Those of one time begin as one.

        Nothing is scheduled unless all of them can be. What has not begun when the connection ends never will.
        """
        self._keeper.schedule.add(owner, [self._compiled(fault) for fault in faults])

    def do_unschedule(self, owner: socket.socket) -> int:
        """Forget what this connection scheduled and has not begun; how much that was."""
        return self._keeper.schedule.cancel(owner)

    def _compiled(self, fault: dict[str, Any]) -> tuple[dict[str, Any], Compiled]:
        if self._keeper.topology is None:
            raise LabError("the lab is not whole yet")
        if self._keeper.dead_containers:
            raise LabError(containerlab.dead(self._keeper.lab.name, self._keeper.dead_containers[0]))
        compiled = compile_fault(self._keeper.topology, fault["type"], fault["target"], fault["parameters"])
        steps = [step for phase in compiled.phases for step in phase.steps]
        if not self._keeper.agents.ranks and any(isinstance(it, Killed | Paused | Slowed | Throttled) for it in steps):
            raise UserError(f"{fault['type']}: this lab has no training agents, which is what it happens to")
        if any(isinstance(it, Throttled) for it in steps):
            try:
                cgroup.hierarchy()
            except HostError as error:
                raise HostError(f"{fault['type']} cpu=: {error}; slower= needs no control group") from error
        return {**fault, "links": list(compiled.links), "nodes": list(compiled.nodes)}, compiled

    def do_heal(self, ids: list[str], everything: bool = False) -> list[dict[str, Any]]:
        """Undo these faults; those that are over already are left out of the answer.

        ``everything``: links on their second path go back at once, whatever their wait-to-restore.
        """
        try:
            healed = self._keeper.faults.heal(ids)
        finally:
            if everything:
                self._keeper.do(self._keeper.protection.restore)
        if everything:
            # Of a fault that could not begin, and could not be undone either.
            self._keeper.do(self._keeper.engine.settle)
        return healed

    def do_protection(self) -> dict[str, str]:
        """Of each protected link what its traffic is on."""
        return self._keeper.protection.states()

    def do_faults(self) -> list[dict[str, Any]]:
        return self._keeper.faults.records()

    def do_events(self, since: int = 0, wait_s: float = 0.0) -> dict[str, Any]:
        """Events from number ``since`` on; waits up to ``wait_s`` for one."""
        return self._keeper.events.since(since, wait_s)

    def do_ranks(self) -> list[dict[str, Any]]:
        return self._keeper.rank_states()

    def do_train(self, message: dict[str, Any]) -> None:
        """Give all ranks a job, fresh processes where they had one before."""
        self._keeper.do(self._keeper.agents.revive)
        # Not in the engine's thread: deploying takes part of a second and more, and faults that are due need it.
        self._keeper.agents.train(message)

    def do_dark(self) -> list[str]:
        """Links without a carrier at one of their ends at least."""
        return sorted(self._keeper.carriers.dark())

    def do_unheard(self) -> list[list[str]]:
        """Pairs of sites with ranks of which one does not answer the other, whatever the carriers say. Takes seconds
        where there are any."""
        if self._keeper.topology is None:
            return []
        return unheard(self._keeper.topology, self._keeper.agents.ranks.values(), self._keeper.driver.path)

    def do_dead_containers(self) -> list[str]:
        """Nodes, gateways and others whose containers have ended by themselves: they do not come back."""
        return self._keeper.dead_containers

    def do_tell(self, event: str, fields: dict[str, Any]) -> None:
        """Put something that happened to a job among the lab's events."""
        self._keeper.events.add(event, **fields)

    def do_waits(self, owner: socket.socket, why: str) -> None:
        """A job waits to begin again, for as long as this connection stands: for `status`."""
        self._keeper.waits[owner] = why

    def do_stop(self, job: str, save: bool = False) -> None:
        self._keeper.agents.stop(job, save)

    def do_show(self, folder: str, management: bool = False) -> None:
        """Have a folder of the host inside the nodes too, and in the ``management`` network's container, at the same
        path; namespaces share it anyway."""
        if self._keeper.containers is not None and self._keeper.topology is not None:
            also = (MANAGEMENT,) if management else ()
            self._keeper.containers.show(Path(folder), (*self._keeper.topology.node_names, *also))

    def do_down(self) -> None:
        self._keeper.down()


def _counted(stats: DirectionStats) -> dict[str, Any]:
    return {
        "direction": stats.direction,
        "packets": stats.packets,
        "segments": stats.segments,
        "bytes": stats.bytes,
        "drops": dict(stats.drops),
        "corrupted": stats.corrupted,
        "duplicated": stats.duplicated,
        "held_back": stats.held_back,
        "queue_bytes": stats.queue_bytes,
        "lateness": {"bounds_s": list(stats.lateness_bounds_s), "counts": list(stats.lateness_counts)},
    }
