"""Measure the fibers of a lab: which packets go over which paths, how many, and what became of them.

First small packets and echoes, interleaved on all paths at once; then full-sized packets on all paths, within one CPU
budget; then packet trains, one direction at a time. ``testbed.host.measure`` sends and receives;
``testbed.core.certification.judge`` judges the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import psutil

from testbed.core.analysis.fidelity import OWN_DROPS
from testbed.core.certification.judge import DirectionSample, RoundTripSample, Stream, judge_direction, judge_round_trip
from testbed.core.certification.link_certificate import RATE_TOLERANCE, LinkCertificate
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Link, Topology
from testbed.errors import HostError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.measure import packet_trains
from testbed.host.measure.probing import Arrival, Echo, Probe, ProbePath, Prober, rounds
from testbed.keeper import client, protocol

__all__ = ["FAST", "RESOLVING_S", "SETTLE_S", "THOROUGH", "Effort", "Load", "Measuring", "Tell", "longest_s"]

INTERVAL_S = 0.004
"""Interval of small packets of a direction; longer where many links share the sender."""
SLOT_S = 0.0002
"""Minimum interval between two packets of the sender; sending one takes about 50 us."""
SETTLE_S = 0.05
RESOLVING_S = 2.5
"""How long a silent path may take to resolve its neighbours before it is measured. In large labs an ARP request is lost
now and then, and the kernel repeats it after one second (two, if that is lost as well); packets that waited for the
reply would be measured as late."""

TRAINS = 3
TRAIN_S, TRAINS_S = 0.02, 2.5
"""Duration of a train on the wire, and of all trains together. A train is shorter if the queue holds less, and in labs
of many links, whose directions are measured one after the other."""
LEAST_TRAIN_S = 0.008
MOST_TRAIN_BYTES = 20_000_000
"""Enough to expose a rate that no computer forwards; 20 ms at 800 Gb/s are 2 GB, which would take a second."""
JITTERS_OF_TRAIN = 40
"""Duration of a train in units of its path's jitter, which displaces the train's ends."""

EVENTS = 30
"""Expected lost (or duplicated, …) packets of a stream: enough to tell their share from zero and from its double."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured. Counts are per direction; ``all_probes`` and ``all_packets`` are totals.

    ``stream_s`` bounds the time of a slow link's full-sized packets, ``train_s`` that of one train.
    """

    probes: int
    fewest_probes: int
    all_probes: int
    packets: int
    most_packets: int
    all_packets: int
    stream_s: float
    train_s: float

    def probes_of(self, topology: Topology) -> int:
        """Return the probes per direction: with many links, which share one sender, fewer instead of a longer wait."""
        return max(self.fewest_probes, min(self.probes, self.all_probes // max(1, 2 * len(topology.links))))

    def packets_of(self, impairment: Impairment, mtu: int, directions: int) -> int:
        """Return the packets per direction: enough to resolve its rarest event, within the limits."""
        shares = (impairment.mean_loss, impairment.corrupt, impairment.duplicate, impairment.reorder)
        rarest = min((share for share in shares if share > 0), default=1.0)
        together = impairment.chain.mean_burst if impairment.chain else 1.0
        wanted = min(self.most_packets, max(self.packets, round(EVENTS * together / rarest)))
        wanted = max(min(wanted, self.packets // 4), min(wanted, self.all_packets // max(1, directions)))
        if impairment.rate_bps:
            frame_bits = 8 * (mtu + 14 + impairment.overhead_bytes)
            wanted = min(wanted, int(packet_trains.SHARE_OF_RATE * impairment.rate_bps * self.stream_s / frame_bits))
        return wanted


FAST = Effort(100, 30, 4000, 2_000, 20_000, 80_000, 0.7, 0.5)
THOROUGH = Effort(1000, 200, 40_000, 30_000, 300_000, 4_000_000, 20.0, 5.0)


@dataclass(frozen=True)
class Load:
    """Load of all cores during the measurement, 0..1."""

    busy: float
    stolen: float


class Measuring:
    """One certification: the probes of all paths and their results."""

    def __init__(self, lab: LabFolder, topology: Topology, effort: Effort, tell: Tell) -> None:
        self._lab, self._topology, self._effort, self._tell = lab, topology, effort, tell
        self._hello = client.ask(lab, protocol.Hello())
        self._taken_off_s = self._hello.get("taken_off_s", {})
        self._net = Addressing(topology)
        self._impairments = {name: link.impairment(name) for link in topology.links for name in link.directions}
        self._patience_s = SETTLE_S + max((longest_s(it) for it in self._impairments.values()), default=0.0)
        self.calibrated = frozenset(self._taken_off_s)
        """Names of the calibrated directions."""
        self._count = effort.probes_of(topology)
        self._interval_s = max(INTERVAL_S, SLOT_S * (3 * len(topology.links) + 3))
        self._train_s = TRAIN_S

    def measure(
        self, bare: Sequence[ProbePath], across: Mapping[str, Probe], inside: ProbePath | None
    ) -> tuple[tuple[LinkCertificate, ...], Load]:
        """Return all links, judged, and the machine's load while delays were measured.

        ``bare`` are both directions of the baseline path; its echo uses the first. ``across`` are probes from node
        to node of calibrated directions, ``inside`` is a path inside a site.
        """
        with ExitStack() as opened:
            paths = list(_paths(self._lab, self._topology, self._net))
            probes = {path.name: opened.enter_context(closing(Probe(path))) for path in (*paths, *bare)}
            small = {**probes, **across}
            whole = {link.name for link in self._topology.links if across.keys() >= set(link.directions)}
            trips = [across[it.name].path if it.name.partition(":")[0] in whole else it for it in paths]
            echoes, no_echoes = self._echoes(opened, trips, [*bare, *([inside] if inside else [])])
            before, cpu = _own_drops(self._lab), psutil.cpu_times()
            times = self._times([*small.values(), *echoes.values()])
            load = _load(cpu, psutil.cpu_times())
            streams = self._streams(probes, times)
            after = _own_drops(self._lab)
            rates = self._rates(probes, times)
        bare_s = [it.delay_s for path in bare for it in times[path.name]]
        rtts = {it: [each.delay_s for each in times.get(f"echo:{it}", ())] for it in ("bare", "inside")}
        links = []
        for link in self._topology.links:
            directions = [
                judge_direction(
                    name,
                    self._impairments[name],
                    DirectionSample(
                        delays_s=self._delays(times[name], () if name in across else (name,)),
                        bare_s=bare_s,
                        probes=self._count,
                        interval_s=self._interval_s / 2,  # an echo passes between two probes
                        stream=streams.get(name),
                        segmentation=self._segmentation(name),
                        own_drops=after.get(name, 0) - before.get(name, 0),
                        between="nodes" if name in across else "gateways",
                        taken_off_s=self._taken_off_s.get(name, 0.0),
                        **rates[name],
                    ),
                )
                for name in link.directions
            ]
            echo = f"echo:{link.name}"
            nodes = link.name in whole
            trip = RoundTripSample(
                self._delays(times.get(echo, ()), () if nodes else link.directions),
                rtts["inside" if nodes else "bare"],
                self._count,
                self._interval_s / 2,
                no_echoes,
                "nodes" if nodes else "gateways",
            )
            there, back = (self._impairments[name] for name in link.directions)
            rtt = judge_round_trip(there, back, trip)
            links.append(LinkCertificate(link.name, link.length_m / 1000, tuple(directions), rtt))
        return tuple(links), load

    def _delays(self, arrivals: Sequence[Arrival], calibrated: Sequence[str]) -> tuple[float, ...]:
        """Return each packet's delay, without those of duplicates. Gateways see the delay without what calibration took
        off ``calibrated``, the directions that were crossed, for the sake of nodes: add it again."""
        off_s = sum(self._taken_off_s.get(name, 0.0) for name in calibrated)
        return tuple(it + off_s for it in _first(arrivals))

    def _echoes(
        self, opened: ExitStack, paths: Sequence[ProbePath], bare: Sequence[ProbePath]
    ) -> tuple[dict[str, Echo], str]:
        """Open an echo for each link, from its first site, and one over the baseline; or return why there are none."""
        wanted = {f"echo:{path.name.partition(':')[0]}": path for path in reversed([*paths, *bare])}
        found: dict[str, Echo] = {}
        try:
            for name, path in wanted.items():
                echo = Echo(ProbePath(name, path.sender, path.source, path.receiver, path.destination, path.device))
                found[name] = opened.enter_context(closing(echo))
        except HostError as error:
            return {}, f"RTT: {error}"
        return found, ""

    def _times(self, probers: list[Prober]) -> dict[str, list[Arrival]]:
        # The first packets of a path resolve neighbours and warm caches; they are not counted.
        came = rounds(probers, 5, self._interval_s, self._patience_s)
        until = time.monotonic() + RESOLVING_S
        while (silent := [it for it in probers if not came[it.path.name]]) and time.monotonic() < until:
            came |= rounds(silent, 5, max(INTERVAL_S, SLOT_S * len(silent)), self._patience_s)
        self._say(f"{self._count} small packets and echoes per path", self._count * self._interval_s)
        return rounds(probers, self._count, self._interval_s, self._patience_s)

    def _streams(self, probes: Mapping[str, Probe], times: Mapping[str, Sequence[Arrival]]) -> dict[str, Stream]:
        wants = {}
        for link in self._topology.links:
            for name in link.directions:
                impairment = self._impairments[name]
                count = self._effort.packets_of(impairment, link.mtu, len(self._impairments))
                if times[name] and count:
                    wants[name] = packet_trains.Want(
                        probes[name],
                        count,
                        link.mtu,
                        impairment.rate_bps,
                        impairment.queue_bytes,
                        impairment.corrupt_survives,
                    )
        if not wants:
            return {}
        bits = sum(want.count * want.frame_bits for want in wants.values())
        takes_s = max(bits / packet_trains.CAPACITY_BPS, *(want.takes_s for want in wants.values()))
        total = sum(want.count for want in wants.values())
        self._say(f"{total} full-sized packets", takes_s)
        long = takes_s > 2.0
        results = packet_trains.stream(
            list(wants.values()),
            self._patience_s,
            (lambda share: self._tell(f"full-sized packets: {share:.0%}")) if long else None,
        )
        return {
            name: Stream(it.sent, it.arrived, it.sent_s, want.frame_s, it.wrong, it.missed)
            for (name, want), it in zip(wants.items(), results, strict=True)
        }

    def _rates(self, probes: Mapping[str, Probe], times: Mapping[str, Sequence[Arrival]]) -> dict[str, dict[str, Any]]:
        """Return the rate fields of a DirectionSample for each direction."""
        limited = sum(bool(it.rate_bps) for it in self._impairments.values())
        self._train_s = max(LEAST_TRAIN_S, min(TRAIN_S, TRAINS_S / max(1, limited)))
        self._say(f"rate of {limited} directions, one after the other", limited * (self._train_s + 0.005))
        found: dict[str, dict[str, Any]] = {}
        for link in self._topology.links:
            for name in link.directions:
                found[name] = {}
                if self._impairments[name].rate_bps:
                    found[name] = (
                        self._rate(probes[name], link, self._impairments[name])
                        if times[name]
                        else {"rate_why": "rate: no probe came through, so no packet train was sent"}
                    )
        return found

    def _rate(self, probe: Probe, link: Link, target: Impairment) -> dict[str, Any]:
        wanted_s = max(self._train_s, JITTERS_OF_TRAIN * target.jitter_s)
        frame_bits = 8 * (link.mtu + 14 + target.overhead_bytes)
        shortest_s = packet_trains.SHORTEST * frame_bits / target.rate_bps
        if shortest_s > self._effort.train_s:
            return {
                "rate_why": f"rate: {packet_trains.SHORTEST} packets take {shortest_s:.3g} s,"
                " longer than this certificate allows; --thorough allows more"
            }
        train_s = min(wanted_s, self._effort.train_s, 0.8 * 8 * target.queue_bytes / target.rate_bps or wanted_s)
        train_s = max(train_s, shortest_s)
        # Corrupted packets that fail their checksum take time on the wire and are not counted.
        seen = 1.0 - target.corrupt if target.corrupt_survives else 1.0
        slack = 4.0 * target.jitter_s / train_s
        patience_s = longest_s(target)
        wire_bytes = min(MOST_TRAIN_BYTES, int(target.rate_bps * train_s / 8))
        measured: list[float] = []
        for _ in range(TRAINS):
            found = packet_trains.rate(probe, link.mtu, wire_bytes, target.rate_bps, patience_s, target.overhead_bytes)
            if found is None:
                continue
            measured.append(found / seen)
            if abs(measured[-1] - target.rate_bps) <= (RATE_TOLERANCE + slack) * target.rate_bps:
                return {"rate_bps": measured[-1], "rate_slack": slack}
            # One undisturbed train is enough; only a result outside tolerance is repeated.
        return {"rate_bps": statistics.median(measured) if measured else None, "rate_slack": slack}

    def _segmentation(self, direction: str) -> str:
        if self._hello["emulator"] == "fiberd":
            return "emulator"
        return "sender" if direction in self._hello.get("segmented", ()) else "none"

    def _say(self, what: str, takes_s: float) -> None:
        self._tell(f"{what}, about {takes_s:.1f} s")


def longest_s(impairment: Impairment) -> float:
    """Return the longest delay of a packet in seconds, without queueing."""
    late = DISTRIBUTIONS.get(impairment.jitter_distribution, 4.0) if impairment.jitter_s else 0.0
    return impairment.delay_s + max(4.0, late) * impairment.jitter_s + impairment.reorder_by_s


def _first(arrivals: Sequence[Arrival]) -> tuple[float, ...]:
    """Return each packet's delay, without those of duplicates."""
    found: dict[int, float] = {}
    for arrival in arrivals:
        found.setdefault(arrival.number, arrival.delay_s)
    return tuple(found.values())


def _load(before: Any, after: Any) -> Load:
    passed = max(1e-9, sum(after) - sum(before))
    idle = (after.idle - before.idle) + (getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0))
    stolen = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return Load(min(1.0, max(0.0, 1.0 - idle / passed)), min(1.0, max(0.0, stolen / passed)))


def _own_drops(lab: LabFolder) -> dict[str, int]:
    return {
        it["direction"]: sum(it["drops"].get(cause, 0) for cause in OWN_DROPS)
        for it in client.ask(lab, protocol.Stats())["directions"]
    }


def _paths(lab: LabFolder, topology: Topology, net: Addressing) -> Iterator[ProbePath]:
    """Yield both directions of every link, from gateway to gateway."""
    for link in topology.links:
        for name, source, target in zip(link.directions, link.between, reversed(link.between), strict=True):
            yield ProbePath(
                name,
                lab_nodes.netns(lab, topology.site(source).gateway),
                str(net.link_end(link, source)[0]),
                lab_nodes.netns(lab, topology.site(target).gateway),
                str(net.link_end(link, target)[0]),
                link.name,
            )
