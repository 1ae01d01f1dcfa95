"""The keeper: one small resident process per lab that owns what must outlive a command.

It holds the lab's lock and its journal, runs the engine, supervises the emulator (a dead emulator is a cut: both ends
of every fiber go down), deploys and watches the agents, leads faults through their times, and listens to link events.
Commands talk to it over a socket in the lab's folder (``service.py``); its verbs are the methods that begin with
``do_``.

Threads: one for the engine (netlink sockets belong to it alone), one per connection, one each for link events,
faults' times, scheduled faults, protection's times, the emulator and the agents. If the keeper dies its children die
with it; `down` and `heal` then work from the journal alone (``testbed.lab.recovery``).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import filelock

from testbed import __version__
from testbed.core.faults.fault import Compiled, compile_fault
from testbed.core.plan import codec, routing
from testbed.core.plan.addressing import MANAGEMENT, PLANT, Addressing
from testbed.core.plan.makings import Fibers, Killed
from testbed.core.plan.settings import Carrier, Paused, Slowed, Throttled
from testbed.core.plan.step import Step
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import HostError, LabError, StorageError, TestbedError, UserError
from testbed.host.drivers import containerlab
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.netns import NetnsDriver, nowhere
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.linux import cgroup, process
from testbed.host.measure import hearing
from testbed.host.measure.watch import CarrierWatch, Change
from testbed.lab import places
from testbed.lab.apply import engine as engine_module
from testbed.lab.apply import hands
from testbed.lab.apply.crew import AgentsHand
from testbed.lab.apply.engine import Engine
from testbed.lab.apply.journal import Journal
from testbed.lab.apply.prometheus import PrometheusHand
from testbed.lab.events import EventLog, hurry, log
from testbed.lab.keeper.faults import Faults
from testbed.lab.keeper.protection import Protection
from testbed.lab.keeper.schedule import Schedule
from testbed.lab.keeper.service import Notice, Service
from testbed.lab.recovery import EMULATOR_DIED
from testbed.lab.state import LabFolder

if TYPE_CHECKING:
    from testbed.lab.apply.exporter import Exporter

DETOURS = "detours"
"""Owner of the routes that lead around dark links elsewhere."""

SWITCH_S = 0.0005
"""How long a thread may go on where another waits for its turn: a fault that is due waits for whoever answers
a question. Python's own 5 ms is as long as a scheduled fault may be late."""

BUILDER_PATIENCE_S = 15.0
"""How long a fresh keeper waits for whoever started it to connect."""

T = TypeVar("T")


class Keeper:
    """See the module. ``serve`` returns when the lab is down."""

    def __init__(self, lab: LabFolder, *, agents: bool, containers: bool) -> None:
        self._lab = lab
        self._lock = filelock.FileLock(lab.lock)
        self._lock.acquire(timeout=0)
        pid = os.getpid()
        self.journal = Journal.create(lab.journal, lab.name, process.boot_id(), (pid, process.started(pid)))
        self._containers = (
            Containerlab(lab.name, lab.path, places.docker(lab), self._container_died) if containers else None
        )
        self._dead_containers: list[str] = []
        elsewhere = self._containers.path if self._containers else nowhere
        self._driver = NetnsDriver(lab.name, lab.handles, elsewhere)
        self._emulator = hands.EmulatorHand(self._driver, lab.emulator_log, self._emulator_died)
        self._agents = AgentsHand(
            lab.name, self._driver, lab.handles, lab.agents_log, self._agent_event, self._containers
        )
        self._prometheus = PrometheusHand(lab, self._driver.path, self._exporter, self._prometheus_died)
        self.engine = Engine(
            self.journal,
            hands.of_keeper(self._driver, self._emulator, self._agents, self._prometheus, self._containers),
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._events = EventLog()
        self._protection = Protection(self.engine, self._do, self._events)
        self._faults = Faults(self.engine, self._do, self._events, self._protection.cut)
        self._schedule = Schedule(self._faults, self._events)
        self._waits: dict[socket.socket, str] = {}
        """What jobs wait for that are to begin again, by the connection of whoever begins them."""
        self._ended = threading.Event()
        self._builder: socket.socket | None = None
        self._topology: Topology | None = None
        self._watch: CarrierWatch | None = None
        self._reroute_due = False
        self._up_since = time.time()
        if agents:
            # In the engine's thread, which lives as long as we do: PDEATHSIG follows the thread that forks.
            self._do(self._agents.prepare)

    # ---- serving

    def serve(self) -> None:
        service = Service(self._lab.socket, self._call, self._closed)
        threading.Thread(target=self._faults.run, args=(self._ended,), name="faults", daemon=True).start()
        threading.Thread(target=self._schedule.run, args=(self._ended,), name="schedule", daemon=True).start()
        threading.Thread(target=self._protection.run, args=(self._ended,), name="protection", daemon=True).start()
        print("ready", flush=True)
        self._ended.wait(BUILDER_PATIENCE_S)
        if self._builder is None:
            self._down()  # whoever started us is gone before it could say what to build
        self._ended.wait()
        service.close()

    def terminate(self) -> None:
        """SIGTERM: the machine goes down, or somebody wants us gone: take the lab down."""
        threading.Thread(target=self._down, daemon=True).start()

    def _call(self, verb: str, arguments: dict[str, Any], connection: socket.socket, notice: Notice) -> Any:
        method = getattr(self, "do_" + verb, None)
        if method is None:
            raise LabError(f"this keeper does not know '{verb}'")
        if verb == "build":
            self._builder = connection
            arguments["notice"] = notice
        elif verb in ("schedule", "unschedule", "waits"):
            arguments["owner"] = connection
        return method(**arguments)

    def _closed(self, connection: socket.socket) -> None:
        self._schedule.cancel(connection)  # whoever planned these faults is gone, and nobody would end them
        self._waits.pop(connection, None)
        if self._builder is connection and self.journal.state == "building":
            # Whoever was building this lab is gone before it was whole: a failed `up` undoes itself.
            self._down()
        if self.journal.state == "down":
            self._ended.set()

    def _do(self, work: Callable[[], T]) -> T:
        """Run in the engine's thread and wait."""
        future: Future[T] = self._worker.submit(work)
        return future.result()

    # ---- verbs

    def do_hello(self) -> dict[str, Any]:
        emulator = self._emulator.emulator
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.journal.state,
            "since_unix_s": self._up_since,
            "emulator": emulator.info.name if emulator else "none",
            "scheduling": emulator.info.scheduling if emulator else "",
            "emulator_pid": emulator.pid if emulator else None,
            "emulator_died": bool(self.journal.owned(EMULATOR_DIED)),
            "segmented": list(emulator.segmented()) if emulator else [],
            "dead_containers": self._dead_containers,
            "waits": list(self._waits.values()),
            "prometheus": self._prometheus.address,
            "prometheus_ended": self._prometheus.ended,
        }

    def do_build(self, plan: list[dict[str, Any]], notice: Callable[[str], None]) -> None:
        """Apply the lab's own plan; the connection that asks must stay open until ``do_open``."""
        parsed = tuple(codec.from_dict(it) for it in plan)
        self._do(lambda: self.engine.apply(engine_module.LAB, parsed, notice))
        self._watch_carriers()

    def do_open(self, state: str = "up") -> None:
        """The lab is whole (or ``kept``, broken, on the user's wish)."""
        self._do(lambda: self.journal.set_state(state))
        log(f"lab {self._lab.name} is {state}")
        # What a lab is made of stays as long as it does: a collector that looked through it all would hold faults up.
        self._do(gc.freeze)
        self._do(hurry)  # not before: building takes seconds of work, which need not go before that of others

    def do_apply(self, owner: str, plan: list[dict[str, Any]]) -> None:
        parsed = tuple(codec.from_dict(it) for it in plan)
        self._do(lambda: self.engine.apply(owner, parsed))

    def do_undo(self, owner: str) -> None:
        self._do(lambda: self.engine.undo(owner))

    def do_stats(self) -> dict[str, Any]:
        """Counters of every direction, and what the emulator has used of the CPU, in seconds."""
        emulator = self._emulator.emulator
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
        return self._faults.inject(*self._compiled(fault))

    def do_schedule(self, owner: socket.socket, faults: list[dict[str, Any]]) -> None:
        """Begin faults when they are due: ``planned_t`` of CLOCK_MONOTONIC. Those of one time begin as one.

        Nothing is scheduled unless all of them can be. What has not begun when the connection ends never will.
        """
        self._schedule.add(owner, [self._compiled(fault) for fault in faults])

    def do_unschedule(self, owner: socket.socket) -> int:
        """Forget what this connection scheduled and has not begun; how much that was."""
        return self._schedule.cancel(owner)

    def _compiled(self, fault: dict[str, Any]) -> tuple[dict[str, Any], Compiled]:
        if self._topology is None:
            raise LabError("the lab is not whole yet")
        if self._dead_containers:
            raise LabError(containerlab.dead(self._lab.name, self._dead_containers[0]))
        compiled = compile_fault(self._topology, fault["type"], fault["target"], fault["parameters"])
        steps = [step for phase in compiled.phases for step in phase.steps]
        if not self._agents.ranks and any(isinstance(it, Killed | Paused | Slowed | Throttled) for it in steps):
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
            healed = self._faults.heal(ids)
        finally:
            if everything:
                self._do(self._protection.restore)
        if everything:
            self._do(self.engine.settle)  # of a fault that could not begin, and could not be undone either
        return healed

    def do_protection(self) -> dict[str, str]:
        """Of each protected link what its traffic is on."""
        return self._protection.states()

    def do_faults(self) -> list[dict[str, Any]]:
        return self._faults.records()

    def do_events(self, since: int = 0, wait_s: float = 0.0) -> dict[str, Any]:
        """Events from number ``since`` on; waits up to ``wait_s`` for one."""
        return self._events.since(since, wait_s)

    def do_ranks(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank.rank,
                "node": rank.node,
                "site": rank.site,
                "metrics": [rank.metrics, rank.port],
                "down": self._agents.is_down(number),
                "warned": self._faults.warning(rank.node),
                **self._agents.states[number],
            }
            for number, rank in sorted(self._agents.ranks.items())
            if number in self._agents.states  # else its parent is only being started
        ]

    def do_train(self, message: dict[str, Any]) -> None:
        """Give all ranks a job, fresh processes where they had one before."""
        self._do(self._agents.revive)
        # Not in the engine's thread: deploying takes part of a second and more, and faults that are due need it.
        self._agents.train(message)

    def do_dark(self) -> list[str]:
        """Links without a carrier at one of their ends at least."""
        return sorted(self._watch.dark()) if self._watch is not None else []

    def do_unheard(self) -> list[list[str]]:
        """Pairs of sites with ranks of which one does not answer the other, whatever the carriers say. Takes seconds
        where there are any."""
        if self._topology is None:
            return []
        firsts = {rank.site: rank.node for _, rank in sorted(self._agents.ranks.items(), reverse=True)}
        addresses = {site: str(Addressing(self._topology).node(node)[0]) for site, node in firsts.items()}
        asking = list(combinations(sorted(firsts), 2))

        def ask(site: str) -> frozenset[str]:
            others = [addresses[other] for one, other in asking if one == site]
            return hearing.answering(self._driver.path(firsts[site]), others)

        with ThreadPoolExecutor(len(firsts) or 1, thread_name_prefix="hearing") as each:
            heard = dict(zip(firsts, each.map(ask, firsts), strict=True))
        return [[one, other] for one, other in asking if addresses[other] not in heard[one]]

    def do_dead_containers(self) -> list[str]:
        """Nodes, gateways and others whose containers have ended by themselves: they do not come back."""
        return self._dead_containers

    def do_tell(self, event: str, fields: dict[str, Any]) -> None:
        """Put something that happened to a job among the lab's events."""
        self._events.add(event, **fields)

    def do_waits(self, owner: socket.socket, why: str) -> None:
        """A job waits to begin again, for as long as this connection stands: for `status`."""
        self._waits[owner] = why

    def do_stop(self, job: str, save: bool = False) -> None:
        self._agents.stop(job, save)

    def do_show(self, folder: str, management: bool = False) -> None:
        """Have a folder of the host inside the nodes too, and in the ``management`` network's container, at the same
        path; namespaces share it anyway."""
        if self._containers is not None and self._topology is not None:
            also = (MANAGEMENT,) if management else ()
            self._containers.show(Path(folder), (*self._topology.node_names, *also))

    def do_down(self) -> None:
        self._down()

    # ---- what happens by itself

    def _emulator_died(self, status: int | None) -> None:
        """Take both ends of every fiber down: neither a perfect wire nor a silent black hole may be left."""
        ends = [it for entry in self.journal.owned(engine_module.LAB) for it in _fiber_ends(entry.step)]
        plan = tuple(Carrier(PLANT, end, False) for end in ends)

        def work() -> None:
            if self.journal.state != "down":
                self.engine.apply(EMULATOR_DIED, plan)

        with contextlib.suppress(RuntimeError):  # the worker is shut down: so is the lab
            self._do(work)
        self._events.add("emulator-died", status=status)

    def _prometheus_died(self, how: str) -> None:
        self._events.add("note", text=f"prometheus {how}: the lab goes on, unobserved")

    def _exporter(self) -> Exporter:
        """What an observed lab tells; its module takes time and memory that others do not need."""
        from testbed.lab.apply.exporter import Exporter, Sources

        topology = topology_from_dict(json.loads(self._lab.topology.read_text()))
        sources = Sources(
            emulator=lambda: self._emulator.emulator,
            ranks=self.do_ranks,
            carriers=lambda: self._watch.states() if self._watch else {},
            faults=self._faults.counts,
            certificate=self._lab.certificate,
        )
        return Exporter(topology, sources, {site.gateway: self._driver.path(site.gateway) for site in topology.sites})

    def _container_died(self, node: str) -> None:
        self._dead_containers.append(node)
        self._events.add("container-died", node=node)

    def _agent_event(self, event: dict[str, Any]) -> None:
        kinds = {"began": "job-began", "finished": "job-ended", "died": "rank-died", "gone": "agents-gone"}
        if event["event"] in kinds:
            self._events.add(kinds[event["event"]], **{key: value for key, value in event.items() if key != "event"})

    def _watch_carriers(self) -> None:
        """Listen for the carriers of all gateways; which they are the topology says, for a plan of containers has no
        cables of its own."""
        self._topology = topology_from_dict(json.loads(self._lab.topology.read_text()))
        watched: dict[str, set[str]] = {}
        for link in self._topology.links:
            for site in link.between:
                watched.setdefault(self._topology.site(site).gateway, set()).add(link.name)
        self._protection.know(self._topology)
        places = {gateway: self._driver.path(gateway) for gateway in watched}
        self._watch = CarrierWatch(places, watched, self._carrier_changed, hurry)
        self._watch.start()
        routing.prepare(self._topology)

    def _carrier_changed(self, change: Change) -> None:
        where = {"link": change.interface, "site": change.place.removesuffix("-gw")}
        if change.missed:
            self._events.add("carrier-missed", t=change.t, **where, count=change.missed)
        if change.turned:
            self._events.add("carrier", t=change.t, **where, up=change.lit, changes=change.changes)
        # Between two sites the kernels' own failover is all there is to do.
        if self._topology is not None and len(self._topology.sites) > 2 and not self._reroute_due:
            self._reroute_due = True
            with contextlib.suppress(RuntimeError):  # the worker is shut down: so is the lab
                self._worker.submit(self._reroute)

    def _reroute(self) -> None:
        """Lead packets around what is dark by now; in the engine's thread."""
        self._reroute_due = False
        if self._topology is None or self._watch is None or self.journal.state not in ("up", "kept"):
            return
        began = time.monotonic()
        try:
            self.engine.replace(DETOURS, routing.detours(self._topology, self._watch.dark()))
            self._events.add("rerouted", took_s=round(time.monotonic() - began, 4))
        except Exception as error:
            self._events.add("note", text=f"routes could not be changed: {error}")

    def _down(self) -> None:
        """Undo everything, and end; afterwards only the folder is left, for whoever asked to remove.

        What does not go stays in the journal, for `testbed down`: a keeper that waited for docker to come back might
        wait for ever.
        """

        def work() -> None:
            if self.journal.state == "down":
                return
            with contextlib.suppress(StorageError):  # a full disk keeps no lab from going
                self.journal.set_state("going")
            if self._watch is not None:
                self._watch.stop()
            self.engine.undo_all()
            self._driver.close()
            with contextlib.suppress(StorageError):
                self.journal.set_state("down")
            self.journal.state = "down"

        self._agents.abandon()
        try:
            self._do(work)
        except TestbedError as error:
            log(f"not all of lab {self._lab.name} went, the journal keeps the rest: {error}")
            raise
        finally:
            self._ended_soon()

    def _ended_soon(self) -> None:
        """Let the answer to `down` reach its asker before the process ends."""
        threading.Timer(0.05, self._ended.set).start()


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


def _fiber_ends(step: Step) -> list[str]:
    if not isinstance(step, Fibers):
        return []
    return sorted({it.ingress for it in step.directions} | {it.egress for it in step.directions})


def main(arguments: list[str]) -> int:
    """``python -m testbed.lab.keeper.main FOLDER [--agents] [--containers]``; says "ready" once it listens."""
    folder = LabFolder(Path(arguments[0]))
    process.allow_many_files()
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if not folder.path.is_dir():
        return 3  # taken down while we were starting: nothing of it may come back
    try:
        keeper = Keeper(folder, agents="--agents" in arguments, containers="--containers" in arguments)
    except filelock.Timeout:
        print(f"the lab {folder.name} has a keeper already", flush=True)
        return 3
    except TestbedError as error:
        print(error, flush=True)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: keeper.terminate())
    keeper.serve()
    gc.freeze()  # whoever takes the lab down waits for our end: nothing is left to be collected
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
