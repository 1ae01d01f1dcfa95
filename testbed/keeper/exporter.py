"""Metrics that the keeper of an observed lab exports to Prometheus, collected at each scrape.

A scrape only reads: the emulator's counters by one query, carriers and faults from memory, counters of gateways from
files that stay open, the certificate only when its file has changed. It never uses the engine's thread, and the only
lock that a fault may wait for is the emulator's, for the time of that one query.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from testbed.core.certification.certificate import Certificate
from testbed.core.certification.link_certificate import NOT_MEASURED
from testbed.core.faults.fault_registry import registry
from testbed.core.prometheus import series
from testbed.core.prometheus.series import Series
from testbed.core.topology.model import Topology
from testbed.errors import LabError
from testbed.host.emulators.emulator import DirectionStats, Emulator
from testbed.host.linux import process
from testbed.host.linux.interfaces import InterfaceCounters
from testbed.host.measure.carrier_watch import CarrierState
from testbed.keeper.protocol import RankState
from testbed.version import __version__

__all__ = ["Exporter", "Sources"]


@dataclass(frozen=True)
class Sources:
    """Sources of the metrics; each is called at every scrape, from the scrape's thread.

    Attributes:
        emulator: returns None once the emulator has died.
        ranks: as the request ``Ranks`` answers.
        carriers: of gateways' interfaces, by (gateway, link).
        faults: (type, target) of those in force, and how many of each type have begun.
        certificate: its file.
    """

    emulator: Callable[[], Emulator | None]
    ranks: Callable[[], Iterable[RankState]]
    carriers: Callable[[], Mapping[tuple[str, str], CarrierState]]
    faults: Callable[[], tuple[Iterable[tuple[str, str]], Mapping[str, int]]]
    certificate: Path


class Exporter(Collector):
    """Collector of one lab. ``gateways`` are handles of network namespaces, by the gateway's name. Must be closed."""

    def __init__(self, topology: Topology, sources: Sources, gateways: Mapping[str, Path]) -> None:
        self._topology, self._sources = topology, sources
        self._sites = {site.gateway: site.name for site in topology.sites}
        self._leaves: dict[str, tuple[str, str]] = {
            direction: (link.name, site)
            for link in topology.links
            # A direction is named after the site that it leads to, a series after the one that it leaves.
            for direction, site in zip(link.directions, link.between, strict=True)
        }
        self._healthy = [
            (self._leaves[direction], link.impairment(direction))
            for link in topology.links
            for direction in link.directions
        ]
        self._counters = {gateway: InterfaceCounters(path) for gateway, path in gateways.items()}
        self._certificate: tuple[tuple[int, int], Certificate | None] = ((0, 0), None)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering would collect once, before there is an emulator

    def close(self) -> None:
        for counters in self._counters.values():
            counters.close()

    def collect(self) -> Iterator[Metric]:
        if self._topology.links:
            yield from self._fibers()
            yield from self._links()
        yield from self._interfaces()
        yield from self._ranks()
        yield from self._faults()
        yield from self._certified()
        yield _family(series.KEEPER_CPU, [((), time.process_time())])

    # ---- fibers

    def _fibers(self) -> Iterator[Metric]:
        emulator = self._sources.emulator()
        counted: tuple[DirectionStats, ...] = ()
        if emulator is not None:
            try:
                counted = emulator.stats()
            except LabError:
                emulator = None  # it has ended, or was killed because it did not answer
        yield _family(series.EMULATOR_UP, [((), float(emulator is not None))])
        if emulator is not None:
            info = emulator.info
            yield _family(series.EMULATOR_INFO, [((info.name, info.scheduling, __version__), 1.0)])
            if emulator.pid is not None:
                yield _family(series.EMULATOR_CPU, [((), process.cpu_seconds(emulator.pid))])
        yield from self._counts({self._leaves[stats.direction]: stats for stats in counted})
        yield _family(series.FIBER_DELAY, [(labels, impairment.delay_s) for labels, impairment in self._healthy])
        yield _family(series.FIBER_RATE, [(labels, impairment.rate_bps) for labels, impairment in self._healthy])

    @staticmethod
    def _counts(counted: Mapping[tuple[str, str], DirectionStats]) -> Iterator[Metric]:
        def each(what: Series, value: Callable[[DirectionStats], int | None]) -> Metric:
            values = [(labels, value(stats)) for labels, stats in counted.items()]
            return _family(what, [(labels, count) for labels, count in values if count is not None])

        yield each(series.FIBER_PACKETS, lambda stats: stats.packets)
        yield each(series.FIBER_SEGMENTS, lambda stats: stats.segments)
        yield each(series.FIBER_BYTES, lambda stats: stats.bytes)
        yield each(series.FIBER_CORRUPTED, lambda stats: stats.corrupted)
        yield each(series.FIBER_DUPLICATED, lambda stats: stats.duplicated)
        yield each(series.FIBER_HELD_BACK, lambda stats: stats.held_back)
        yield each(series.FIBER_QUEUE, lambda stats: stats.queue_bytes)
        drops = [((*labels, cause), n) for labels, stats in counted.items() for cause, n in stats.drops.items()]
        yield _family(series.FIBER_DROPPED, drops)
        yield _lateness({labels: stats for labels, stats in counted.items() if stats.lateness_counts})

    def _links(self) -> Iterator[Metric]:
        seen = {(link, self._sites[gateway]): carrier for (gateway, link), carrier in self._sources.carriers().items()}
        yield _family(series.LINK_UP, [(labels, float(carrier.lit)) for labels, carrier in seen.items()])
        yield _family(series.LINK_CARRIER_CHANGES, [(labels, carrier.changes) for labels, carrier in seen.items()])

    def _interfaces(self) -> Iterator[Metric]:
        traffic_by_port = [
            ((self._sites[gateway], gateway, self._topology.interfaces.full(interface)), traffic)
            for gateway, counters in self._counters.items()
            for interface, traffic in counters.read().items()
        ]
        yield _family(series.TRANSMITTED, [(labels, traffic.sent_bytes) for labels, traffic in traffic_by_port])
        yield _family(series.RECEIVED, [(labels, traffic.received_bytes) for labels, traffic in traffic_by_port])

    # ---- ranks, faults, certificate

    def _ranks(self) -> Iterator[Metric]:
        # A process that is starting has no pid yet.
        alive = [
            ((rank["site"], rank["node"], str(rank["rank"])), float(rank["state"] != "gone" and rank["pid"] != 0))
            for rank in self._sources.ranks()
        ]
        yield _family(series.RANK_UP, alive)

    def _faults(self) -> Iterator[Metric]:
        active, began = self._sources.faults()
        yield _family(series.FAULT_ACTIVE, Counter(active).items())
        # Zeros too: a counter that appears with its first fault shows no increase to a query.
        yield _family(series.FAULTS, [((kind,), began.get(kind, 0)) for kind in registry()])

    def _certified(self) -> Iterator[Metric]:
        certificate = self._read_certificate()
        if certificate is None:
            return
        directions = [
            (self._leaves.get(direction.direction), direction)
            for link in certificate.links
            for direction in link.directions
        ]
        labelled = [(labels, direction) for labels, direction in directions if labels is not None]
        yield _family(series.CERTIFIED, [((), float(certificate.certified))])
        yield _family(series.CERTIFICATE_NOISY, [((), float(certificate.noisy))])
        yield _family(series.CERTIFICATE_TIME, [((), certificate.taken_unix_s)])
        measured = [(labels, direction) for labels, direction in labelled if direction.verdict != NOT_MEASURED]
        yield _family(series.CERTIFICATE_OK, [(labels, float(direction.ok)) for labels, direction in measured])
        yield _family(series.CERTIFICATE_TOLERANCE, [(labels, direction.tolerance_s) for labels, direction in labelled])
        errors = [(labels, direction.error_median_s) for labels, direction in labelled]
        yield _family(series.CERTIFICATE_ERROR, [(labels, error) for labels, error in errors if error is not None])

    def _read_certificate(self) -> Certificate | None:
        """Return the certificate, read again only when the file was replaced; it is never overwritten in place."""
        try:
            status = self._sources.certificate.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version != self._certificate[0]:
                read = Certificate.from_dict(json.loads(self._sources.certificate.read_text()))
                self._certificate = (version, read)
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return self._certificate[1]


_FAMILIES: dict[str, type[CounterMetricFamily | GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


def _family(what: Series, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """Return all samples of one series; ``values`` are (label values, value)."""
    if what.kind == "info":
        info = InfoMetricFamily(what.name.removesuffix("_info"), what.meaning)
        for labels, _ in values:
            info.add_metric((), dict(zip(what.labels, labels, strict=True)))
        return info
    family = _FAMILIES[what.kind](what.name.removesuffix("_total"), what.meaning, labels=what.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _lateness(counted: Mapping[tuple[str, str], DirectionStats]) -> Metric:
    """Return the emulator's histogram with cumulative buckets. It has no sum."""
    what = series.FIBER_LATENESS
    family = HistogramMetricFamily(what.name, what.meaning, labels=what.labels)
    for labels, stats in counted.items():
        total = 0
        buckets = []
        for bound, count in zip((*stats.lateness_bounds_s, float("inf")), stats.lateness_counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
        family.add_metric(labels, buckets, None)
        family.add_sample(f"{what.name}_count", dict(zip(what.labels, labels, strict=True)), total)
    return family
