"""The keeper's handlers: one method for each request of ``protocol.py``."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.errors import HostError, LabError, UserError, raise_all
from testbed.host.drivers import containerlab
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.linux import cgroup, process
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper import protocol
from testbed.keeper.engine import LAB
from testbed.keeper.event_log import log
from testbed.keeper.protocol import CompiledFault, DirectionCounters, FaultRecord, FaultSpec, Request
from testbed.keeper.reachability import unreachable_sites
from testbed.keeper.service import Caller
from testbed.version import __version__

if TYPE_CHECKING:
    from testbed.keeper.keeper import Keeper

__all__ = ["Verbs"]


class Verbs:
    """Answers the requests of all connections, from the threads of ``workers.py``."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.handlers: Final[Mapping[type[Request[Any]], Callable[[Any, Caller], Any]]] = dict(
            (
                protocol.Hello.handled_by(self._hello),
                protocol.Build.handled_by(self._build),
                protocol.Open.handled_by(self._open),
                protocol.Apply.handled_by(self._apply),
                protocol.Undo.handled_by(self._undo),
                protocol.Stats.handled_by(self._stats),
                protocol.Stalls.handled_by(self._stalls),
                protocol.RecordPackets.handled_by(self._record_packets),
                protocol.InForce.handled_by(self._in_force),
                protocol.Inject.handled_by(self._inject),
                protocol.Schedule.handled_by(self._schedule),
                protocol.Unschedule.handled_by(self._unschedule),
                protocol.Heal.handled_by(self._heal),
                protocol.ProtectionStates.handled_by(self._protection_states),
                protocol.Faults.handled_by(self._faults),
                protocol.Events.handled_by(self._events),
                protocol.Subscribe.handled_by(self._subscribe),
                protocol.Ranks.handled_by(self._ranks),
                protocol.Train.handled_by(self._train),
                protocol.ProgramBegins.handled_by(self._program_begins),
                protocol.RanksPerNode.handled_by(self._ranks_per_node),
                protocol.DarkLinks.handled_by(self._dark_links),
                protocol.UnreachableSites.handled_by(self._unreachable_sites),
                protocol.DeadContainers.handled_by(self._dead_containers),
                protocol.AddEvent.handled_by(self._add_event),
                protocol.Capture.handled_by(self._capture),
                protocol.CaptureEnded.handled_by(self._capture_ended),
                protocol.AwaitRestart.handled_by(self._await_restart),
                protocol.StopJob.handled_by(self._stop_job),
                protocol.ClaimJob.handled_by(self._claim_job),
                protocol.DescribeJob.handled_by(self._describe_job),
                protocol.ReleaseJob.handled_by(self._release_job),
                protocol.Jobs.handled_by(self._jobs),
                protocol.EndJob.handled_by(self._end_job),
                protocol.ShareFolder.handled_by(self._share_folder),
                protocol.RemoteStarts.handled_by(self._remote_starts),
                protocol.Down.handled_by(self._down),
            )
        )

    def answer(self, request: object, caller: Caller) -> Any:
        """Return the answer to a request, or to its message. Raises TestbedError."""
        known = request if isinstance(request, Request) else protocol.decode_request(request)
        return self.handlers[type(known)](known, caller)

    def _hello(self, request: protocol.Hello, caller: Caller) -> protocol.HelloAnswer:
        emulator = self._keeper.emulator.emulator
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self._keeper.journal.state,
            "since_unix_s": self._keeper.up_since,
            "emulator": emulator.info.name if emulator else "none",
            "scheduling": emulator.info.scheduling if emulator else "",
            "emulator_pid": emulator.pid if emulator else None,
            "emulator_died": self._keeper.emulator_died,
            "segmented": list(emulator.segmented()) if emulator else [],
            "dead_containers": self._keeper.dead_containers,
            "waits": list(self._keeper.waits.values()),
            "prometheus": self._keeper.prometheus.address,
            "prometheus_ended": self._keeper.prometheus.ended,
            "taken_off_s": self._keeper.emulator.taken_off_s,
            "captures": self._keeper.captures.running,
        }

    def _build(self, request: protocol.Build, caller: Caller) -> None:
        self._keeper.builder = caller
        self._keeper.do(lambda: self._keeper.engine.apply(LAB, request.plan, caller.notice))
        # In the engine's thread too, which has no real-time priority before the lab is up: this takes a moment.
        self._keeper.do(self._keeper.load_topology)

    def _open(self, request: protocol.Open, caller: Caller) -> None:
        def opened() -> None:
            if (state := self._keeper.journal.state) != "building":  # a lab that is going must not count as up again
                raise LabError(f"lab {self._keeper.lab.name} is not being built: its state is '{state}'")
            self._keeper.journal.set_state(request.state)

        self._keeper.do(opened)
        log(f"lab {self._keeper.lab.name} is {request.state}")
        # The objects of a lab live as long as it does: a collector that traversed them all would delay faults.
        self._keeper.do(gc.freeze)
        # Only now: bring-up is seconds of work that needs no priority.
        self._keeper.do(use_realtime_priority)

    def _apply(self, request: protocol.Apply, caller: Caller) -> None:
        self._keeper.do(lambda: self._keeper.engine.apply(request.owner, request.plan))

    def _undo(self, request: protocol.Undo, caller: Caller) -> None:
        self._keeper.do(lambda: self._keeper.engine.undo(request.owner))

    def _stats(self, request: protocol.Stats, caller: Caller) -> protocol.StatsAnswer:
        emulator = self._keeper.emulator.emulator
        if emulator is None:
            return {"t": time.monotonic(), "directions": [], "cpu_s": 0.0}
        found = emulator.stats()
        return {
            "t": time.monotonic(),
            "cpu_s": process.cpu_seconds(emulator.pid) if emulator.pid else 0.0,
            "directions": [_counters(it) for it in found],
        }

    def _stalls(self, request: protocol.Stalls, caller: Caller) -> protocol.StallsAnswer:
        watch = self._keeper.stalls
        following, stalls = watch.since(request.since)
        return {"watching": watch.watching, "next": following, "stalls": stalls}

    def _record_packets(self, request: protocol.RecordPackets, caller: Caller) -> protocol.RecordedPackets:
        emulator = self._keeper.emulator.emulator
        if emulator is None:
            return {"supported": False, "packets": [], "lost": 0}
        record = emulator.record(request.nonce)
        if record is None:
            return {"supported": False, "packets": [], "lost": 0}
        packets = [dataclasses.astuple(packet) for packet in record.packets]
        return {"supported": True, "packets": packets, "lost": record.lost}

    def _in_force(self, request: protocol.InForce, caller: Caller) -> protocol.InForceAnswer:
        in_force = self._keeper.in_force
        if in_force is None:
            return {"directions": [], "differences": []}
        found = in_force.all()
        compare, also = self._keeper.emulator.differences, request.compare or ()
        wrong = in_force.differences(compare, also)
        # A fault may have begun in between: what is wrong stays wrong.
        return {"directions": found, "differences": wrong and in_force.differences(compare, also)}

    def _inject(self, request: protocol.Inject, caller: Caller) -> FaultRecord:
        return self._keeper.faults.inject(*self._compiled(request.fault))

    def _schedule(self, request: protocol.Schedule, caller: Caller) -> None:
        self._keeper.schedule.add(caller, [self._compiled(fault) for fault in request.faults])

    def _unschedule(self, request: protocol.Unschedule, caller: Caller) -> int:
        return self._keeper.schedule.cancel(caller)

    def _compiled(self, fault: FaultSpec) -> tuple[CompiledFault, Compiled]:
        """Compile a fault for this lab. Raises UserError, UnknownName, HostError, LabError."""
        if self._keeper.topology is None:
            raise LabError("the lab is still being built")
        if self._keeper.dead_containers:
            raise LabError(containerlab.dead(self._keeper.lab.name, self._keeper.dead_containers[0]))
        compiled = compile_fault(
            self._keeper.topology,
            fault["type"],
            fault["target"],
            fault["parameters"],
            self._keeper.programs.ranks_per_node,
        )
        steps = [step for phase in compiled.phases for step in phase.steps]
        of_ranks = any(isinstance(it, Killed | Paused | Slowed | Throttled) for it in steps)
        if of_ranks and not self._keeper.agents.ranks and not self._keeper.programs.running():
            raise UserError(f"{fault['type']}: this lab has no training agents for it to act on, and runs no program")
        if any(isinstance(it, Throttled) for it in steps):
            try:
                cgroup.hierarchy()
            except HostError as error:
                raise HostError(f"{fault['type']} cpu=: {error}; slower= needs no control group") from error
        touched = {"links": list(compiled.links), "nodes": list(compiled.nodes)}
        return cast(CompiledFault, {**fault, **touched}), compiled

    def _heal(self, request: protocol.Heal, caller: Caller) -> list[FaultRecord]:
        healed: list[FaultRecord] = []
        failures: list[Exception] = []
        works: list[Callable[[], object]] = [lambda: healed.extend(self._keeper.faults.heal(request.ids))]
        if request.everything:
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

    def _protection_states(self, request: protocol.ProtectionStates, caller: Caller) -> dict[str, str]:
        return self._keeper.protection.states()

    def _faults(self, request: protocol.Faults, caller: Caller) -> list[FaultRecord]:
        return self._keeper.faults.records()

    def _events(self, request: protocol.Events, caller: Caller) -> protocol.EventsPage:
        return self._keeper.events.since(request.since, request.wait_s)

    def _subscribe(self, request: protocol.Subscribe, caller: Caller) -> None:
        self._keeper.publisher.subscribe(caller, request.since)

    def _ranks(self, request: protocol.Ranks, caller: Caller) -> list[protocol.RankState]:
        return self._keeper.rank_states()

    def _train(self, request: protocol.Train, caller: Caller) -> None:
        _refuse_unreadable(request.message, len(self._keeper.agents.ranks))
        self._keeper.job_slot.admit(request.message["job"])
        self._keeper.programs.ranks_per_node = 1
        self._keeper.do(self._keeper.agents.revive)
        # Outside the engine's thread: deploying takes up to seconds, and faults that are due need that thread.
        try:
            self._keeper.agents.train(request.message)
        finally:
            self._keeper.publisher.changed()  # the ranks are training, or fresh

    def _program_begins(self, request: protocol.ProgramBegins, caller: Caller) -> None:
        self._keeper.programs.ranks_per_node = request.ranks_per_node

    def _ranks_per_node(self, request: protocol.RanksPerNode, caller: Caller) -> int:
        return self._keeper.programs.ranks_per_node

    def _dark_links(self, request: protocol.DarkLinks, caller: Caller) -> list[str]:
        return sorted(self._keeper.carriers.dark())

    def _unreachable_sites(self, request: protocol.UnreachableSites, caller: Caller) -> list[tuple[str, str]]:
        if self._keeper.topology is None:
            return []
        return unreachable_sites(self._keeper.topology, self._keeper.agents.ranks.values(), self._keeper.driver.path)

    def _dead_containers(self, request: protocol.DeadContainers, caller: Caller) -> list[str]:
        return self._keeper.dead_containers

    def _add_event(self, request: protocol.AddEvent, caller: Caller) -> None:
        if taken := sorted({"t", "event", "self"} & request.fields.keys()):
            raise LabError(f"malformed argument 'fields' of 'tell': the keeper itself sets '{taken[0]}'")
        self._keeper.events.add(request.event, **request.fields)

    def _capture(self, request: protocol.Capture, caller: Caller) -> str:
        return self._keeper.captures.begin(caller, request.directions, request.before)

    def _capture_ended(self, request: protocol.CaptureEnded, caller: Caller) -> None:
        self._keeper.captures.end(caller, request.counted)

    def _await_restart(self, request: protocol.AwaitRestart, caller: Caller) -> None:
        self._keeper.waits[caller] = request.why

    def _stop_job(self, request: protocol.StopJob, caller: Caller) -> None:
        self._keeper.agents.stop(request.job, request.save)

    def _claim_job(self, request: protocol.ClaimJob, caller: Caller) -> protocol.ClaimAnswer:
        return self._keeper.job_slot.claim(request, caller)

    def _describe_job(self, request: protocol.DescribeJob, caller: Caller) -> None:
        self._keeper.job_slot.describe(request.job, request.run, request.sessions)

    def _release_job(self, request: protocol.ReleaseJob, caller: Caller) -> None:
        self._keeper.job_slot.release(request.job, request.state, request.why, request.exit_status)

    def _jobs(self, request: protocol.Jobs, caller: Caller) -> list[protocol.JobRecord]:
        return self._keeper.job_slot.records()

    def _end_job(self, request: protocol.EndJob, caller: Caller) -> protocol.JobRecord:
        return self._keeper.job_slot.stop(request.job, request.why)

    def _share_folder(self, request: protocol.ShareFolder, caller: Caller) -> None:
        if self._keeper.containers is not None and self._keeper.topology is not None:
            also = (MANAGEMENT,) if request.management else ()
            nodes = (request.node,) if request.node else (*self._keeper.topology.node_names, *also)
            self._keeper.containers.show(Path(request.folder), nodes)

    def _remote_starts(self, request: protocol.RemoteStarts, caller: Caller) -> str:
        program = self._keeper.do(self._keeper.remote_starts.ensure)
        if self._keeper.containers is not None and self._keeper.topology is not None:
            self._keeper.containers.show(program.parent, (*self._keeper.topology.node_names, MANAGEMENT))
        return str(program)

    def _down(self, request: protocol.Down, caller: Caller) -> None:
        self._keeper.down()


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
