"""Record a run: events go into the run directory at once, metrics of fibers, host and ranks every second.

Four threads, so that none waits for another: the keeper pushes events (``keeper/subscription.py``); one thread samples
fibers, host and the log of its stalls; one reads the counters of the nodes; one scrapes the
ranks, which may not answer. The ranks of a launched program have no known metrics.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, MANAGEMENT
from testbed.core.records import capture_record
from testbed.core.records.samples import SCRAPED, NodeSample, RankSample
from testbed.core.records.stalls import Stall, TcpTimeouts
from testbed.core.topology.model import Topology
from testbed.errors import HostError, LabError, StorageError
from testbed.host import lab_nodes
from testbed.host.files.store import STALLS, RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.linux.interfaces import tcp_timeouts, traffic
from testbed.host.metrics.scrape import scrape_all
from testbed.keeper import client, protocol
from testbed.keeper.journal import FIBERS_DARK
from testbed.keeper.protocol import Event, RankState
from testbed.keeper.subscription import Subscription
from testbed.lab.jobs import run_metadata

__all__ = ["NodeCounters", "RankScraper", "Recorder", "StallRecorder"]


INTERVAL_S: Final = 1.0
BOUND_S: Final = 0.8
"""How long a rank may take to answer: less than the interval, so that each scrape ends before the next one."""

_NAMES: Final = frozenset(name for name, _ in SCRAPED.values())


class RankScraper:
    """``write`` receives each sample as a line of metrics.jsonl, from the thread of :meth:`run`."""

    def __init__(self, lab: LabFolder, topology: Topology, write: Callable[[Mapping[str, object]], None]) -> None:
        self._lab, self._write = lab, write
        self._targets = {rank.rank: (rank.metrics, rank.port) for rank in build.ranks(topology)}
        self._before: dict[int, RankSample] = {}
        self.tokens_per_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Scrape until ``stop``, and once more then; the calling thread enters the management namespace for good.

        Raises LabError, HostError, StorageError.
        """
        namespace.enter(lab_nodes.netns(self._lab, MANAGEMENT))
        due_t = time.monotonic()
        last = False
        while True:
            self._scrape()
            if last:
                return
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            last = stop.wait(due_t - time.monotonic())

    def _scrape(self) -> None:
        scrapes = scrape_all(self._targets, BOUND_S, _NAMES)
        samples = {
            rank: RankSample.from_series(scrape.t, rank, scrape.values, scrape.why) for rank, scrape in scrapes.items()
        }
        for sample in samples.values():
            self._write(sample.to_dict())
        self.tokens_per_s = sum(_tokens_per_s(self._before.get(rank), sample) for rank, sample in samples.items())
        self._before = samples


def _tokens_per_s(before: RankSample | None, after: RankSample) -> float:
    """Return the rate of one rank; 0 where it did not answer twice, or is a fresh process."""
    if before is None or before.tokens is None or after.tokens is None or after.t <= before.t:
        return 0.0
    return max(0, after.tokens - before.tokens) / (after.t - before.t)


class NodeCounters:
    """``write`` receives each sample as a line of metrics.jsonl, from the thread of :meth:`run`.

    No namespace is kept open from one sample to the next: it would outlive a node that loses its power, and hold up
    the carrier of its cables.
    """

    def __init__(
        self, lab: LabFolder, topology: Topology, write: Callable[[Mapping[str, object]], None], *, interfaces: bool
    ) -> None:
        self._lab, self._nodes, self._write = lab, topology.node_names, write
        self._interfaces = interfaces
        self._paths: dict[str, Path] = {}
        self._timeouts: dict[str, tuple[float, int]] = {}

    def run(self, stop: threading.Event) -> None:
        """Sample every second until ``stop``, and once more then. Raises StorageError."""
        due_t = time.monotonic()
        last = False
        while True:
            for sample in namespace.in_a_thread(lambda: list(self._samples())):
                self._write(sample.to_dict())
            if last:
                return
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            last = stop.wait(due_t - time.monotonic())

    def _samples(self) -> Iterator[NodeSample | TcpTimeouts]:
        """Yield what each node's kernel has counted; nothing of a node without power."""
        for node in self._nodes:
            try:
                if node not in self._paths:
                    self._paths[node] = lab_nodes.netns(self._lab, node)
                namespace.enter(self._paths[node])
                t, timeouts = time.monotonic(), tcp_timeouts()
                own = traffic().get(FABRIC_INTERFACE) if self._interfaces else None
            except (HostError, OSError):
                self._paths.pop(node, None)  # its container may come back with another namespace
                self._timeouts.pop(node, None)
                continue
            since_t, before = self._timeouts.get(node, (t, timeouts))
            self._timeouts[node] = (t, timeouts)
            if timeouts > before:
                yield TcpTimeouts(t, node, since_t, timeouts - before)
            if own is not None:
                yield NodeSample(t, node, own.sent_bytes, own.received_bytes)


MOST_KEPT: Final = 200_000
"""Stalls kept in memory, as many as the keeper's; the file has all."""


class StallRecorder:
    """Appends stalls to the run directory of a job; without a stall log (no privilege) it creates no file.

    :attr:`stalls` are the latest of those recorded so far; :attr:`watching` is None until the keeper has answered.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._next = protocol.NEWEST_STALL
        self.stalls: deque[Stall] = deque(maxlen=MOST_KEPT)
        self.watching: bool | None = None

    def sample(self, connection: client.Connection) -> None:
        """Append the stalls since the last call; the first call begins the log. Raises StorageError."""
        if self.watching is False:
            return
        try:
            answer = connection.keeper.stalls(since=self._next)
        except LabError:  # the request for counters reports a keeper that has ended
            self.watching = bool(self.watching)
            return
        self._next = answer["next"]
        if self.watching is None:
            self.watching = answer["watching"]
            if self.watching:
                self._run.write_text(STALLS, "")
        for core, began_t, length_s in answer["stalls"]:
            stall = Stall(core, began_t, length_s)
            self._run.append(STALLS, stall.to_dict())
            self.stalls.append(stall)


STOP_BOUND_S = 15.0


class Recorder:
    """Writes metrics.jsonl and events.jsonl until stopped; :attr:`error` says why it ended early."""

    _subscription: Subscription | None = None

    def __init__(self, lab: LabFolder, topology: Topology, run: RunDirectory, *, program: bool = False) -> None:
        """``program``: the job is a launched program."""
        self._lab, self._run = lab, run
        self._stop = threading.Event()
        self._scraper = RankScraper(lab, topology, lambda line: run.append("metrics.jsonl", line))
        nodes = NodeCounters(lab, topology, lambda line: run.append("metrics.jsonl", line), interfaces=program)
        loops = [self._sample, lambda: nodes.run(self._stop)]
        if not program:
            loops.append(lambda: self._scraper.run(self._stop))
        self._stalls = StallRecorder(run)
        self._before: dict[str, Any] = {}
        self.throughput_bps: dict[str, float] = {}
        self.scale = topology.scale
        self.error = ""
        self.events: list[dict[str, Any]] = []
        """Events so far."""
        self.shown = 0
        """How many of them the live display has shown."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name="recorder", daemon=True) for work in loops
        ]

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all ranks trained on per second, by the last two scrapes."""
        return self._scraper.tokens_per_s

    @property
    def complete_until(self) -> float:
        """Every event from before this CLOCK_MONOTONIC time is in :attr:`events`."""
        return 0.0 if self._subscription is None else self._subscription.complete_until

    @property
    def stalls(self) -> Sequence[Stall]:
        """The host's stalls so far, at most a second old."""
        return self._stalls.stalls

    @property
    def ranks(self) -> Sequence[RankState]:
        """The ranks' newest states. Raises LabError."""
        return () if self._subscription is None else self._subscription.state().ranks

    @property
    def lab_failure(self) -> str:
        """How the lab itself has failed, as far as events tell; empty if it has not."""
        for event in list(self.events):
            if event["event"] == "emulator-died":
                return FIBERS_DARK
            if event["event"] == "container-died":
                return f"the container of {event['node']} died"
        # Last: it may be an effect of the others.
        return self.error or ("" if self._subscription is None else self._subscription.failure)

    def start(self) -> None:
        try:
            self._subscription = self._follow()
        except (LabError, StorageError) as error:
            self.error = str(error)
            return
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Record what has happened until now, sample and scrape once more, then end."""
        self._stop.set()
        if (subscription := self._subscription) is None:
            return
        with contextlib.suppress(LabError, StorageError):  # its failure is in lab_failure
            subscription.state(time.monotonic(), STOP_BOUND_S)
        until = time.monotonic() + STOP_BOUND_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.error = self.error or subscription.failure
        subscription.close()
        self._subscription = None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (LabError, StorageError) as error:
            self.error = self.error or str(error)
        except Exception as error:
            self.error = self.error or f"the recorder failed: {error!r}"

    # ---- events

    def _follow(self) -> Subscription:
        """Follow the lab. Skip events from before this run, except the beginnings of faults that are still active, and
        of captures that go on."""
        page = client.keeper(self._lab).events(since=0)
        active = {fault["id"] for fault in client.keeper(self._lab).faults() if fault["ended_t"] is None}
        ends = {event["capture"] for event in page["events"] if event["event"] == capture_record.ENDED}
        self._heard(
            [
                event
                for event in page["events"]
                if (event["event"] == "fault-began" and event["fault"] in active)
                or (event["event"] == capture_record.BEGAN and event["capture"] not in ends)
            ]
        )
        return Subscription(self._lab, self._heard, since=page["next"])

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            self._run.append("events.jsonl", event)
            self.events.append(event)
        if any(event["event"] in (capture_record.BEGAN, capture_record.ENDED) for event in events):
            run_metadata.amend(self._run, captures=capture_record.of_events(self.events))

    # ---- fibers and host

    def _sample(self) -> None:
        psutil.cpu_percent()
        with client.Connection(self._lab) as connection:
            due_t = time.monotonic()
            last = False
            while True:
                self._sample_once(connection)
                self._stalls.sample(connection)
                if last:
                    return
                due_t = max(due_t + INTERVAL_S, time.monotonic())
                last = self._stop.wait(due_t - time.monotonic())

    def _sample_once(self, connection: client.Connection) -> None:
        stats = connection.keeper.stats()
        t = stats["t"]
        for direction in stats["directions"]:
            self._run.append("metrics.jsonl", {"t": t, "kind": "fiber", **direction})
        self._run.append(
            "metrics.jsonl",
            {
                "t": time.monotonic(),
                "kind": "host",
                "cpu_busy": psutil.cpu_percent() / 100,
                "emulator_cpu_s": stats["cpu_s"],
            },
        )
        counted = {direction["direction"]: direction["bytes"] for direction in stats["directions"]}
        if self._before and t > self._before["t"]:
            passed = t - self._before["t"]
            self.throughput_bps = {
                name: max(0, value - self._before["bytes"].get(name, 0)) * 8 / passed for name, value in counted.items()
            }
        self._before = {"t": t, "bytes": counted}
