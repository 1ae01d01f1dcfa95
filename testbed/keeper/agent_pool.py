"""The hand that deploys the agents: one process per rank, forked from a warm parent that has torch imported already.

Nodes that are namespaces share one parent, started ahead of time, whose ranks enter their node. A container has a
parent of its own, inside: nothing may enter it from outside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.plan.resources import Agents, Rank
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, LabError
from testbed.host import fork_server as agent_host
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.containerlab import Containerlab, agent_user, container_name
from testbed.host.drivers.driver import Facts
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.fork_server import ForkServer
from testbed.host.linux import process
from testbed.keeper.event_log import log
from testbed.keeper.protocol import AgentState
from testbed.keeper.throttle import Throttle

AGENTS_BOUND_S = 90.0
"""How long importing torch and forking may take on a machine that does much else."""

KILL_BOUND_S = 10.0

EVERYBODY = ""
"""Key of the one parent of all ranks."""


class AgentPool:
    """Deploys one agent per rank and knows what each is doing.

    ``heard`` is called with every event of a parent, from a thread. ``containers`` are where the nodes are, if they are
    containers.
    """

    def __init__(
        self,
        lab: str,
        driver: NetnsDriver,
        handles: Path,
        log: Path,
        heard: Callable[[dict[str, Any]], None],
        containers: Containerlab | None = None,
    ) -> None:
        self._lab, self._driver, self._handles, self._log, self._tell = lab, driver, handles, log, heard
        self._containers = containers
        self._changed = threading.Condition()
        self._parents: dict[str, ForkServer] = {}
        self._abandoned = False
        self._held: Counter[int] = Counter()
        """Ranks that no process may be deployed for, and how many faults say so."""
        self._paused: set[int] = set()
        self._slowed: dict[int, float] = {}
        self._throttle, self._throttled = Throttle(lab, driver.path), set[int]()
        self._signalled: Counter[int] = Counter()
        """How many signals each rank's parent has said to have sent."""
        self.ranks: dict[int, Rank] = {}
        self.states: dict[int, AgentState] = {}

    def prepare(self) -> None:
        """Start importing torch while the rest of the lab is being built; containers are not there yet."""
        if self._containers is None:
            self._start(EVERYBODY)

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Agents)
        self.ranks = {rank.rank: rank for rank in step.ranks}
        for key in dict.fromkeys(self._key(rank) for rank in step.ranks):
            self._start(key)
        self.refresh(self.ranks)
        return {"parents": [[parent.pid, parent.began] for parent in self._parents.values()]}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if self._parents:
            stopping = [threading.Thread(target=parent.stop) for parent in self._parents.values()]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
            self._parents.clear()
            self.ranks.clear()
        else:
            end_parents(facts)

    def assign(self, settings: Sequence[Property]) -> None:
        return None

    # ---- what happens to ranks (keeper/rank_faults.py)

    def hold(self, ranks: Sequence[int]) -> None:
        """Kill the processes of these ranks, and deploy none for them until :meth:`release`."""
        with self._changed:  # or a job that begins now might deploy one behind our back
            self._held.update(ranks)
            for rank in ranks:
                self._speak_of(rank, {"do": "signal", "rank": rank, "signal": "SIGKILL"})

    def await_end(self, ranks: Sequence[int], with_parents: bool = False) -> None:
        """Return when the processes of these ranks, which are held, are gone. Raises LabError.

        ``with_parents``: their parents were killed too, so nobody is left who could be late. Else a rank whose parent
        still imports torch is not waited for: it dies as soon as it is born.
        """

        def is_left(number: int) -> bool:
            if self.states.get(number, {"state": "gone"})["state"] == "gone":
                return False
            parent = self._parents.get(self._key(self.ranks[number]))
            return with_parents or (parent is not None and parent.warm)

        with self._changed:
            if not self._changed.wait_for(lambda: not any(map(is_left, ranks)), KILL_BOUND_S):
                raise LabError(f"ranks {[it for it in ranks if is_left(it)]} do not end")

    @property
    def parents_inside(self) -> bool:
        """Whether each node has a parent of its own, inside, which goes when the node is emptied."""
        return self._containers is not None

    def release(self, ranks: Sequence[int]) -> None:
        """Agents may come back: now, or with the next job where one is going on. Until then all see who died."""
        free = [it for it in ranks if self._held[it] == 1 and it in self.ranks and not self._abandoned]
        for key in {self._key(self.ranks[it]) for it in free}:
            if (parent := self._parents.get(key)) is None or parent.exited.is_set():
                self._parents.pop(key, None)
                self._start(key)
        # Not before a parent is there: who fails here is called again, and must not let go twice.
        self._held.subtract(ranks)
        if not any(it["state"] == "training" for it in self.states.values()):
            for rank in free:
                with contextlib.suppress(LabError):  # its parent has just ended: it comes with the next job
                    self._deploy(rank)

    def is_down(self, rank: int) -> bool:
        """Whether a fault keeps a job from beginning on this rank."""
        return self._held[rank] > 0 or rank in self._paused

    def revive(self) -> None:
        """Start a parent again that has ended; its ranks ended with it. From a thread that lives as long as we do."""
        for key, parent in list(self._parents.items()):
            if parent.exited.is_set():
                del self._parents[key]
                self._start(key)

    def pause(self, rank: int, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(rank)
        before = self._signalled[rank]
        if self._speak_of(rank, {"do": "signal", "rank": rank, "signal": "SIGSTOP" if paused else "SIGCONT"}):
            with self._changed:  # a fault has begun when it has happened, not when it was asked for
                if not self._changed.wait_for(lambda: self._signalled[rank] > before, KILL_BOUND_S):
                    raise LabError(f"rank {rank} could not be {'paused' if paused else 'let go on'}")

    def slow(self, rank: int, by: float) -> None:
        """``by`` 0.5: half as long more."""
        self._slowed[rank] = by
        self._speak_of(rank, {"do": "slow", "rank": rank, "by": by})

    def throttle(self, rank: int, node: str, cpu: float | None) -> None:
        """At most ``cpu`` CPUs for the process of a rank, in a container for all that runs there; None: no limit."""
        with self._changed:  # a fresh process may be coming up
            self._throttle.set(node, cpu, self.states[rank]["pid"] if rank in self.states else 0)
            (self._throttled.discard if cpu is None else self._throttled.add)(rank)

    def _speak_of(self, rank: int, message: Mapping[str, Any]) -> bool:
        """To the parent of a rank; False where there is none: then nothing is there that could be changed."""
        if rank in self.ranks and self._parents:
            with contextlib.suppress(LabError):
                self._parent(self.ranks[rank]).say(message)
                return True
        return False

    def abandon(self) -> None:
        """Whoever waits for ranks to come up waits in vain: the lab goes."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def refresh(self, ranks: Mapping[int, Rank] | None = None) -> None:
        """Have a fresh process for each of ``ranks`` (default: those that are gone or have a job behind them).

        Returns when all answer /metrics; raises LabError when one does not come up in time.
        """
        if ranks is None:
            ranks = {number: self.ranks[number] for number, it in self.states.items() if it["state"] != "waiting"}
        with self._changed:
            if held := [number for number in ranks if self.is_down(number)]:
                raise LabError(f"ranks {held} are down, or paused, by a fault: heal it first")
            for number in ranks:
                self._deploy(number)
        until = time.monotonic() + AGENTS_BOUND_S
        with self._changed:
            while late := [n for n in ranks if self.states[n]["state"] == "starting"]:
                if self._abandoned:
                    raise LabError("the lab is being taken down")
                if any(self._parent(ranks[n]).exited.is_set() for n in late):
                    raise LabError(
                        f"the training agents ended while they were starting; their last words: {self._words()}"
                    )
                if not self._changed.wait(min(1.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise LabError(f"ranks {late} did not answer within {AGENTS_BOUND_S:g} s: {self._words()}")
            failed = [n for n in ranks if self.states[n]["state"] != "waiting"]
        if failed:
            raise LabError(f"ranks {failed} ended while they were starting: {self._words()}")

    def _deploy(self, number: int) -> None:
        """Ask for a fresh process; :meth:`refresh` waits for it."""
        rank = self.ranks[number]
        with self._changed:
            self.states[number] = {"state": "starting", "pid": 0, "reason": "", "ended_t": None}
        self._parent(rank).say(
            {
                "do": "rank",
                "rank": number,
                "node": rank.node,
                "site": rank.site,
                "namespaces": self._namespaces(rank),
                "metrics": [rank.metrics, rank.port],
            }
        )
        # A fault of the rank's is not over because its process is another one now.
        if self._slowed.get(number):
            self.slow(number, self._slowed[number])
        if number in self._paused:
            self.pause(number, True)

    def train(self, message: Mapping[str, Any]) -> None:
        """Give all ranks a job. Raises LabError, StorageError."""
        self.refresh()
        if self._containers is not None:
            nodes = [rank.node for rank in self.ranks.values()]
            self._containers.own(Path(message["directory"]))
            self._containers.show(Path(message["directory"]), nodes)
            if message.get("data"):
                self._containers.show(Path(message["data"]).absolute().parent, nodes)
        with self._changed:
            for state in self.states.values():
                state |= {"state": "training", "reason": "", "ended_t": None, "job": message["job"]}
                state |= {"saved": False, "storage": False}
        for key, parent in list(self._all_parents().items()):
            ranks = [number for number, rank in self.ranks.items() if self._key(rank) == key]
            parent.say({"do": "train", "ranks": ranks, **message})

    def stop(self, job: str, save: bool = False) -> None:
        """Have all ranks end a job after the step that they are in; ``save``: with a checkpoint of it."""
        for parent in list(self._all_parents().values()):
            with contextlib.suppress(LabError):  # it is gone, and its ranks with it
                parent.say({"do": "stop", "job": job, "save": save})

    # ---- parents

    def _key(self, rank: Rank) -> str:
        return EVERYBODY if self._containers is None else rank.node

    def _start(self, key: str) -> None:
        if key in self._parents:
            return
        argv: Sequence[str] = ()
        if key != EVERYBODY:
            assert self._containers is not None
            place = ContainerPlace(container_name(self._lab, key), self._containers.docker, agent_user())
            argv = place.speak(["python", "-m", agent_host.MODULE])
        self._parents[key] = ForkServer(self._log, lambda event: self._heard(key, event), argv)

    def _parent(self, rank: Rank) -> ForkServer:
        try:
            return self._all_parents()[self._key(rank)]
        except KeyError:
            raise LabError(f"there is no agent on {rank.node}") from None

    def _all_parents(self) -> dict[str, ForkServer]:
        """Whoever goes through them copies first: a node that gets its power back gets another in between."""
        if not self._parents:
            raise LabError("this lab has no training agents")
        return self._parents

    def _namespaces(self, rank: Rank) -> dict[str, str]:
        """What the process of a rank enters; nothing in a container, where it is inside already."""
        if self._containers is not None:
            return {}
        handles = {kind: str(self._handles / rank.node / kind) for kind in ("mnt", "uts", "ipc")}
        return {"net": str(self._driver.path(rank.node)), **handles}

    def _words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "none"
        return lines[-1] if lines else "none"

    def _heard(self, key: str, event: dict[str, Any]) -> None:
        with self._changed:
            state = self.states.get(event.get("rank", -1))
            if event["event"] == "gone":
                for number, it in self.states.items():
                    if self._key(self.ranks[number]) == key:
                        reason = "down by a fault" if self._held[number] else f"the warm parent {event['how']}"
                        it |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
                self._signalled.update(number for number in self.states if self._key(self.ranks[number]) == key)
            elif event["event"] == "signalled":
                self._signalled[event["rank"]] += 1
            elif state is None:
                pass
            elif event["event"] == "ready":
                state |= {"state": "waiting", "pid": event["pid"]}
                if event["rank"] in self._throttled:
                    try:
                        self._throttle.join(self.ranks[event["rank"]].node, event["pid"])
                    except HostError as error:  # the fault stands, and is not felt: said where others look
                        log(f"rank {event['rank']} is not held back: {error}")
            elif event["event"] == "finished":
                state |= {
                    "state": "finished" if event["status"] == "ok" else event["status"],
                    "reason": event["reason"],
                    "ended_t": event["t"],
                    "saved": event["status"] == "saved",  # also when its process is gone by then
                    "storage": event.get("storage", False),
                }
            elif event["event"] == "died" and state["pid"] in (0, event["pid"]):
                how = process.how_ended(-event["signal"] if event.get("signal") else event.get("code", 0))
                reason = f"the process of rank {event['rank']} {how}"
                state |= {"state": "gone", "reason": reason, "ended_t": event["t"]}
            self._changed.notify_all()
        self._tell(event)


def end_parents(facts: Mapping[str, Any]) -> None:
    """End the parents that ``make`` wrote down, wherever they are still there."""
    for pid, began in facts.get("parents", ()):
        process.end(pid, began)
