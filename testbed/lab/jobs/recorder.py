"""Record a run: metrics of ranks, fibers and host go into the run directory every second, events at once.

One thread, which runs inside the management network's namespace, the only place where the ranks' metrics are reachable.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil

from testbed.core.plan import build
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.topology.model import Topology
from testbed.errors import LabError, StorageError
from testbed.host import lab_nodes
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.metrics.scrape import scrape
from testbed.keeper import client, protocol
from testbed.keeper.journal import FIBERS_DARK

INTERVAL_S = 1.0
EVENT_INTERVAL_S = 0.1


class Recorder:
    """Writes metrics.jsonl and events.jsonl until stopped; :attr:`error` says why it ended early."""

    def __init__(self, lab: LabFolder, topology: Topology, run: RunDirectory) -> None:
        self._lab, self._topology, self._run = lab, topology, run
        self._ranks = build.ranks(topology)
        self._stop = threading.Event()
        self._seen = 0
        self._before: dict[str, Any] = {}
        self._tokens: tuple[float, float] = (0.0, 0.0)
        self.throughput_bps: dict[str, float] = {}
        self.tokens_per_s = 0.0
        self.error = ""
        self.events: list[dict[str, Any]] = []
        """Events so far."""
        self.shown = 0
        """How many of them the live display has shown."""
        self.complete_until = 0.0
        """Every event from before this CLOCK_MONOTONIC time is in :attr:`events`."""
        self._thread = threading.Thread(target=self._record, name="recorder", daemon=True)

    @property
    def lab_failure(self) -> str:
        """How the lab itself has failed, as far as events tell; empty if it has not."""
        for event in list(self.events):
            if event["event"] == "emulator-died":
                return FIBERS_DARK
            if event["event"] == "container-died":
                return f"the container of {event['node']} died"
        return self.error  # last: it may be an effect of the others

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Scrape once more, then end."""
        self._stop.set()
        self._thread.join(15.0)

    def _record(self) -> None:
        try:
            namespace.enter(lab_nodes.netns(self._lab, MANAGEMENT))
            self._catch_up()
            psutil.cpu_percent()
            due = time.monotonic()
            last = False
            while True:
                self._events()
                if last or time.monotonic() >= due:
                    self._scrape()
                    due = max(due + INTERVAL_S, time.monotonic())
                if last:
                    return
                last = self._stop.wait(EVENT_INTERVAL_S)
        except (LabError, StorageError) as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"the recorder failed: {error!r}"

    def _catch_up(self) -> None:
        """Skip events from before this run, except the beginnings of faults that are still active."""
        answer = client.ask(self._lab, protocol.Events(since=0))
        active = {it["id"] for it in client.ask(self._lab, protocol.Faults()) if it["ended_t"] is None}
        self._seen = answer["next"]
        for event in answer["events"]:
            if event["event"] == "fault-began" and event["fault"] in active:
                self._run.append("events.jsonl", event)
                self.events.append(event)

    def _events(self) -> None:
        asked_t = time.monotonic()
        answer = client.ask(self._lab, protocol.Events(since=self._seen))
        self._seen = answer["next"]
        for event in answer["events"]:
            self._run.append("events.jsonl", event)
            self.events.append(event)
        self.complete_until = asked_t

    def _scrape(self) -> None:
        tokens = 0.0
        for rank in self._ranks:
            values = scrape(rank.metrics, rank.port, timeout_s=0.5)
            if values is None:
                continue  # leave a gap in the series rather than invent a value
            tokens += sum(value for name, value in values.items() if name.startswith("testbed_tokens_total"))
            self._run.append(
                "metrics.jsonl",
                {
                    "t": time.monotonic(),
                    "kind": "rank",
                    "rank": rank.rank,
                    "node": rank.node,
                    "site": rank.site,
                    "values": {
                        name: value for name, value in values.items() if value == value and abs(value) != float("inf")
                    },
                },
            )
        stats = client.ask(self._lab, protocol.Stats())
        t = stats["t"]
        for it in stats["directions"]:
            self._run.append("metrics.jsonl", {"t": t, "kind": "fiber", **it})
        self._run.append(
            "metrics.jsonl",
            {
                "t": time.monotonic(),
                "kind": "host",
                "cpu_busy": psutil.cpu_percent() / 100,
                "emulator_cpu_s": stats["cpu_s"],
            },
        )
        self._rates(t, {it["direction"]: it["bytes"] for it in stats["directions"]}, tokens)

    def _rates(self, t: float, counted: dict[str, int], tokens: float) -> None:
        if self._before and t > self._before["t"]:
            passed = t - self._before["t"]
            self.throughput_bps = {
                name: max(0, value - self._before["bytes"].get(name, 0)) * 8 / passed for name, value in counted.items()
            }
            self.tokens_per_s = max(0.0, tokens - self._before["tokens"]) / passed
        self._before = {"t": t, "bytes": counted, "tokens": tokens}
