"""The keeper: a small resident process per lab (``main.py``) that owns all that must outlive a command.

It holds the lab's lock and its journal, runs the engine, supervises the emulator (a dead emulator is a cut: both ends
of every fiber go down), deploys and watches the agents, advances faults, and listens to link events. Commands send
requests over a socket in the lab's folder (``keeper_api.py``, ``service.py``).

Threads: one for the engine (netlink sockets belong to it alone), one that reads the socket, those that answer, one that
pushes to subscribers, one each for link events, scheduled faults, phases of faults, switches of protected links, the
emulator and the agents. If the keeper dies its children die with it; `down` and `heal` then work from the journal alone
(``testbed.lab.teardown``).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, TypeVar

from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Fibers
from testbed.core.plan.step import Step
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import StorageError, TestbedError
from testbed.host import lab_nodes, remote_starts
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.netns import NetnsDriver, nowhere
from testbed.host.emulators.stall_watch import StallWatch
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.host.linux.file_lock import FileLock
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper import handlers
from testbed.keeper.agent_pool import AgentPool
from testbed.keeper.carriers import Carriers
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.event_log import Captures, EventLog, log
from testbed.keeper.faults import Faults
from testbed.keeper.in_force import InForce
from testbed.keeper.job_slot import JobSlot
from testbed.keeper.journal import EMULATOR_DIED, Journal
from testbed.keeper.program_ranks import ProgramRanks
from testbed.keeper.prometheus_handler import PrometheusHandler
from testbed.keeper.protection import Protection
from testbed.keeper.protocol import LabView, RankState
from testbed.keeper.publisher import Publisher
from testbed.keeper.service import Caller

if TYPE_CHECKING:
    from testbed.keeper.exporter import Exporter

BUILDER_PATIENCE_S = 15.0
"""How long a fresh keeper waits for the command that started it to connect."""

T = TypeVar("T")


class Keeper:
    """Owner of one lab. :meth:`serve` returns when the lab is down."""

    def __init__(
        self,
        lab: LabFolder,
        *,
        containers: bool,
        fork_server: Popen[bytes] | None = None,
        user: ProgramUser | None = None,
    ) -> None:
        """``fork_server`` (:func:`testbed.host.fork_server.start`) imports torch while the rest of the lab is built."""
        self.lab = lab
        self._lock = FileLock(lab.lock, timeout_s=0.0)
        pid = os.getpid()
        self.journal = Journal.create(lab.journal, lab.name, process.boot_id(), (pid, process.started(pid)))
        self.containers = (
            Containerlab(lab.name, lab.path, lab_nodes.docker(lab), self._container_died) if containers else None
        )
        self.dead_containers: list[str] = []
        self.emulator_died = False
        container_path = self.containers.path if self.containers else nowhere
        self.driver = NetnsDriver(lab.name, lab.handles, container_path)
        self.emulator = handlers.EmulatorHandler(self.driver, lab.emulator_log, self.emulator_exited)
        self.stalls = StallWatch()
        self.agents = AgentPool(lab, self.driver, self._agent_event, self.containers, user)
        self.programs = ProgramRanks(lab.name, self.driver.path)
        self.prometheus = PrometheusHandler(lab, self.driver.path, self._exporter, self._prometheus_died)
        self._remote_starts: Popen[bytes] | None = None
        self.engine = Engine(
            self.journal,
            handlers.of_keeper(
                self.driver, self.emulator, self.agents, self.programs, self.prometheus, self.containers
            ),
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.events = EventLog()
        self.protection = Protection(self.engine, self.do, self.events)
        self.faults = Faults(self.engine, self.do, self.events, self.protection.cut)
        self.carriers = Carriers(self.engine, self._worker.submit, self.events)
        self.publisher = Publisher(self.events, self._view)
        self.captures = Captures(self.events)
        self.job_slot = JobSlot(lab.name, self.agents, self.events, self._nodes, self.do)
        self.waits: dict[Caller, str] = {}
        """What each job that is to restart waits for, by the connection of the command that runs it."""
        self._ended = threading.Event()
        self.builder: Caller | None = None
        self.topology: Topology | None = None
        self.in_force: InForce | None = None
        self.up_since = time.time()
        if fork_server is not None:
            self.agents.adopt(fork_server)

    # ---- serving

    def serve(self) -> None:
        """Serve requests until the lab is down; print "ready" first."""
        # The engine's thread starts it, because PDEATHSIG follows the thread.
        self.do(lambda: self.stalls.start(self.lab.emulator_log))
        runs = {
            "faults": self.faults.phases.run,
            "schedule": self.faults.begins.run,
            "protection": self.protection.switches.run,
            "publisher": self.publisher.run,
        }
        for name, run in runs.items():
            threading.Thread(target=run, args=(self._ended,), name=name, daemon=True).start()
        print("ready", flush=True)
        self._ended.wait(BUILDER_PATIENCE_S)
        if self.builder is None:
            self.down()  # the command that started this keeper is gone: nothing will be built
        self._ended.wait()

    def terminate(self) -> None:
        """Take the lab down on SIGTERM: the machine shuts down, or a user ends the keeper."""
        threading.Thread(target=self.down, daemon=True).start()

    def closed(self, caller: Caller) -> None:
        """Release what belongs to a connection that has ended."""
        self.faults.unschedule(caller)  # the command that planned these faults is gone and would not end them
        self.waits.pop(caller, None)
        self.captures.end(caller)
        self.publisher.drop(caller)
        self.job_slot.closed(caller)
        if self.builder is caller and self.journal.state == "building":
            # The command that built this lab is gone before it was complete: a failed `up` undoes itself.
            self.down()
        if self.journal.state == "down":
            self._ended.set()

    def do(self, work: Callable[[], T]) -> T:
        """Run in the engine's thread and wait for the result."""
        future: Future[T] = self._worker.submit(work)
        return future.result()

    def load_topology(self) -> None:
        """Read the topology from its file (a plan of containers has no links) and start watching carriers."""
        self.topology = topology_from_dict(json.loads(self.lab.topology.read_text()))
        self.programs.nodes = self.topology.node_names
        self.in_force = InForce(self.journal, self.topology)
        self.protection.set_topology(self.topology, self.in_force)
        self.faults.set_topology(self.topology, self.in_force)
        self.carriers.watch(self.topology, self.driver.path)

    def allow_remote_starts(self) -> Path:
        """Start the proxy of programs in nodes that start programs in others (``host/remote_starts.py``), unless it
        runs; return the program that takes the place of ssh.

        Call it in the engine's thread, which lives as long as the process (PDEATHSIG). Raises HostError, StorageError.
        """
        if self._remote_starts is None or self._remote_starts.poll() is not None:
            self._remote_starts = remote_starts.start(self.lab)
        return remote_starts.program(self.lab)

    def rank_states(self) -> list[RankState]:
        """Return place and state of each rank, in order."""
        return [
            {
                "rank": rank.rank,
                "node": rank.node,
                "site": rank.site,
                "metrics": (rank.metrics, rank.port),
                "down": self.agents.is_down(number),
                "warned": self.faults.warning(rank.node),
                "suspended": self.agents.is_suspended(number),
                **self.agents.states[number],
            }
            for number, rank in sorted(self.agents.ranks.items())
            if number in self.agents.states  # otherwise its fork server is still starting
        ]

    def _nodes(self) -> list[Path]:
        """Return the handles of the network namespaces of all nodes."""
        return [] if self.topology is None else [self.driver.path(node) for node in self.topology.node_names]

    def _view(self) -> LabView:
        dark, dead = sorted(self.carriers.dark()), [*self.dead_containers]
        return {"ranks": self.rank_states(), "dark": dark, "dead_containers": dead}

    # ---- events

    def emulator_exited(self, status: int | None) -> None:
        """Take both ends of every fiber down: without an emulator it must neither forward freely nor drop silently.

        The event is first: a run is void from here on, whatever becomes of the ends.
        """
        self.emulator_died = True
        self.events.add("emulator-died", status=status)
        ends = [end for entry in self.journal.owned(LAB) for end in _fiber_ends(entry.step)]
        plan = tuple(Carrier(PLANT, end, False) for end in ends)

        def work() -> None:
            if self.journal.state != "down":
                try:
                    self.engine.apply(EMULATOR_DIED, plan)
                except StorageError:
                    # Unrecorded rather than not at all: `down` removes the ends anyway, and no heal may light them.
                    self.engine.apply_unrecorded(EMULATOR_DIED, plan)

        try:
            self.do(work)
        except RuntimeError:
            return  # the engine's thread has ended, and the lab with it
        except Exception as error:
            self.events.add("note", text=f"the emulator died, and its fibers could not be taken down: {error}")

    def _prometheus_died(self, how: str) -> None:
        self.events.add("note", text=f"prometheus {how}; the lab continues without monitoring")

    def _exporter(self) -> Exporter:
        """Build the exporter of an observed lab. Imported here: other labs need not spend the time and memory."""
        from testbed.keeper.exporter import Exporter, Sources

        topology = topology_from_dict(json.loads(self.lab.topology.read_text()))
        sources = Sources(
            emulator=lambda: self.emulator.emulator,
            ranks=self.rank_states,
            carriers=self.carriers.states,
            faults=self.faults.counts,
            certificate=self.lab.certificate,
        )
        return Exporter(topology, sources, {site.gateway: self.driver.path(site.gateway) for site in topology.sites})

    def _container_died(self, node: str) -> None:
        self.dead_containers.append(node)
        self.events.add("container-died", node=node)

    def _agent_event(self, event: dict[str, Any]) -> None:
        kinds = {"began": "job-began", "finished": "job-ended", "died": "rank-died", "gone": "agents-gone"}
        self.publisher.changed()  # the state of a rank, also where the event is none of the lab's
        if event["event"] in kinds:
            self.events.add(kinds[event["event"]], **{key: value for key, value in event.items() if key != "event"})

    def down(self) -> None:
        """Undo everything and end; only the folder is left, for the caller to remove. Raises HostError.

        What cannot be undone stays in the journal for `testbed down`: waiting here for docker to come back might take
        forever.
        """

        def work() -> None:
            if self.journal.state == "down":
                return
            with contextlib.suppress(StorageError):  # a full disk must not keep the lab up
                self.journal.set_state("going")
            self.carriers.stop()
            if self._remote_starts is not None:
                self._remote_starts.kill()  # what it has started ends with it
                self._remote_starts.wait()
            self.stalls.stop()
            self.engine.undo_all()
            self.driver.close()
            with contextlib.suppress(StorageError):
                self.journal.set_state("down")
            self.journal.state = "down"

        self.job_slot.close(f"lab {self.lab.name} is being taken down")
        self.agents.abandon()
        try:
            self.do(work)
        except TestbedError as error:
            log(f"lab {self.lab.name} could not be removed completely; the journal keeps the rest: {error}")
            raise
        finally:
            self._end_soon()

    def _end_soon(self) -> None:
        """End the process shortly, so that the answer to `down` is delivered first."""
        try:
            threading.Timer(0.05, self._ended.set).start()
        except RuntimeError:  # the system refuses another thread
            self._ended.set()


def _fiber_ends(step: Step) -> list[str]:
    if not isinstance(step, Fibers):
        return []
    return sorted({end for direction in step.directions for end in (direction.ingress, direction.egress)})
