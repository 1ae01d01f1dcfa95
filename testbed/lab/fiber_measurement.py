"""Measure the fibers of a lab: which packets go over which paths, how many, and what became of them.

First small packets and echoes, interleaved on all paths at once; then full-sized packets on all paths, within one CPU
budget; then packet trains (``rate_measurement.py``). ``testbed.host.measure`` sends and receives;
``testbed.core.certification.judge`` judges the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from testbed.core.certification.certificate import HostNoise
from testbed.core.certification.host_log import FEWEST_PACKETS, HostLog, Leg
from testbed.core.certification.judge import (
    DirectionSample,
    RoundTripSample,
    Stream,
    judge_delays,
    judge_direction,
    judge_round_trip,
)
from testbed.core.certification.link_certificate import LinkCertificate
from testbed.core.certification.spread import Spread
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Topology
from testbed.errors import HostError
from testbed.host import lab_nodes
from testbed.host.emulators.emulator import is_process
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.cpu_load import Load, LoadMeter
from testbed.host.linux.scheduling import realtime_priority
from testbed.host.measure import packet_trains
from testbed.host.measure.probing import Arrival, Echo, Probe, ProbePath, Prober, rounds
from testbed.keeper import client
from testbed.lab import packet_log
from testbed.lab.packet_log import PacketLog, split_by_host, tries
from testbed.lab.rate_measurement import RateSample, longest_s, measure_rates

__all__ = ["FAST", "RESOLVING_S", "SETTLE_S", "THOROUGH", "Effort", "Measuring", "Tell", "longest_s", "probe_paths"]

INTERVAL_S = 0.002
"""Interval of small packets of a direction; longer where many links share the sender."""
SLOT_S = 0.0002
"""Minimum interval between two packets of the sender; sending one takes about 50 us."""
SETTLE_S = 0.05
RESOLVING_S = 2.5
"""How long a silent path may take to resolve its neighbours before it is measured. In large labs an ARP request is lost
now and then, and the kernel repeats it after one second (two, if that is lost as well); packets that waited for the
reply would be measured as late."""

EVENTS = 80
"""Expected lost (or duplicated, …) packets of a stream: enough to tell their share from zero, and from its double 99
times of 100 (the interval of 1e-6 ends at 127, and the double is 160 +- 13)."""

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


@dataclass
class _SmallPackets:
    """Delays of the small packets of one path, of all tries together, in seconds.

    ``delayed_s`` are those that the host delayed, by its log; ``kept`` are the others, by place among the packets
    ``sent``.
    """

    sent: int = 0
    kept: dict[int, float] = field(default_factory=dict)
    delayed_s: list[float] = field(default_factory=list)
    tries: int = 0

    @property
    def arrived(self) -> int:
        return len(self.kept) + len(self.delayed_s)

    @property
    def kept_s(self) -> list[float]:
        return list(self.kept.values())


_NO_RATE = RateSample()


class Measuring:
    """One certification: the probes of all paths and their results."""

    def __init__(self, lab: LabFolder, topology: Topology, effort: Effort, tell: Tell) -> None:
        self._lab, self._topology, self._effort, self._tell = lab, topology, effort, tell
        self._hello = client.keeper(lab).hello()
        self._taken_off_s = self._hello.get("taken_off_s", {})
        self._net = Addressing(topology)
        self._impairments: dict[str, Impairment] = {
            name: link.impairment(name) for link in topology.links for name in link.directions
        }
        self._jittered = {
            link.name
            for link in topology.links
            if any(link.impairment(direction).jitter_s for direction in link.directions)
        }
        self._patience_s = SETTLE_S + max(
            (longest_s(impairment) for impairment in self._impairments.values()), default=0.0
        )
        self.calibrated = frozenset(self._taken_off_s)
        """Names of the calibrated directions."""
        self._count = effort.probes_of(topology)
        self._interval_s = max(INTERVAL_S, SLOT_S * (3 * len(topology.links) + 6))

    def measure(
        self, bare: Sequence[ProbePath], across: Mapping[str, Probe], inside: ProbePath | None
    ) -> tuple[tuple[LinkCertificate, ...], Load, HostNoise]:
        """Return the judged links, the machine's load during the last measurement of delays, and the noise of the host.

        ``bare`` are both directions of the baseline path; its echo uses the first. ``across`` are probes from node
        to node of calibrated directions, ``inside`` is a path inside a site.
        """
        with ExitStack() as opened:
            paths = list(probe_paths(self._lab, self._topology, self._net))
            probes = {path.name: opened.enter_context(closing(Probe(path))) for path in (*paths, *bare)}
            small = {**probes, **across}
            whole = {link.name for link in self._topology.links if across.keys() >= set(link.directions)}
            trips = [across[path.name].path if path.name.partition(":")[0] in whole else path for path in paths]
            echoes, no_echoes = self._echoes(opened, trips, bare, inside)
            before = packet_log.read_counters(self._lab)
            delays, load, noise = self._delays(small, echoes, across)
            streams = self._streams(probes, delays)
            after = packet_log.read_counters(self._lab)
            reached = [path.name for path in paths if delays[path.name].arrived]
            rates = measure_rates(self._lab, self._topology, probes, reached, self._effort.train_s, self._tell)
        links = []
        for link in self._topology.links:
            directions = []
            for name in link.directions:
                sample = self._sample(name, delays, across, streams.get(name), rates.get(name, _NO_RATE))
                own_drops = after[name].own_drops - before[name].own_drops if name in before else 0
                sample = replace(sample, own_drops=own_drops, segmentation=self._segmentation(name))
                directions.append(judge_direction(name, self._impairments[name], sample))
            echo = delays.get(f"echo:{link.name}", _SmallPackets())
            nodes = link.name in whole
            trip = RoundTripSample(
                times_s=self._seen_s(echo, () if nodes else link.directions),
                bare_s=delays.get("echo:inside" if nodes else "echo:bare", _SmallPackets()).kept_s,
                probes=echo.sent,
                arrived=echo.arrived,
                places=tuple(echo.kept),
                interval_s=self._interval_s / 2,
                why=no_echoes,
                between="nodes" if nodes else "gateways",
            )
            there, back = (self._impairments[name] for name in link.directions)
            rtt = judge_round_trip(there, back, trip)
            links.append(LinkCertificate(link.name, link.length_m / 1000, tuple(directions), rtt))
        return tuple(links), load, noise

    def _sample(
        self,
        name: str,
        small: Mapping[str, _SmallPackets],
        across: Collection[str],
        stream: Stream | None = None,
        rate: RateSample = _NO_RATE,
    ) -> DirectionSample:
        own = small[name]
        return DirectionSample(
            delays_s=self._seen_s(own, () if name in across else (name,)),
            bare_s=[delay_s for path, bare in small.items() if path.startswith("bare:") for delay_s in bare.kept_s],
            probes=own.sent,
            arrived=own.arrived,
            places=tuple(own.kept),
            interval_s=self._interval_s / 2,  # an echo passes between two probes
            stream=stream,
            between="nodes" if name in across else "gateways",
            taken_off_s=self._taken_off_s.get(name, 0.0),
            delay_tries=own.tries,
            rate_bps=rate.bps,
            rate_why=rate.why,
            rate_unmeasured=rate.unmeasured,
            rate_slack=rate.slack,
            rate_tries=rate.tries,
            rate_beside=rate.beside,
        )

    def _seen_s(self, small: _SmallPackets, calibrated: Sequence[str]) -> tuple[float, ...]:
        """Return the delays of the kept packets, plus what calibration took off the directions ``calibrated``.

        Calibration is for packets between nodes; packets between gateways arrive earlier by as much.
        """
        off_s = sum(self._taken_off_s.get(name, 0.0) for name in calibrated)
        return tuple(delay_s + off_s for delay_s in small.kept_s)

    def _echoes(
        self, opened: ExitStack, paths: Sequence[ProbePath], bare: Sequence[ProbePath], inside: ProbePath | None
    ) -> tuple[dict[str, Echo], str]:
        """Open an echo for each link, from its first site, one over the baseline, and one inside a site; or return why
        there are none. Those named ``warming:`` are not counted (:func:`_in_turn`)."""
        wanted = {f"echo:{path.name.partition(':')[0]}": path for path in reversed([*paths, *bare])}
        if inside:
            wanted |= {"warming:inside": inside, "echo:inside": inside}
        if paths and (first := _over(paths[0].name)) not in self._jittered:
            wanted[f"warming:{first}"] = paths[0]
        echoes: dict[str, Echo] = {}
        try:
            for name, path in wanted.items():
                echo = Echo(ProbePath(name, path.sender, path.source, path.receiver, path.destination, path.device))
                echoes[name] = opened.enter_context(closing(echo))
        except HostError as error:
            return {}, f"RTT: {error}"
        return echoes, ""

    def _delays(
        self, probes: Mapping[str, Probe], echoes: Mapping[str, Echo], across: Collection[str]
    ) -> tuple[dict[str, _SmallPackets], Load, HostNoise]:
        """Return the small packets of every path, the load during the last try, and the noise of the host.

        Only links that cannot be judged, or are bad on a host that delays packets, are measured again; packets of all
        tries count together.
        """
        probers = _in_turn({**probes, **echoes}, self._jittered)
        self._warm_up(list(probers.values()))
        small = {name: _SmallPackets() for name in probers}
        again: Collection[str] = probers
        with PacketLog(self._lab) as packet_log:
            for attempt in tries(self._tell):
                repeated = ", again" if attempt > 1 else ""
                interval_s = self._interval_s
                if attempt > 1 and not any(_over(name) in self._jittered for name in again):
                    interval_s = max(INTERVAL_S, SLOT_S * (len(again) + 3))  # a few links need not wait for all others
                self._say(f"{self._count} small packets and echoes per path{repeated}", self._count * interval_s)
                meter = LoadMeter()
                with realtime_priority(wanted=is_process(self._hello["emulator"])):
                    arrivals = rounds([probers[name] for name in again], self._count, interval_s, self._patience_s)
                load = meter.read()
                log = packet_log.read()
                for name in again:
                    self._add(small[name], probers[name], arrivals[name], log)
                again = self._to_repeat(small, across)
                if not again:
                    break
        return small, load, _noise([small[name] for name in probes if not name.startswith("bare:")], log)

    def _add(self, small: _SmallPackets, prober: Prober, arrivals: Sequence[Arrival], log: HostLog) -> None:
        """Add the packets of one try: the last ones that the prober sent."""
        # Places continue after the last try. The prober's numbers do too, but include packets that do not count.
        shift = small.sent + self._count - len(prober.departures)
        kept, delayed = split_by_host(log, prober, arrivals, self._crossed(prober.path.name))
        small.kept |= {arrival.number + shift: arrival.delay_s for arrival in kept}
        small.delayed_s += [arrival.delay_s for arrival in delayed]
        small.kept = dict(sorted(small.kept.items()))
        small.sent += self._count
        small.tries += 1

    def _crossed(self, name: str) -> list[Leg]:
        """Return the directions that a prober's packets cross, in their order."""
        over = _over(name)
        link = next((link for link in self._topology.links if link.name == over), None)
        if link is None:
            return []
        directions = link.directions if name.partition(":")[0] in ("echo", "warming") else (name,)
        return [
            Leg(direction, impairment.delay_s, longest_s(impairment) - impairment.delay_s)
            for direction, impairment in ((direction, self._impairments[direction]) for direction in directions)
        ]

    def _to_repeat(self, small: Mapping[str, _SmallPackets], across: Collection[str]) -> list[str]:
        """Return the paths to measure again: those of links that could not be judged, and of bad links if the host
        delayed any packet."""
        delayed = any(path.delayed_s for path in small.values())
        names: set[str] = set()
        for link in self._topology.links:
            if not all(small[name].arrived for name in link.directions):
                continue  # a dark fiber: another try has the same result
            verdicts = {
                check.verdict
                for name in link.directions
                for check in judge_delays(self._impairments[name], self._sample(name, small, across))
            }
            echo = small.get(f"echo:{link.name}")
            few = echo is not None and len(echo.kept) < min(FEWEST_PACKETS, echo.arrived)
            if few or "unmeasured" in verdicts or (delayed and "bad" in verdicts):
                names |= {*link.directions, f"echo:{link.name}"}
        references = ("bare:", "echo:bare", "echo:inside", "warming:")
        return [name for name in small if name in names or (names and name.startswith(references))]

    def _warm_up(self, probers: Sequence[Prober]) -> None:
        """Send the first packets of each path, which resolve neighbours and fill caches; they are not counted."""
        came = rounds(probers, 5, self._interval_s, self._patience_s)
        until = time.monotonic() + RESOLVING_S
        while (silent := [prober for prober in probers if not came[prober.path.name]]) and time.monotonic() < until:
            came |= rounds(silent, 5, max(INTERVAL_S, SLOT_S * len(silent)), self._patience_s)

    def _streams(self, probes: Mapping[str, Probe], delays: Mapping[str, _SmallPackets]) -> dict[str, Stream]:
        wants = {}
        for link in self._topology.links:
            for name in link.directions:
                impairment = self._impairments[name]
                count = self._effort.packets_of(impairment, link.mtu, len(self._impairments))
                if delays[name].arrived and count:
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
            name: Stream(counts.sent, counts.arrived, counts.sent_s, want.frame_s, counts.wrong, counts.missed)
            for (name, want), counts in zip(wants.items(), results, strict=True)
        }

    def _segmentation(self, direction: str) -> str:
        if is_process(self._hello["emulator"]):
            return "emulator"
        return "sender" if direction in self._hello.get("segmented", ()) else "none"

    def _say(self, what: str, takes_s: float) -> None:
        self._tell(f"{what}, about {takes_s:.1f} s")


def _in_turn(probers: Mapping[str, Prober], jittered: Collection[str]) -> dict[str, Prober]:
    """Return the probers of a round in the order of sending: each echo behind the other packets over its path.

    A packet over hops that nothing has used for milliseconds finds cold caches, and takes some microseconds more at
    each. RTTs are compared with each other and with delays, so each must be that of a path just used. The first packets
    of a round and the echo inside a site follow echoes that are not counted (``warming:``). The echoes of ``jittered``
    links come last: a fiber that keeps the order must not hold them back behind the packets just sent.
    """
    over = {name: _over(name) for name in probers}
    groups = {group: place for place, group in enumerate(dict.fromkeys(over.values()))}

    def turn(name: str) -> tuple[int, int]:
        sort = name.partition(":")[0]
        if sort == "echo" and over[name] in jittered:
            return len(groups), 0
        return groups[over[name]], {"warming": 0, "echo": 2}.get(sort, 1)

    return {name: probers[name] for name in sorted(probers, key=turn)}


def _over(name: str) -> str:
    """Return what a prober's packets cross: the name of a link, ``bare``, or ``inside``."""
    sort, _, crossed = name.partition(":")
    return crossed if sort in ("echo", "warming") else sort


def _noise(paths: Sequence[_SmallPackets], log: HostLog) -> HostNoise:
    """Return the noise of the host in the small packets of ``paths``."""
    beyond_s = [
        delay_s - middle_s
        for path in paths
        if path.delayed_s
        for middle_s in [statistics.median(path.kept_s or path.delayed_s)]
        for delay_s in path.delayed_s
    ]
    spread = Spread.of(beyond_s)
    return HostNoise(
        packets=sum(path.arrived for path in paths),
        delayed=len(beyond_s),
        median_s=spread.median if spread else None,
        p99_s=spread.p99 if spread else None,
        stalls=log.stall_count,
        longest_stall_s=log.longest_stall_s,
        stalled_share=log.stalled_share,
    )


def probe_paths(lab: LabFolder, topology: Topology, net: Addressing) -> Iterator[ProbePath]:
    """Yield both directions of every link, from gateway to gateway."""
    for link in topology.links:
        for name, source, target in zip(link.directions, link.between, reversed(link.between), strict=True):
            yield ProbePath(
                name,
                lab_nodes.netns(lab, topology.site(source).gateway),
                str(net.link_end(link, source)[0]),
                lab_nodes.netns(lab, topology.site(target).gateway),
                str(net.link_end(link, target)[0]),
                topology.interfaces.of_link(link.name),
            )
