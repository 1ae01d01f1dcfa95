"""The keeper: one small resident process per lab that owns what must outlive a command.

It holds the lab's lock and its journal, runs the engine, supervises the emulator (a dead emulator is a cut: both ends
of every fiber go down), deploys and watches the agents, ends timed faults, and listens to link events. Commands talk
to it over a socket in the lab's folder, one JSON object a line; its verbs are the methods that begin with ``do_``.

Threads: one for the engine (netlink sockets belong to it alone), one per connection, one each for link events,
timers, the emulator and the agents. If the keeper dies its children die with it, fibers dark; `down` and `heal` then
work from the journal alone (``testbed.lab.recovery``).
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import filelock

from testbed import __version__
from testbed.core.plan import routing
from testbed.core.plan import step as steps
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.step import Carrier, Fibers, Step, Veth
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import LabError, StorageError, TestbedError
from testbed.host import process
from testbed.host.netns import NetnsDriver
from testbed.host.watch import CarrierWatch
from testbed.lab import engine as engine_module
from testbed.lab import hands
from testbed.lab.engine import Engine
from testbed.lab.journal import Journal
from testbed.lab.state import LabFolder

DETOURS = "detours"
"""Owner of the routes that lead around dark links elsewhere."""

EMULATOR_DIED = "emulator-died"
"""Owner of the cut that stands in for a dead emulator."""

BUILDER_PATIENCE_S = 15.0
"""How long a fresh keeper waits for whoever started it to connect."""

T = TypeVar("T")


class Keeper:
    """See the module. ``serve`` returns when the lab is down."""

    def __init__(self, lab: LabFolder, *, agents: bool) -> None:
        self._lab = lab
        self._lock = filelock.FileLock(lab.lock)
        self._lock.acquire(timeout=0)
        pid = os.getpid()
        self.journal = Journal.create(lab.journal, lab.name, process.boot_id(), (pid, process.started(pid)))
        self._driver = NetnsDriver(lab.name, lab.handles)
        self._emulator = hands.EmulatorHand(self._driver, lab.emulator_log, self._emulator_died)
        self._agents = hands.AgentsHand(self._driver, lab.handles, lab.agents_log, self._agent_event)
        self.engine = Engine(self.journal, hands.of_keeper(self._driver, self._emulator, self._agents))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._events: list[dict[str, Any]] = []
        self._events_changed = threading.Condition()
        self._faults: dict[str, dict[str, Any]] = {}
        self._timers: list[tuple[float, str]] = []
        self._timers_changed = threading.Condition()
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
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(self._lab.socket))
        self._lab.socket.chmod(0o600)
        listener.listen(16)
        for target in (self._run_timers, lambda: self._accept(listener)):
            threading.Thread(target=target, daemon=True).start()
        print("ready", flush=True)
        self._ended.wait(BUILDER_PATIENCE_S)
        if self._builder is None:
            self._down()  # whoever started us is gone before it could say what to build
        self._ended.wait()
        listener.close()

    def terminate(self) -> None:
        """SIGTERM: the machine goes down, or somebody wants us gone: take the lab down."""
        threading.Thread(target=self._down, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:

            def notice(text: str) -> None:
                with contextlib.suppress(OSError, ValueError):
                    stream.write(json.dumps({"notice": text}).encode() + b"\n")
                    stream.flush()

            with contextlib.suppress(OSError, ValueError):
                for line in stream:
                    answer = self._answer(json.loads(line), connection, notice)
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
            if self._builder is connection and self.journal.state == "building":
                # Whoever was building this lab is gone before it was whole: a failed `up` undoes itself.
                self._down()
        if self.journal.state == "down":
            self._ended.set()

    def _answer(
        self, request: dict[str, Any], connection: socket.socket, notice: Callable[[str], None]
    ) -> dict[str, Any]:
        verb = request.pop("call", "")
        method = getattr(self, "do_" + verb, None)
        try:
            if method is None:
                raise LabError(f"this keeper does not know '{verb}'")
            if verb == "build":
                self._builder = connection
                request["notice"] = notice
            return {"ok": method(**request)}
        except TestbedError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            log(f"{verb} failed: {error!r}")
            return {"error": f"the keeper could not do '{verb}': {error!r}", "kind": "LabError"}

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
        }

    def do_build(self, plan: list[dict[str, Any]], notice: Callable[[str], None]) -> None:
        """Apply the lab's own plan; the connection that asks must stay open until ``do_open``."""
        parsed = tuple(steps.from_dict(it) for it in plan)
        self._do(lambda: self.engine.apply(engine_module.LAB, parsed, notice))
        self._watch_carriers(parsed)

    def do_open(self, state: str = "up") -> None:
        """The lab is whole (or ``kept``, broken, on the user's wish)."""
        self.journal.set_state(state)
        log(f"lab {self._lab.name} is {state}")
        self._do(_hurry)  # from now on this thread has no children to pass its priority on to

    def do_apply(self, owner: str, plan: list[dict[str, Any]]) -> None:
        parsed = tuple(steps.from_dict(it) for it in plan)
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
            "directions": [
                {
                    "direction": it.direction,
                    "packets": it.packets,
                    "segments": it.segments,
                    "bytes": it.bytes,
                    "drops": dict(it.drops),
                    "queue_bytes": it.queue_bytes,
                    "lateness": {"bounds_s": list(it.lateness_bounds_s), "counts": list(it.lateness_counts)},
                }
                for it in found
            ],
        }

    def do_inject(self, fault: dict[str, Any], plan: list[dict[str, Any]]) -> dict[str, Any]:
        """Apply a fault's Steps; ``fault`` has type, target, links and for_s (seconds or None)."""
        parsed = tuple(steps.from_dict(it) for it in plan)

        def work() -> dict[str, Any]:
            number = 1 + sum(1 for note in self.journal.notes if note["note"] == "fault")
            record = {**fault, "id": f"f{number}"}
            self.journal.note("fault", **record)
            record["command_t"] = time.monotonic()
            try:
                self.engine.apply(record["id"], parsed)
            except TestbedError:
                with contextlib.suppress(TestbedError):
                    self.engine.undo(record["id"])
                    self.journal.note("fault-ended", id=record["id"], t=time.monotonic())
                raise
            record |= {"ack_t": time.monotonic(), "began_unix_s": time.time(), "ended_t": None}
            self._faults[record["id"]] = record
            self._event("fault-began", t=record["ack_t"], **self._of_fault(record))
            return record

        record = self._do(work)
        if record.get("for_s") is not None:
            with self._timers_changed:
                heapq.heappush(self._timers, (record["ack_t"] + record["for_s"], record["id"]))
                self._timers_changed.notify()
        return record

    def do_heal(self, ids: list[str]) -> list[dict[str, Any]]:
        """Undo these faults; those that are over already are left out of the answer."""
        return [record for record in (self._heal(it) for it in ids) if record is not None]

    def do_faults(self) -> list[dict[str, Any]]:
        return list(self._faults.values())

    def do_events(self, since: int = 0, wait_s: float = 0.0) -> dict[str, Any]:
        """Events from number ``since`` on; waits up to ``wait_s`` for one."""
        with self._events_changed:
            if since >= len(self._events) and wait_s > 0:
                self._events_changed.wait(min(wait_s, 10.0))
            return {"events": self._events[since:], "next": len(self._events)}

    def do_ranks(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank.rank,
                "node": rank.node,
                "site": rank.site,
                "metrics": [rank.metrics, rank.port],
                **self._agents.states[number],
            }
            for number, rank in sorted(self._agents.ranks.items())
        ]

    def do_train(self, message: dict[str, Any]) -> None:
        self._do(lambda: self._agents.train(message))

    def do_stop(self, job: str) -> None:
        self._agents.say({"do": "stop", "job": job})

    def do_down(self) -> None:
        self._down()

    # ---- what happens by itself

    def _event(self, kind: str, t: float | None = None, **content: Any) -> None:
        event = {"t": time.monotonic() if t is None else t, "event": kind, **content}
        with self._events_changed:
            self._events.append(event)
            self._events_changed.notify_all()
        log(kind + "".join(f" {key}={value}" for key, value in content.items() if value not in (None, "")))

    @staticmethod
    def _of_fault(record: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "fault": record["id"],
            "type": record["type"],
            "target": record["target"],
            "links": record["links"],
            "planned_t": record.get("planned_t"),
            "command_t": record["command_t"],
            "ack_t": record["ack_t"],
        }

    def _heal(self, fault: str) -> dict[str, Any] | None:
        def work() -> dict[str, Any] | None:
            record = self._faults.get(fault)
            if record is None or record["ended_t"] is not None:
                return None
            command = time.monotonic()
            self.engine.undo(fault)
            record["ended_t"] = time.monotonic()
            self._event(
                "fault-ended",
                t=record["ended_t"],
                **self._of_fault(record | {"command_t": command, "ack_t": record["ended_t"]}),
            )
            with contextlib.suppress(StorageError):  # it is over, whether or not a full disk lets us say so
                self.journal.note("fault-ended", id=fault, t=record["ended_t"])
            return record

        return self._do(work)

    def _run_timers(self) -> None:
        _hurry()
        while not self._ended.is_set():
            with self._timers_changed:
                if not self._timers:
                    self._timers_changed.wait()
                    continue
                due, fault = self._timers[0]
                left = due - time.monotonic()
                if left > 0:
                    self._timers_changed.wait(left)
                    continue
                heapq.heappop(self._timers)
            try:
                self._heal(fault)
            except Exception as error:
                self._event("note", text=f"fault {fault} could not be undone: {error}")

    def _emulator_died(self, status: int | None) -> None:
        """Take both ends of every fiber down: neither a perfect wire nor a silent black hole may be left."""
        ends = [it for entry in self.journal.owned(engine_module.LAB) for it in _fiber_ends(entry.step)]
        plan = tuple(Carrier(PLANT, end, False) for end in ends)

        def work() -> None:
            if self.journal.state != "down":
                self.engine.apply(EMULATOR_DIED, plan)

        with contextlib.suppress(RuntimeError):  # the worker is shut down: so is the lab
            self._do(work)
        self._event("emulator-died", status=status)

    def _agent_event(self, event: dict[str, Any]) -> None:
        kinds = {"began": "job-began", "finished": "job-ended", "died": "rank-died", "gone": "agents-gone"}
        if event["event"] in kinds:
            self._event(kinds[event["event"]], **{key: value for key, value in event.items() if key != "event"})

    def _watch_carriers(self, plan: tuple[Step, ...]) -> None:
        """Listen for the carriers of all gateways."""
        ends = {it for step in plan for it in _fiber_ends(step)}
        watched: dict[str, set[str]] = {}
        for step in plan:
            if isinstance(step, Veth) and step.a.name in ends:
                watched.setdefault(step.b.namespace, set()).add(step.b.name)
        self._topology = topology_from_dict(json.loads(self._lab.topology.read_text()))
        places = {gateway: self._driver.path(gateway) for gateway in watched}
        self._watch = CarrierWatch(places, watched, self._carrier_changed)
        self._watch.start()

    def _carrier_changed(self, t: float, gateway: str, link: str, up: bool) -> None:
        self._event("carrier", t=t, link=link, site=gateway.removesuffix("-gw"), up=up)
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
            self._event("rerouted", took_s=round(time.monotonic() - began, 4))
        except Exception as error:
            self._event("note", text=f"routes could not be changed: {error}")

    def _down(self) -> None:
        """Undo everything; afterwards only the folder is left, for whoever asked to remove."""

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
        self._do(work)
        if self._builder is not None or self.journal.state == "down":
            self._ended_soon()

    def _ended_soon(self) -> None:
        """Let the answer to `down` reach its asker before the process ends."""
        threading.Timer(0.05, self._ended.set).start()


def log(text: str) -> None:
    """One line of keeper.log (our stderr)."""
    print(f"{time.strftime('%H:%M:%S')} keeper: {text}", file=sys.stderr, flush=True)


def _hurry() -> None:
    """Let the calling thread go before the ranks: what begins or ends a fault must not wait behind them."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)


def _fiber_ends(step: Step) -> list[str]:
    if not isinstance(step, Fibers):
        return []
    return sorted({it.ingress for it in step.directions} | {it.egress for it in step.directions})


def main(arguments: list[str]) -> int:
    """``python -m testbed.lab.keeper FOLDER [--agents]``; says "ready" on stdout once it listens."""
    folder = LabFolder(Path(arguments[0]))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if not folder.path.is_dir():
        return 3  # taken down while we were starting: nothing of it may come back
    try:
        keeper = Keeper(folder, agents="--agents" in arguments)
    except filelock.Timeout:
        print(f"the lab {folder.name} has a keeper already", flush=True)
        return 3
    except TestbedError as error:
        print(error, flush=True)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: keeper.terminate())
    keeper.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
