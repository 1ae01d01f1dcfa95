"""The handler that deploys the agents: one process per rank, forked by a fork server that has imported torch already.

Nodes that are namespaces share one fork server, started ahead of time; its ranks enter their nodes. A container has a
fork server of its own, inside: nothing may enter it from outside.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from testbed.core.analysis import blame
from testbed.core.plan.resources import Agents, Rank
from testbed.core.plan.step import Property, Step
from testbed.core.records.process_end import ProcessEnd
from testbed.errors import HostError, LabError
from testbed.host import fork_server as agent_host
from testbed.host import scratch
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.containerlab import Containerlab, agent_ids, agent_user, container_name
from testbed.host.drivers.driver import Facts
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.fork_server import ForkServer
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process, program_user
from testbed.host.linux.cgroup import OomWatch
from testbed.host.linux.program_user import PASSED_OVER, ProgramUser
from testbed.keeper.event_log import log
from testbed.keeper.protocol import AgentState
from testbed.keeper.throttle import Throttle

AGENTS_BOUND_S = 90.0
"""How long importing torch and forking may take on a busy machine."""

KILL_BOUND_S = 10.0

STOP_BOUND_S = 5.0
"""How long ranks may take to end a job after their current step."""

SHARED = ""
"""Key of the one fork server of all ranks."""


class AgentPool:
    """Deploys one agent per rank and tracks the state of each.

    ``on_event`` is called with every event of a fork server, from its thread. ``containers`` is None where nodes are
    namespaces.
    """

    def __init__(
        self,
        folder: LabFolder,
        driver: NetnsDriver,
        on_event: Callable[[dict[str, Any]], None],
        containers: Containerlab | None = None,
        user: ProgramUser | None = None,
    ) -> None:
        """``user``: who ranks in namespaces run as until a job brings its own; None: root."""
        self._folder, self._lab, self._handles, self._log = folder, folder.name, folder.handles, folder.agents_log
        self._driver, self._on_event, self._user = driver, on_event, user
        self._deployed_as: dict[int, ProgramUser | None] = {}
        self._containers = containers
        self._scratch: dict[str, Path] = {}
        """By container, the scratch folder that is mounted there."""
        self._changed = threading.Condition()
        self._servers: dict[str, ForkServer] = {}
        self._abandoned = False
        self._held: Counter[int] = Counter()
        """For each rank, how many faults keep it from getting a process."""
        self._paused: set[int] = set()
        self._slowed: dict[int, float] = {}
        self._throttle, self._throttled = Throttle(folder.name, driver.path), set[int]()
        self._memory = OomWatch()
        self._signalled: Counter[int] = Counter()
        """How many signals to each rank its fork server has confirmed."""
        self._replaced: dict[int, int] = {}
        """For each rank, the pid of its process before the present one."""
        self.ranks: dict[int, Rank] = {}
        self.states: dict[int, AgentState] = {}

    def adopt(self, child: Popen[bytes]) -> None:
        """Take over the fork server for namespaces, which was started before the other imports of this process."""
        self._begin(SHARED, child)

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Agents)
        self.ranks = {rank.rank: rank for rank in step.ranks}
        if self._containers is not None:
            user = ProgramUser(*agent_ids(), (), "testbed", None, "ranks in containers")
            self._scratch = {rank.node: scratch.of_node(self._folder, rank.node, user) for rank in step.ranks}
            self._containers.show_each(self._scratch)
        for key in dict.fromkeys(self._key(rank) for rank in step.ranks):
            self._start(key)
        self.refresh(self.ranks)
        return {"parents": [[server.pid, server.began] for server in self._servers.values()]}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if self._servers:
            stopping = [threading.Thread(target=server.stop) for server in self._servers.values()]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
            self._servers.clear()
            self.ranks.clear()
        else:
            end_servers(facts)

    def assign(self, properties: Sequence[Property]) -> None:
        return None

    # ---- faults of ranks (rank_faults.py)

    def hold(self, ranks: Sequence[int]) -> None:
        """Kill the processes of these ranks, and deploy none for them until :meth:`release`."""
        with self._changed:  # a job that begins now must not deploy one in between
            self._held.update(ranks)
            for rank in ranks:
                self._tell_server(rank, {"do": "signal", "rank": rank, "signal": "SIGKILL"})

    def await_end(self, ranks: Sequence[int], with_servers: bool = False) -> None:
        """Wait until the processes of these held ranks are gone. Raises LabError.

        ``with_servers``: their fork servers were killed too, so all processes are waited for. Otherwise a rank whose
        fork server still imports torch is not: its process is killed as soon as it is forked.
        """

        def is_left(number: int) -> bool:
            if self.states.get(number, {"state": "gone"})["state"] == "gone":
                return False
            server = self._servers.get(self._key(self.ranks[number]))
            return with_servers or (server is not None and server.warm)

        with self._changed:
            if not self._changed.wait_for(lambda: not any(map(is_left, ranks)), KILL_BOUND_S):
                raise LabError(
                    f"ranks {[rank for rank in ranks if is_left(rank)]} did not end within {KILL_BOUND_S:g} s"
                )

    @property
    def servers_inside(self) -> bool:
        """Whether each node has a fork server of its own inside, which is killed when the node loses power."""
        return self._containers is not None

    def release(self, ranks: Sequence[int]) -> None:
        """Allow processes for these ranks again: now, or where a job is training with the next job, so that its other
        ranks notice the loss.
        """
        free = [rank for rank in ranks if self._held[rank] == 1 and rank in self.ranks and not self._abandoned]
        for key in {self._key(self.ranks[rank]) for rank in free}:
            if (server := self._servers.get(key)) is None or server.exited.is_set():
                self._servers.pop(key, None)
                self._start(key)
        # Only once the fork servers run: if starting one fails, release is called again and must not count twice.
        self._held.subtract(ranks)
        if not any(state["state"] == "training" for state in self.states.values()):
            for rank in free:
                with contextlib.suppress(LabError):  # its fork server has just ended: the next job deploys it
                    self._deploy(rank)

    def is_down(self, rank: int) -> bool:
        """Whether a fault keeps jobs from starting on this rank."""
        return self._held[rank] > 0 or rank in self._paused

    def is_suspended(self, rank: int) -> bool:
        """Whether the process of a rank that trains is kept from running by a signal, of a fault or of anyone else.

        A container numbers its processes for itself, so of a rank there this is not known.
        """
        state = self.states.get(rank)
        if self._containers is not None or state is None or state["state"] != "training":
            return False
        return process.is_suspended(state["pid"])

    def revive(self) -> None:
        """Restart fork servers that have ended; their ranks ended with them.

        Call it from a thread that lives as long as the keeper: a fork server ends with the thread that started it.
        """
        for key, server in list(self._servers.items()):
            if server.exited.is_set():
                del self._servers[key]
                self._start(key)

    def pause(self, rank: int, paused: bool) -> None:
        """Stop or continue the process of a rank; return when the signal was sent. Raises LabError."""
        (self._paused.add if paused else self._paused.discard)(rank)
        before = self._signalled[rank]
        if self._tell_server(rank, {"do": "signal", "rank": rank, "signal": "SIGSTOP" if paused else "SIGCONT"}):
            with self._changed:  # a fault counts from when it is in force, not from the request
                if not self._changed.wait_for(lambda: self._signalled[rank] > before, KILL_BOUND_S):
                    raise LabError(
                        f"rank {rank} could not be {'paused' if paused else 'resumed'} within {KILL_BOUND_S:g} s"
                    )

    def slow(self, rank: int, by: float) -> None:
        """Make the compute of a rank take ``1 + by`` times as long."""
        self._slowed[rank] = by
        self._tell_server(rank, {"do": "slow", "rank": rank, "by": by})

    def throttle(self, rank: int, node: str, cpu: float | None) -> None:
        """Limit the process of a rank, or the whole container of its node, to ``cpu`` CPUs; None: no limit."""
        with self._changed:  # a fresh process may be starting
            self._throttle.set(node, cpu, self.states[rank]["pid"] if rank in self.states else 0)
            (self._throttled.discard if cpu is None else self._throttled.add)(rank)

    def _tell_server(self, rank: int, message: Mapping[str, Any]) -> bool:
        """Send to the fork server of a rank; False where there is none, so no process to act on."""
        if rank in self.ranks and self._servers:
            with contextlib.suppress(LabError):
                self._server(self.ranks[rank]).say(message)
                return True
        return False

    def abandon(self) -> None:
        """Stop waiting for ranks to start: the lab is being taken down."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def refresh(self, ranks: Mapping[int, Rank] | None = None) -> None:
        """Deploy a fresh process for each of ``ranks`` (default: those that are gone or have run a job).

        Return when all answer /metrics. Raises LabError when one does not start in time.
        """
        if ranks is None:
            ranks = {
                number: self.ranks[number]
                for number, state in self.states.items()
                if state["state"] != "waiting" or self._deployed_as.get(number) != self._user
            }
        with self._changed:
            if held := [number for number in ranks if self.is_down(number)]:
                raise LabError(f"ranks {held} are down or paused by a fault; heal it first")
            for number in ranks:
                self._deploy(number)
        until = time.monotonic() + AGENTS_BOUND_S
        with self._changed:
            while late := [n for n in ranks if self.states[n]["state"] == "starting"]:
                if self._abandoned:
                    raise LabError("the lab is being taken down")
                if any(self._server(ranks[n]).exited.is_set() for n in late):
                    raise LabError(f"the training agents ended while they were starting: {self._last_line()}")
                if not self._changed.wait(min(1.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise LabError(f"ranks {late} did not answer within {AGENTS_BOUND_S:g} s: {self._last_line()}")
            failed = [n for n in ranks if self.states[n]["state"] != "waiting"]
        if failed:
            raise LabError(f"ranks {failed} ended while they were starting: {self._last_line()}")

    def _deploy(self, number: int) -> None:
        """Request a fresh process; :meth:`refresh` waits for it."""
        rank = self.ranks[number]
        with self._changed:
            if (before := self.states.get(number)) is not None and before["pid"]:
                self._replaced[number] = before["pid"]
            self.states[number] = {"state": "starting", "pid": 0, "reason": "", "ended_t": None}
            self._deployed_as[number] = self._user
        self._server(rank).say(
            {
                "do": "rank",
                "rank": number,
                "node": rank.node,
                "site": rank.site,
                "namespaces": self._namespaces(rank),
                "metrics": [rank.metrics, rank.port],
                "user": self._unprivileged(rank),
                "environment": self._environment(rank),
            }
        )
        # Faults of the rank also apply to its new process.
        if self._slowed.get(number):
            self.slow(number, self._slowed[number])
        if number in self._paused:
            self.pause(number, True)

    def train(self, message: Mapping[str, Any]) -> None:
        """Start a job on all ranks. Raises LabError, StorageError."""
        message = dict(message)
        user = message.pop("user", None)
        if self._containers is None:
            self._user = ProgramUser.from_dict(user) if user else None
        self.refresh()
        self._memory.renew()
        if self._containers is not None:
            nodes = [rank.node for rank in self.ranks.values()]
            self._containers.own(Path(message["directory"]))
            self._containers.show(Path(message["directory"]), nodes)
            if message.get("data"):
                self._containers.show(Path(message["data"]).absolute().parent, nodes)
        with self._changed:
            # Since all of them were ready, one may have been killed; it would be waited for as if it trained.
            if lost := {
                number: state["reason"] for number, state in self.states.items() if state["state"] != "waiting"
            }:
                why = "; ".join(dict.fromkeys(filter(None, lost.values()))) or "no reason is known"
                raise LabError(f"ranks {sorted(lost)} ended before the job began: {why}")
            for state in self.states.values():
                state |= {"state": "training", "reason": "", "ended_t": None, "job": message["job"]}
                state |= {"saved": False, "storage": False}
        for key, server in list(self._all_servers().items()):
            ranks = [number for number, rank in self.ranks.items() if self._key(rank) == key]
            server.say({**message, "do": "train", "ranks": ranks})

    def stop(self, job: str, save: bool = False) -> None:
        """Have all ranks end a job after their current step; ``save``: with a checkpoint of it."""
        for server in list(self._all_servers().values()):
            with contextlib.suppress(LabError):  # it has ended, and its ranks with it
                server.say({"do": "stop", "job": job, "save": save})

    def is_training(self, job: str) -> bool:
        """Whether any rank is training in a job."""
        return bool(self._training(job))

    def _training(self, job: str) -> list[int]:
        states = list(self.states.items())
        return [number for number, state in states if state["state"] == "training" and state.get("job") == job]

    def end_job(self, job: str, do: Callable[[Callable[[], None]], None]) -> None:
        """Have all ranks end a job after their current step; kill those that do not, and deploy fresh ones in the
        engine's thread, by ``do``: a fork server ends with the thread that starts it. Raises LabError."""

        if not self._training(job):
            return
        with contextlib.suppress(LabError):
            self.stop(job)
        with self._changed:
            self._changed.wait_for(lambda: not self._training(job), STOP_BOUND_S)
        if left := self._training(job):
            self.hold(left)
            try:
                self.await_end(left)
            finally:
                do(lambda: self.release(left))

    # ---- fork servers

    def _key(self, rank: Rank) -> str:
        return SHARED if self._containers is None else rank.node

    def _start(self, key: str) -> None:
        if key in self._servers:
            return
        argv: Sequence[str] = ()
        if key != SHARED:
            assert self._containers is not None
            place = ContainerPlace(container_name(self._lab, key), self._containers.docker, agent_user())
            argv = place.speak(["python", "-m", agent_host.MODULE])
        self._begin(key, agent_host.start(argv))

    def _begin(self, key: str, child: Popen[bytes]) -> None:
        self._servers[key] = ForkServer(self._log, lambda event: self._handle(key, event), child, key != SHARED)

    def _server(self, rank: Rank) -> ForkServer:
        try:
            return self._all_servers()[self._key(rank)]
        except KeyError:
            raise LabError(f"no training agent runs on {rank.node}") from None

    def _all_servers(self) -> dict[str, ForkServer]:
        """Copy before iterating: a node whose power returns gets a new one meanwhile. Raises LabError."""
        if not self._servers:
            raise LabError("this lab has no training agents")
        return self._servers

    def _namespaces(self, rank: Rank) -> dict[str, str]:
        """Namespaces that the process of a rank enters; none in a container, where it is inside already."""
        if self._containers is not None:
            return {}
        handles = {kind: str(self._handles / rank.node / kind) for kind in ("mnt", "uts", "ipc")}
        return {"net": str(self._driver.path(rank.node)), **handles}

    def _unprivileged(self, rank: Rank) -> dict[str, Any] | None:
        """Return the user that the process of a rank becomes; None where it stays who it is, as in a container."""
        if self._user is None or self._containers is not None:
            return None
        values = self._user.variables(scratch.of_node(self._folder, rank.node, self._user))
        return {
            "uid": self._user.uid,
            "gid": self._user.gid,
            "groups": list(self._user.groups),
            "environment": values,
            "unset": list(PASSED_OVER),
        }

    def _environment(self, rank: Rank) -> dict[str, str]:
        """Return variables of the process of a rank that stays who it is."""
        if self._containers is not None:
            return program_user.scratch_variables(self._scratch[rank.node])
        if self._user is None:
            return program_user.scratch_variables(scratch.of_node(self._folder, rank.node, None))
        return {}

    def _last_line(self) -> str:
        """Last line of the agents' log, for an error."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "their log cannot be read"
        return lines[-1] if lines else "their log is empty"

    def _handle(self, key: str, event: dict[str, Any]) -> None:
        with self._changed:
            state = self.states.get(event.get("rank", -1))
            if event["event"] in ("died", "gone"):
                event = {**event, **self._sender(key, event)}
            if event["event"] == "gone":
                for number, rank_state in self.states.items():
                    if self._key(self.ranks[number]) == key:
                        reason = "down by a fault" if self._held[number] else f"its fork server {event['how']}"
                        rank_state |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
                        rank_state["unexplained"] = _unexplained(event)
                self._signalled.update(number for number in self.states if self._key(self.ranks[number]) == key)
            elif event["event"] == "signalled":
                self._signalled[event["rank"]] += 1
            elif state is None:
                pass
            elif event["event"] == "ready":
                state |= {"state": "waiting", "pid": event["pid"]}
                self._memory.watch(event["rank"], self._process(event["rank"], event["pid"]))
                if event["rank"] in self._throttled:
                    try:
                        self._throttle.join(self.ranks[event["rank"]].node, event["pid"])
                    except HostError as error:  # the fault is active without effect: report it in the log
                        log(f"rank {event['rank']} is not throttled: {error}")
            elif event["event"] == "finished":
                state |= {
                    "state": "finished" if event["status"] == "ok" else event["status"],
                    "reason": event["reason"],
                    "ended_t": event["t"],
                    "saved": event["status"] == "saved",  # kept when its process is gone later
                    "storage": event.get("storage", False),
                }
            elif event["event"] == "died" and event["pid"] == self._replaced.get(event["rank"]):
                pass  # the process before, whose end was reported while its successor was being requested
            elif event["event"] == "died" and state["pid"] in (0, event["pid"]):
                how = process.how_ended(-event["signal"] if event.get("signal") else event.get("code", 0))
                reason = f"the process of rank {event['rank']} {how}"
                state |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
                state["unexplained"] = _unexplained(event)
            self._changed.notify_all()
        self._on_event(event)

    def _sender(self, key: str, event: Mapping[str, Any]) -> dict[str, bool]:
        """Return who ended a process, as fields of its event: whether the testbed did, and whether memory ran out."""
        ranks = [event["rank"]] if "rank" in event else [n for n, rank in self.ranks.items() if self._key(rank) == key]
        held = bool(ranks) and all(self._held[number] for number in ranks)
        killed = event.get("signal") == signal.SIGKILL and not held
        no_memory = killed and any(self._memory.killed(number) for number in ranks)
        return {"by_testbed": held or self._abandoned, "out_of_memory": no_memory}

    def _process(self, rank: int, pid: int) -> Path:
        """Return ``/proc/PID`` of a process in the control group of a rank's; a container numbers its own."""
        handle = self._driver.path(self.ranks[rank].node)
        return Path("/proc", str(pid)) if self._containers is None else Path(*handle.readlink().parts[:3])


def _unexplained(event: Mapping[str, Any]) -> str:
    end = ProcessEnd(
        event.get("rank"),
        event["t"],
        signal=event.get("signal") or 0,
        by_testbed=event["by_testbed"],
        out_of_memory=event["out_of_memory"],
    )
    return blame.describe(end) if blame.is_unexplained(end) else ""


def end_servers(facts: Mapping[str, Any]) -> None:
    """End the fork servers that ``make`` recorded in its facts, where they still run."""
    for pid, began in facts.get("parents", ()):
        process.end(pid, began)
