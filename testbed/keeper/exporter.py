"""What the keeper of an observed lab tells Prometheus, collected when it is asked.

A scrape only reads: the emulator's counters by one question, carriers and faults from memory, counters of gateways from
files that stay open, the certificate again only when its file has changed. It takes no lock that a fault waits for, but
the emulator's for the time of that one question, and never the engine's thread.
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
    """Where the keeper's knowledge is; each is called at every scrape, from the scrape's thread.

    ``emulator`` is None when it died; ``ranks`` are those of the keeper's verb `ranks`; ``carriers`` those of gateways'
    interfaces, by (gateway, link); ``faults`` are (type, target) of those in force, and how many of each type began.
    """

    emulator: Callable[[], Emulator | None]
    ranks: Callable[[], Iterable[RankState]]
    carriers: Callable[[], Mapping[tuple[str, str], CarrierState]]
    faults: Callable[[], tuple[Iterable[tuple[str, str]], Mapping[str, int]]]
    certificate: Path


class Exporter(Collector):
    """See the module. ``gateways`` are handles of network namespaces, by the gateway's name. Close it."""

    def __init__(self, topology: Topology, sources: Sources, gateways: Mapping[str, Path]) -> None:
        self._topology, self._sources = topology, sources
        self._sites = {site.gateway: site.name for site in topology.sites}
        self._leaves = {
            direction: (link.name, site)
            for link in topology.links
            # A direction is named for the site that it leads to; a series, for the one that it leaves.
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
        """Everything by now, in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would collect once, before there is anything

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
                emulator = None  # gone, or so late that it was ended for it
        yield _family(series.EMULATOR_UP, [((), float(emulator is not None))])
        if emulator is not None:
            info = emulator.info
            yield _family(series.EMULATOR_INFO, [((info.name, info.scheduling, __version__), 1.0)])
            if emulator.pid is not None:
                yield _family(series.EMULATOR_CPU, [((), process.cpu_seconds(emulator.pid))])
        yield from self._counts({self._leaves[it.direction]: it for it in counted})
        yield _family(series.FIBER_DELAY, [(way, it.delay_s) for way, it in self._healthy])
        yield _family(series.FIBER_RATE, [(way, it.rate_bps) for way, it in self._healthy])

    @staticmethod
    def _counts(counted: Mapping[tuple[str, str], DirectionStats]) -> Iterator[Metric]:
        def each(what: Series, value: Callable[[DirectionStats], int | None]) -> Metric:
            values = [(way, value(it)) for way, it in counted.items()]
            return _family(what, [(way, found) for way, found in values if found is not None])

        yield each(series.FIBER_PACKETS, lambda it: it.packets)
        yield each(series.FIBER_SEGMENTS, lambda it: it.segments)
        yield each(series.FIBER_BYTES, lambda it: it.bytes)
        yield each(series.FIBER_CORRUPTED, lambda it: it.corrupted)
        yield each(series.FIBER_DUPLICATED, lambda it: it.duplicated)
        yield each(series.FIBER_HELD_BACK, lambda it: it.held_back)
        yield each(series.FIBER_QUEUE, lambda it: it.queue_bytes)
        drops = [((*way, cause), n) for way, it in counted.items() for cause, n in it.drops.items()]
        yield _family(series.FIBER_DROPPED, drops)
        yield _lateness({way: it for way, it in counted.items() if it.lateness_counts})

    def _links(self) -> Iterator[Metric]:
        seen = {(link, self._sites[gateway]): it for (gateway, link), it in self._sources.carriers().items()}
        yield _family(series.LINK_UP, [(way, float(it.lit)) for way, it in seen.items()])
        yield _family(series.LINK_CARRIER_CHANGES, [(way, it.changes) for way, it in seen.items()])

    def _interfaces(self) -> Iterator[Metric]:
        found = [
            ((self._sites[gateway], gateway, interface), traffic)
            for gateway, counters in self._counters.items()
            for interface, traffic in counters.read().items()
        ]
        yield _family(series.TRANSMITTED, [(labels, it.sent_bytes) for labels, it in found])
        yield _family(series.RECEIVED, [(labels, it.received_bytes) for labels, it in found])

    # ---- what else the keeper knows

    def _ranks(self) -> Iterator[Metric]:
        # A process that is being started has no pid yet.
        alive = [
            ((it["site"], it["node"], str(it["rank"])), float(it["state"] != "gone" and it["pid"] != 0))
            for it in self._sources.ranks()
        ]
        yield _family(series.RANK_UP, alive)

    def _faults(self) -> Iterator[Metric]:
        standing, began = self._sources.faults()
        yield _family(series.FAULT_ACTIVE, Counter(standing).items())
        # From zero on: a counter that begins with its first fault has no increase that a query could see.
        yield _family(series.FAULTS, [((kind,), began.get(kind, 0)) for kind in registry()])

    def _certified(self) -> Iterator[Metric]:
        found = self._read_certificate()
        if found is None:
            return
        directions = [(self._leaves.get(it.direction), it) for link in found.links for it in link.directions]
        known = [(way, it) for way, it in directions if way is not None]
        yield _family(series.CERTIFIED, [((), float(found.certified))])
        yield _family(series.CERTIFICATE_TIME, [((), found.taken_unix_s)])
        yield _family(series.CERTIFICATE_OK, [(way, float(it.ok)) for way, it in known])
        yield _family(series.CERTIFICATE_TOLERANCE, [(way, it.tolerance_s) for way, it in known])
        errors = [(way, it.error_median_s) for way, it in known]
        yield _family(series.CERTIFICATE_ERROR, [(way, error) for way, error in errors if error is not None])

    def _read_certificate(self) -> Certificate | None:
        """Read again only when another file is there by now: it is replaced as a whole, never written over."""
        try:
            found = self._sources.certificate.stat()
            version = (found.st_mtime_ns, found.st_ino)
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
    """All samples of one series; ``values`` are (values of its labels, value)."""
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
    """The emulator's histogram, whose counts are each bucket's own, made cumulative. It has no sum."""
    what = series.FIBER_LATENESS
    family = HistogramMetricFamily(what.name, what.meaning, labels=what.labels)
    for way, it in counted.items():
        total = 0
        buckets = []
        for bound, count in zip((*it.lateness_bounds_s, float("inf")), it.lateness_counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
        family.add_metric(way, buckets, None)
        family.add_sample(f"{what.name}_count", dict(zip(what.labels, way, strict=True)), total)
    return family
