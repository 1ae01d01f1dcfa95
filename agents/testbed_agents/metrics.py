"""Metrics of a rank, served on /metrics (names: docs/design.md, "Metrics of a rank").

Conventions: https://prometheus.io/docs/practices/naming/ (base units, counters end in _total).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from testbed_agents.interfaces import interface_bytes

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of histograms: from a collective inside a site to a step that waited out a cut."""

_LABELS = ("site", "node", "rank")


class _Interfaces(Collector):
    """Reads the kernel's counters at each scrape."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels

    def collect(self) -> Iterator[CounterMetricFamily]:
        names = (*_LABELS, "interface")
        sent = CounterMetricFamily("testbed_transmit_bytes", "Bytes sent by an interface of the node.", labels=names)
        received = CounterMetricFamily("testbed_receive_bytes", "Bytes received by an interface.", labels=names)
        for interface, traffic in interface_bytes().items():
            sent.add_metric((*self._labels, interface), traffic.sent)
            received.add_metric((*self._labels, interface), traffic.received)
        yield sent
        yield received


class _Process(Collector):
    """Reads CPU time and memory of this process at each scrape, with the names of prometheus_client's
    ProcessCollector, which has no labels."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        cpu = CounterMetricFamily("testbed_process_cpu_seconds", "CPU time of the rank's process.", labels=_LABELS)
        cpu.add_metric(self._labels, time.process_time())
        yield cpu
        memory = GaugeMetricFamily(
            "testbed_process_resident_memory_bytes",
            "Memory in RAM of the rank's process, with the pages that it shares.",
            labels=_LABELS,
        )
        memory.add_metric(self._labels, resident_bytes())
        yield memory


def resident_bytes() -> int:
    """Return the resident set of this process (proc_pid_statm(5)); pages shared with other processes count in full."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class RankMetrics:
    """The metrics of one rank, in a registry of their own, without those of the process's default registry."""

    def __init__(self, *, site: str, node: str, rank: int, torch_version: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge of the creation time per counter is useless here
        self.registry = CollectorRegistry()
        self._values = (site, node, str(rank))
        steps = Counter("testbed_steps", "Optimizer steps done.", _LABELS, registry=self.registry)
        step = Gauge("testbed_step", "The last step done, from 1.", _LABELS, registry=self.registry)
        train_loss = Gauge("testbed_train_loss", "Mean over ranks, in nats per byte.", _LABELS, registry=self.registry)
        tokens = Counter("testbed_tokens", "Tokens (bytes) this rank trained on.", _LABELS, registry=self.registry)
        step_seconds = Histogram(
            "testbed_step_seconds", "Duration of a step.", _LABELS, buckets=SECONDS, registry=self.registry
        )
        compute = Counter(
            "testbed_compute_seconds", "Forward, backward and optimizer.", _LABELS, registry=self.registry
        )
        exposed = Counter(
            "testbed_exposed_communication_seconds",
            "From the last gradient ready to gradients usable: waiting for a slower rank, and the network.",
            (*_LABELS, "part"),
            registry=self.registry,
        )
        collective = Histogram(
            "testbed_collective_seconds",
            "One all-reduce from its start on this rank to its end.",
            _LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        heartbeat = Gauge(
            "testbed_heartbeat_timestamp_seconds",
            "Unix time of the last progress: agent ready, step done, job over.",
            _LABELS,
            registry=self.registry,
        )
        agent = Info("testbed_agent", "The program behind this rank.", _LABELS, registry=self.registry)
        job = Info("testbed_job", "What the rank is doing.", _LABELS, registry=self.registry)
        self.registry.register(_Interfaces(self._values))
        self.registry.register(_Process(self._values))

        self._steps, self._step = steps.labels(*self._values), step.labels(*self._values)
        self._train_loss, self._tokens = train_loss.labels(*self._values), tokens.labels(*self._values)
        self._step_seconds = step_seconds.labels(*self._values)
        self._compute = compute.labels(*self._values)
        self._peer_wait = exposed.labels(*self._values, "peer_wait")
        self._network = exposed.labels(*self._values, "network")
        self._collective = collective.labels(*self._values)
        self._heartbeat = heartbeat.labels(*self._values)
        self._job = job.labels(*self._values)
        self.last_step = 0
        self.port = 0  # not served yet
        agent.labels(*self._values).info({"torch": torch_version, "version": _own_version()})
        self.job_state("", "waiting")

    def serve(self, address: str, port: int) -> None:
        """Serve on this address only, from a thread of its own. Raises OSError if it cannot be bound."""
        self.port = port
        prometheus_client.start_http_server(port, addr=address, registry=self.registry)

    def job_state(self, job: str, state: str) -> None:
        """``state``: waiting, training, finished, stopped or failed."""
        self._job.info({"job": job, "state": state})
        self._heartbeat.set(time.time())

    def collective_done(self, seconds: float) -> None:
        self._collective.observe(seconds)

    def step_done(
        self, *, step: int, train_loss: float, tokens: int, compute_s: float, peer_wait_s: float, network_s: float
    ) -> None:
        self.last_step = step
        self._step.set(step)
        self._train_loss.set(train_loss)
        self._tokens.inc(tokens)
        self._step_seconds.observe(compute_s + peer_wait_s + network_s)
        self._compute.inc(compute_s)
        self._peer_wait.inc(peer_wait_s)
        self._network.inc(network_s)
        self._heartbeat.set(time.time())
        self._steps.inc()  # last: a reader that waits for a step count finds the other metrics updated


def _own_version() -> str:
    try:
        return version("scale-across-testbed")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
