"""The API of a lab's keeper: each public method of :class:`KeeperApi` is a request, by its name and its arguments.

The keeper answers a request by a call of the method. A command calls it through ``client.py``, over the socket. So the
signature is the protocol of both ends, and the docstring the protocol's documentation.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.core.plan.step import Plan
from testbed.errors import HostError, LabError, UserError, raise_all
from testbed.host.drivers import containerlab
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.linux import cgroup, process
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.carriers import unreachable_sites
from testbed.keeper.engine import LAB
from testbed.keeper.event_log import log
from testbed.keeper.protocol import (
    ClaimAnswer,
    DirectionCounters,
    EventsPage,
    FaultRecord,
    FaultSpec,
    HelloAnswer,
    InForceAnswer,
    JobRecord,
    RankState,
    RecordedPackets,
    StallsAnswer,
    StatsAnswer,
)
from testbed.keeper.service import Caller
from testbed.version import __version__

if TYPE_CHECKING:
    from testbed.keeper.keeper import Keeper

__all__ = ["KeeperApi"]


class KeeperApi:
    """The requests of one connection, ``caller``, answered from the threads of ``service.py``."""

    def __init__(self, keeper: Keeper, caller: Caller) -> None:
        self._keeper, self._caller = keeper, caller

    def hello(self) -> HelloAnswer:
        """Report the state of the lab and of its resident processes."""
        keeper, emulator = self._keeper, self._keeper.emulator.emulator
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": keeper.journal.state,
            "since_unix_s": keeper.up_since,
            "emulator": emulator.info.name if emulator else "none",
            "scheduling": emulator.info.scheduling if emulator else "",
            "emulator_pid": emulator.pid if emulator else None,
            "emulator_died": keeper.emulator_died,
            "segmented": list(emulator.segmented()) if emulator else [],
            "dead_containers": keeper.dead_containers,
            "waits": list(keeper.waits.values()),
            "prometheus": keeper.prometheus.address,
            "prometheus_ended": keeper.prometheus.ended,
            "taken_off_s": keeper.emulator.taken_off_s,
            "captures": keeper.captures.running,
        }

    # ---- life of the lab

    def build(self, *, plan: Plan) -> None:
        """Apply the lab's own plan; a notice names the kind of each group of Steps. Raises the error of a Step that
        failed.

        If the connection ends before :meth:`open`, the keeper takes the lab down.
        """
        self._keeper.builder = self._caller
        self._keeper.do(lambda: self._keeper.engine.apply(LAB, plan, self._caller.notice))
        # In the engine's thread too, which has no real-time priority before the lab is up: this takes a moment.
        self._keeper.do(self._keeper.load_topology)

    def open(self, *, state: Literal["up", "kept"] = "up") -> None:
        """Declare a lab that is being built complete (``up``), or ``kept``: partial, and left for inspection."""

        def set_state() -> None:
            current = self._keeper.journal.state
            if current != "building":  # a lab that is going must not count as up again
                raise LabError(f"lab {self._keeper.lab.name} is not being built: its state is '{current}'")
            self._keeper.journal.set_state(state)

        self._keeper.do(set_state)
        log(f"lab {self._keeper.lab.name} is {state}")
        # The objects of a lab live as long as it does: a collector that traversed them all would delay faults.
        self._keeper.do(gc.freeze)
        # Only now: bring-up is seconds of work that needs no priority.
        self._keeper.do(use_realtime_priority)

    def apply(self, *, owner: str, plan: Plan) -> None:
        """Apply Steps beside the lab's own, for ``owner``. Raises the error of a Step that failed."""
        self._keeper.do(lambda: self._keeper.engine.apply(owner, plan))

    def undo(self, *, owner: str) -> None:
        """Undo all Steps of ``owner``; having none is no error. Raises HostError."""
        self._keeper.do(lambda: self._keeper.engine.undo(owner))

    def down(self) -> None:
        """Undo everything and end. Raises HostError where something remains; the journal keeps it."""
        self._keeper.down()

    # ---- fibers

    def stats(self) -> StatsAnswer:
        """Read the emulator's counters; no directions where there is no emulator."""
        emulator = self._keeper.emulator.emulator
        if emulator is None:
            return {"t": time.monotonic(), "directions": [], "cpu_s": 0.0}
        directions = emulator.stats()
        return {
            "t": time.monotonic(),
            "cpu_s": process.cpu_seconds(emulator.pid) if emulator.pid else 0.0,
            "directions": [_counters(direction) for direction in directions],
        }

    def stalls(self, *, since: int = 0) -> StallsAnswer:
        """Return the stalls of the host's cores from number ``since`` on; the keeper keeps the latest 200,000."""
        watch = self._keeper.stalls
        following, stalls = watch.since(since)
        return {"watching": watch.watching, "next": following, "stalls": stalls}

    def record_packets(self, *, nonce: int = 0) -> RecordedPackets:
        """Return the packets recorded so far, then record those with ``nonce`` in their mark (0: none)."""
        emulator = self._keeper.emulator.emulator
        record = None if emulator is None else emulator.record(nonce)
        if record is None:
            return {"supported": False, "packets": [], "lost": 0}
        packets = [dataclasses.astuple(packet) for packet in record.packets]
        return {"supported": True, "packets": packets, "lost": record.lost}

    def in_force(self, *, compare: list[str] | None = None) -> InForceAnswer:
        """Return what is in force on every direction and who made it; none while the lab is being built.

        ``compare``: directions that are compared with the emulator's own values whether or not a fault changes them.
        """
        in_force, read_back = self._keeper.in_force, self._keeper.emulator.differences
        if in_force is None:
            return {"directions": [], "differences": []}
        directions = in_force.all()
        differences = in_force.differences(read_back, compare or ())
        # A fault may have begun in between: what is wrong stays wrong.
        differences = differences and in_force.differences(read_back, compare or ())
        return {"directions": directions, "differences": differences}

    def protection_states(self) -> dict[str, str]:
        """Return the state of each protected link: ``working``, ``protection``, ``switching`` or ``dark``."""
        return self._keeper.protection.states()

    def dark_links(self) -> list[str]:
        """Return the links without a carrier at either end or both, sorted."""
        return sorted(self._keeper.carriers.dark())

    def unreachable_sites(self) -> list[tuple[str, str]]:
        """Return the pairs of sites with ranks that do not reach each other, whatever their carriers say: a silent cut.

        Takes seconds where there are any.
        """
        if self._keeper.topology is None:
            return []
        return unreachable_sites(self._keeper.topology, self._keeper.agents.ranks.values(), self._keeper.driver.path)

    def begin_capture(self, *, directions: list[str], before: bool = False) -> str:
        """Record that packets of ``directions`` are captured from now on, until :meth:`end_capture` or the end of the
        connection; return the capture's id."""
        return self._keeper.captures.begin(self._caller, directions, before)

    def end_capture(self, *, counted: dict[str, int]) -> None:
        """Record the end of the connection's capture, with what it counted; see ``lab/capture.py``."""
        self._keeper.captures.end(self._caller, counted)

    # ---- faults

    def inject(self, *, kind: str, target: str, parameters: dict[str, str], for_s: float | None = None) -> FaultRecord:
        """Inject a fault, with parameters as the user wrote them, and return when it is in force.

        ``for_s`` None: until it is healed, or ends by itself. Raises UserError, UnknownName, HostError.
        """
        fault: FaultSpec = {
            "type": kind,
            "target": target,
            "parameters": parameters,
            "for_s": for_s,
            "planned_t": None,
            "scheduled": None,
        }
        return self._keeper.faults.begin([(fault, self._compile(fault))])[0]

    def schedule(self, *, faults: list[FaultSpec]) -> None:
        """Schedule faults for their ``planned_t``; those of one time begin together.

        Either all are accepted or none. Those that have not begun when the connection ends are dropped. Raises
        UserError, UnknownName, HostError.
        """
        self._keeper.faults.schedule(self._caller, [(fault, self._compile(fault)) for fault in faults])

    def unschedule(self) -> None:
        """Drop the faults scheduled over this connection that have not begun. None begins after the answer."""
        self._keeper.faults.unschedule(self._caller)

    def heal(self, *, ids: list[str], everything: bool = False) -> list[FaultRecord]:
        """Undo faults by their ids; return those that were still active. Raises HostError.

        ``everything``: links that run on their protection path also revert at once, before their wait-to-restore is
        over.
        """
        healed: list[FaultRecord] = []
        failures: list[Exception] = []
        works: list[Callable[[], object]] = [lambda: healed.extend(self._keeper.faults.heal(ids))]
        if everything:
            works.append(lambda: self._keeper.do(self._keeper.protection.restore))
            # Values of a fault that could neither begin nor be undone.
            works.append(lambda: self._keeper.do(self._keeper.engine.settle))
        for work in works:
            try:
                work()
            except Exception as error:
                failures.append(error)
        raise_all(failures)
        return healed

    def faults(self) -> list[FaultRecord]:
        """Return every fault since the lab came up, in the order in which they began; of thousands that have ended, the
        latest."""
        return self._keeper.faults.records()

    def _compile(self, fault: FaultSpec) -> Compiled:
        """Compile a fault for this lab. Raises UserError, UnknownName, HostError, LabError."""
        keeper = self._keeper
        if keeper.topology is None:
            raise LabError("the lab is still being built")
        if keeper.dead_containers:
            raise LabError(containerlab.dead(keeper.lab.name, keeper.dead_containers[0]))
        compiled = compile_fault(
            keeper.topology, fault["type"], fault["target"], fault["parameters"], keeper.programs.ranks_per_node
        )
        steps = [step for phase in compiled.phases for step in phase.steps]
        of_ranks = any(isinstance(step, Killed | Paused | Slowed | Throttled) for step in steps)
        if of_ranks and not keeper.agents.ranks and not keeper.programs.running():
            raise UserError(f"{fault['type']}: this lab has no training agents for it to act on, and runs no program")
        if any(isinstance(step, Throttled) for step in steps):
            try:
                cgroup.hierarchy()
            except HostError as error:
                raise HostError(f"{fault['type']} cpu=: {error}; slower= needs no control group") from error
        return compiled

    # ---- events

    def events(self, *, since: int = 0, wait_s: float = 0.0) -> EventsPage:
        """Return the events from number ``since`` on; wait up to ``wait_s`` seconds (10 at most) for the first one."""
        return self._keeper.events.since(since, wait_s)

    def subscribe(self, *, since: int | None = None) -> None:
        """Push an :class:`~testbed.keeper.protocol.Update` over this connection at once, as soon as anything changes,
        and every ``HEARTBEAT_S`` if nothing does, until the connection ends. The answer may come after the first
        updates.

        ``since``: number of the first event; None: only events from now on. A subscriber that does not read is dropped.
        """
        self._keeper.publisher.subscribe(self._caller, since)

    def add_event(self, *, event: str, fields: dict[str, Any]) -> None:
        """Add an event of a job to the lab's events; ``t`` and ``event`` are the keeper's and not among ``fields``."""
        if reserved := sorted({"t", "event", "self"} & fields.keys()):
            raise LabError(f"malformed argument 'fields' of 'add_event': the keeper itself sets '{reserved[0]}'")
        self._keeper.events.add(event, **fields)

    # ---- ranks

    def ranks(self) -> list[RankState]:
        """Return the state of every rank, in order; none in a lab without training agents."""
        return self._keeper.rank_states()

    def train(self, *, message: dict[str, Any]) -> None:
        """Start a job on all ranks, in fresh processes where the old ones have run a job. Raises StorageError.

        ``message`` goes to the agents as it is (docs/design.md); the keeper reads ``job``, ``directory`` and ``data``,
        and refuses one that the agents could not read.
        """
        _refuse_unreadable(message, len(self._keeper.agents.ranks))
        self._keeper.job_slot.admit(message["job"])
        self._keeper.programs.ranks_per_node = 1
        self._keeper.do(self._keeper.agents.revive)
        # Outside the engine's thread: deploying takes up to seconds, and faults that are due need that thread.
        try:
            self._keeper.agents.train(message)
        finally:
            self._keeper.publisher.changed()  # the ranks are training, or fresh

    def announce_program(self, *, ranks_per_node: int) -> None:
        """Announce a program with so many ranks on each node: faults of ranks are for them from now on."""
        self._keeper.programs.ranks_per_node = ranks_per_node

    def ranks_per_node(self) -> int:
        """Return how many ranks the latest job has on each node; 1 before the first."""
        return self._keeper.programs.ranks_per_node

    def await_restart(self, *, why: str) -> None:
        """Show in ``status`` what a job waits for before it restarts, until the connection ends."""
        self._keeper.waits[self._caller] = why

    def stop_ranks(self, *, job: str, save: bool = False) -> None:
        """Have all ranks end a job after their current step; ``save``: with a checkpoint of it."""
        self._keeper.agents.stop(job, save)

    # ---- the job slot

    def claim_job(self, *, kind: str, what: str, pid: int, began: int, detached: bool = False) -> ClaimAnswer:
        """Take the lab's job slot, which one job of any kind holds at a time, until :meth:`release_job`.

        If the connection or the process ``pid``, which began at clock tick ``began``, ends first, the keeper ends the
        job's ranks and frees the slot. A request to end the job is pushed over the connection (``Update.stop``).
        """
        return self._keeper.job_slot.claim(self._caller, kind, what, pid, began, detached=detached)

    def describe_job(self, *, job: str, run: str, sessions: list[int]) -> None:
        """Set the run directory of the job that holds the slot, and the sessions of its programs (setsid(2))."""
        self._keeper.job_slot.describe(job, run, sessions)

    def release_job(self, *, job: str, state: str, why: str = "", exit_status: int = 0) -> None:
        """Give the job slot back; does nothing for a job that does not hold it any more."""
        self._keeper.job_slot.release(job, state, why, exit_status)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs since the lab came up, in their order; of hundreds that have ended, the latest."""
        return self._keeper.job_slot.records()

    def end_job(self, *, job: str, why: str = "") -> JobRecord:
        """Have the holder end its job; if it does not, end the job's ranks and, if it is detached, the holder.

        Returns the record once the slot is free, also of a job that had ended before. Raises UserError for an unknown
        job.
        """
        return self._keeper.job_slot.stop(job, why)

    # ---- nodes

    def share_folder(self, *, folder: str, management: bool = False, node: str = "") -> None:
        """Mount a folder of the host inside all containers of nodes, at the same path; namespaces see it anyway.

        ``management``: also inside the container of the management network. ``node``: inside that of this node only.
        Raises HostError.
        """
        if self._keeper.containers is not None and self._keeper.topology is not None:
            also = (MANAGEMENT,) if management else ()
            nodes = (node,) if node else (*self._keeper.topology.node_names, *also)
            self._keeper.containers.show(Path(folder), nodes)

    def allow_remote_starts(self) -> str:
        """Let programs in nodes start programs in other nodes, from now on; return the path of the program that takes
        the place of ssh for them. Raises HostError, StorageError."""
        program = self._keeper.do(self._keeper.allow_remote_starts)
        self.share_folder(folder=str(program.parent), management=True)
        return str(program)


_JOB: Final[Mapping[str, type]] = {
    "job": str, "world_size": int, "master": list, "interface": str, "directory": str, "steps": int,
}  # fmt: skip
"""What the agents cannot do without in the message of a job (docs/design.md)."""

MOST_JOB_BYTES: Final = 48 * 1024
"""A rank reads its message at once, in 64 KiB."""


def _refuse_unreadable(message: Mapping[str, Any], ranks: int) -> None:
    """Raise LabError for the message of a job that ranks could not read: they would count as training for ever."""

    def refuse(why: str) -> LabError:
        return LabError(f"malformed argument 'message' of 'train': {why}")

    for key, kind in _JOB.items():
        if not isinstance(message.get(key), kind) or isinstance(message[key], bool):
            raise refuse(f"expected {kind.__name__} at '{key}', got {message.get(key)!r:.60}")
    if message["world_size"] != ranks:
        raise refuse(f"expected a world_size of {ranks}, the lab's ranks, got {message['world_size']}")
    if not Path(message["directory"]).is_absolute() or not isinstance(message.get("data"), str | None):
        raise refuse("expected an absolute path at 'directory', and a path or nothing at 'data'")
    if len(json.dumps(message)) > MOST_JOB_BYTES:
        raise refuse(f"it is longer than {MOST_JOB_BYTES} bytes")


def _counters(stats: DirectionStats) -> DirectionCounters:
    return {
        "direction": stats.direction,
        "packets": stats.packets,
        "segments": stats.segments,
        "bytes": stats.bytes,
        "drops": dict(stats.drops),
        "corrupted": stats.corrupted,
        "duplicated": stats.duplicated,
        "held_back": stats.held_back,
        "emptied": stats.emptied,
        "queue_bytes": stats.queue_bytes,
        "lateness": {"bounds_s": list(stats.lateness_bounds_s), "counts": list(stats.lateness_counts)},
        "in_flight_packets": stats.in_flight_packets,
    }
