"""The fidelity certificate: every fiber measured both ways against the same path with a zero-delay redirect.

Delays and round trips are measured on all links at once, interleaved with the bare reference path, so that whatever
the machine does to one it does to the other. Then full-sized packets are counted, on all links at once, below every
rate and within one budget of the machine. Rates are measured one direction at a time: trains would compete for the
cores. One certification at a time per host. It also proves that nothing goes around the fiber. What it all means is
judged by ``testbed.core.evidence.judge``.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import psutil

from testbed.core.evidence.certificate import RATE_TOLERANCE, Certificate, LinkCertificate
from testbed.core.evidence.judge import (
    DirectionSample,
    RoundTripSample,
    Stream,
    judge_direction,
    judge_round_trip,
)
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.plan import build
from testbed.core.plan import step as steps
from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Link, Topology
from testbed.errors import HostError
from testbed.host import netlink, trains
from testbed.host.probing import Arrival, Echo, Probe, ProbePath, Prober, congestion_control, rounds
from testbed.lab import client, places, state
from testbed.lab.state import LabFolder

REFERENCE = "certification"
"""Owner of the reference path's Steps."""

INTERVAL_S = 0.004
"""Between two small packets of a direction, or more where many links share the sender."""
SLOT_S = 0.0003
SETTLE_S = 0.05
TRAINS = 3
TRAIN_S = 0.02
"""A train of this duration on the wire, as far as the queue holds it."""
JITTERS_OF_TRAIN = 40
"""A train lasts so many times its path's jitter, which moves its ends."""

EVENTS = 30
"""Lost (or doubled, …) packets to be expected of a stream: then their share can be told from none and from twice."""

OWN_DROPS = ("receive", "memory", "transmit")
"""Drops that are the emulator's failure, not the fiber's doing."""

SYSCTLS = (
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_no_metrics_save",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/wmem_max",
)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured. Counts are for each direction; ``all_probes`` and ``all_packets`` are for all together.

    ``stream_s`` bounds what a slow link may take for its full-sized packets, ``train_s`` for one train.
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
        """Probes on many links share one sender: what each gets then is fewer, not a longer wait for everybody."""
        return max(self.fewest_probes, min(self.probes, self.all_probes // max(1, 2 * len(topology.links))))

    def packets_of(self, impairment: Impairment, mtu: int, directions: int) -> int:
        """As many as tell its rarest event, if that can be had."""
        shares = (impairment.mean_loss, impairment.corrupt, impairment.duplicate, impairment.reorder)
        rarest = min((share for share in shares if share > 0), default=1.0)
        together = impairment.chain.mean_burst if impairment.chain else 1.0
        wanted = min(self.most_packets, max(self.packets, round(EVENTS * together / rarest)))
        wanted = max(min(wanted, self.packets // 4), min(wanted, self.all_packets // max(1, directions)))
        if impairment.rate_bps:
            frame_bits = 8 * (mtu + 14 + impairment.overhead_bytes)
            wanted = min(wanted, int(trains.SHARE_OF_RATE * impairment.rate_bps * self.stream_s / frame_bits))
        return wanted


FAST = Effort(100, 30, 4000, 2_000, 20_000, 80_000, 0.7, 0.5)
THOROUGH = Effort(1000, 200, 40_000, 30_000, 300_000, 4_000_000, 20.0, 5.0)


@dataclass(frozen=True)
class _Load:
    """Of all cores, 0..1, while it was measured."""

    busy: float
    stolen: float


def certify(lab: LabFolder, topology: Topology, *, thorough: bool = False, tell: Tell | None = None) -> Certificate:
    """Measure every link of a lab that is up. Takes about a second, longer with many links or ``thorough``.

    ``tell`` is told what is being done and how long that will take. Raises LabError or HostError when it cannot be
    measured at all; what is measured and bad is in the certificate.
    """
    tell = tell or (lambda text: None)
    began = time.monotonic()
    with filelock.FileLock(state.root() / "certification.lock"):
        measuring = _Measuring(lab, topology, THOROUGH if thorough else FAST, tell)
        links, (around_ok, around_why), load = measuring.measure()
    hello = client.call(lab, "hello")
    return Certificate(
        lab=lab.name,
        topology=topology.name,
        taken_unix_s=time.time(),
        emulator=hello["emulator"],
        links=links,
        around_ok=around_ok,
        around_why=around_why,
        cpu_busy=load.busy,
        host=_host(lab, topology, hello["scheduling"]),
        thorough=thorough,
        took_s=round(time.monotonic() - began, 3),
        stolen=load.stolen,
    )


class _Measuring:
    """One certification: the sockets of all paths, and what came of each."""

    def __init__(self, lab: LabFolder, topology: Topology, effort: Effort, tell: Tell) -> None:
        self._lab, self._topology, self._effort, self._tell = lab, topology, effort, tell
        self._net = Addressing(topology)
        self._impairments = {name: link.impairment(name) for link in topology.links for name in link.directions}
        self._patience_s = SETTLE_S + max((_longest(it) for it in self._impairments.values()), default=0.0)
        self._count = effort.probes_of(topology)
        self._interval_s = max(INTERVAL_S, SLOT_S * (3 * len(topology.links) + 3))

    def measure(self) -> tuple[tuple[LinkCertificate, ...], tuple[bool, str], _Load]:
        with _reference(self._lab, self._topology) as bare, ExitStack() as opened:
            around = _around(self._lab, self._topology, self._net)
            paths = list(_paths(self._lab, self._topology, self._net))
            probes = {path.name: opened.enter_context(closing(Probe(path))) for path in (*paths, *bare)}
            echoes, no_echoes = self._echoes(opened, paths, bare)
            before, cpu = _own_drops(self._lab), psutil.cpu_times()
            times = self._times([*probes.values(), *echoes.values()])
            load = _load(cpu, psutil.cpu_times())
            streams = self._streams(probes, times)
            after = _own_drops(self._lab)
            rates = self._rates(probes, times)
        bare_s = [it.delay_s for path in bare for it in times[path.name]]
        bare_rtt_s = [it.delay_s for it in times.get("echo:bare", ())]
        links = []
        for link in self._topology.links:
            directions = [
                judge_direction(
                    name,
                    self._impairments[name],
                    DirectionSample(
                        delays_s=_first(times[name]),
                        bare_s=bare_s,
                        probes=self._count,
                        interval_s=self._interval_s / 2,  # an echo passes between two probes
                        stream=streams.get(name),
                        segmentation=self._segmentation(name),
                        own_drops=after.get(name, 0) - before.get(name, 0),
                        **rates[name],
                    ),
                )
                for name in link.directions
            ]
            echo = f"echo:{link.name}"
            trip = RoundTripSample(
                _first(times.get(echo, ())), bare_rtt_s, self._count, self._interval_s / 2, no_echoes
            )
            there, back = (self._impairments[name] for name in link.directions)
            rtt = judge_round_trip(there, back, trip)
            links.append(LinkCertificate(link.name, link.length_m / 1000, tuple(directions), rtt))
        return tuple(links), around, load

    def _echoes(
        self, opened: ExitStack, paths: Sequence[ProbePath], bare: Sequence[ProbePath]
    ) -> tuple[dict[str, Echo], str]:
        """One for each link, from the first of its sites, and one over the bare path; or why there are none."""
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
        # The first packets of a path resolve neighbours and warm caches: they are sent, and not counted.
        rounds(probers, 5, self._interval_s, self._patience_s)
        self._say(f"{self._count} small packets and echoes each", self._count * self._interval_s)
        return rounds(probers, self._count, self._interval_s, self._patience_s)

    def _streams(self, probes: Mapping[str, Probe], times: Mapping[str, Sequence[Arrival]]) -> dict[str, Stream]:
        wants = {}
        for link in self._topology.links:
            for name in link.directions:
                impairment = self._impairments[name]
                count = self._effort.packets_of(impairment, link.mtu, len(self._impairments))
                if times[name] and count:
                    wants[name] = trains.Want(
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
        takes_s = max(bits / trains.CAPACITY_BPS, *(want.takes_s for want in wants.values()))
        total = sum(want.count for want in wants.values())
        self._say(f"{total} full-sized packets", takes_s)
        long = takes_s > 2.0
        results = trains.stream(
            list(wants.values()),
            self._patience_s,
            (lambda share: self._tell(f"full-sized packets: {share:.0%}")) if long else None,
        )
        return {
            name: Stream(it.sent, it.arrived, it.sent_s, want.frame_s, it.wrong, it.missed)
            for (name, want), it in zip(wants.items(), results, strict=True)
        }

    def _rates(self, probes: Mapping[str, Probe], times: Mapping[str, Sequence[Arrival]]) -> dict[str, dict[str, Any]]:
        """For each direction the fields of a DirectionSample that are about its rate."""
        limited = sum(bool(it.rate_bps) for it in self._impairments.values())
        self._say(f"the rate of {limited} directions, one after the other", limited * (TRAIN_S + 0.005))
        found: dict[str, dict[str, Any]] = {}
        for link in self._topology.links:
            for name in link.directions:
                found[name] = {}
                if self._impairments[name].rate_bps:
                    found[name] = (
                        self._rate(probes[name], link, self._impairments[name])
                        if times[name]
                        else {"rate_why": "rate: no probe came through, so no train was sent"}
                    )
        return found

    def _rate(self, probe: Probe, link: Link, target: Impairment) -> dict[str, Any]:
        wanted_s = max(TRAIN_S, JITTERS_OF_TRAIN * target.jitter_s)
        frame_bits = 8 * (link.mtu + 14 + target.overhead_bytes)
        shortest_s = trains.SHORTEST * frame_bits / target.rate_bps
        if shortest_s > self._effort.train_s:
            return {
                "rate_why": f"rate: {trains.SHORTEST} packets take {shortest_s:.3g} s,"
                " longer than this certificate takes; --thorough takes longer"
            }
        train_s = min(wanted_s, self._effort.train_s, 0.8 * 8 * target.queue_bytes / target.rate_bps or wanted_s)
        train_s = max(train_s, shortest_s)
        # What is flipped and fails its checksum took its time on the wire, and is not seen.
        seen = 1.0 - target.corrupt if target.corrupt_survives else 1.0
        slack = 4.0 * target.jitter_s / train_s
        patience_s = _longest(target)
        measured: list[float] = []
        for _ in range(TRAINS):
            found = trains.rate(
                probe, link.mtu, int(target.rate_bps * train_s / 8), target.rate_bps, patience_s, target.overhead_bytes
            )
            if found is None:
                continue
            measured.append(found / seen)
            if abs(measured[-1] - target.rate_bps) <= (RATE_TOLERANCE + slack) * target.rate_bps:
                return {"rate_bps": measured[-1], "rate_slack": slack}
            # One undisturbed train tells; only what looks wrong is looked at again.
        return {"rate_bps": statistics.median(measured) if measured else None, "rate_slack": slack}

    def _segmentation(self, direction: str) -> str:
        hello = self._hello
        if hello["emulator"] == "fiberd":
            return "emulator"
        return "sender" if direction in hello.get("segmented", ()) else "none"

    @property
    def _hello(self) -> Mapping[str, Any]:
        if not hasattr(self, "_said"):
            self._said: Mapping[str, Any] = client.call(self._lab, "hello")
        return self._said

    def _say(self, what: str, takes_s: float) -> None:
        self._tell(f"{what}, about {takes_s:.1f} s")


def _longest(impairment: Impairment) -> float:
    """Seconds that a packet may take, but for its turn in the queue."""
    late = DISTRIBUTIONS.get(impairment.jitter_distribution, 4.0) if impairment.jitter_s else 0.0
    return impairment.delay_s + max(4.0, late) * impairment.jitter_s + impairment.reorder_by_s


def _first(arrivals: Sequence[Arrival]) -> tuple[float, ...]:
    """Each packet's own delay, its duplicate's left out."""
    found: dict[int, float] = {}
    for arrival in arrivals:
        found.setdefault(arrival.number, arrival.delay_s)
    return tuple(found.values())


def _load(before: Any, after: Any) -> _Load:
    passed = max(1e-9, sum(after) - sum(before))
    idle = (after.idle - before.idle) + (getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0))
    stolen = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return _Load(min(1.0, max(0.0, 1.0 - idle / passed)), min(1.0, max(0.0, stolen / passed)))


def _own_drops(lab: LabFolder) -> dict[str, int]:
    return {
        it["direction"]: sum(it["drops"].get(cause, 0) for cause in OWN_DROPS)
        for it in client.call(lab, "stats")["directions"]
    }


def _paths(lab: LabFolder, topology: Topology, net: Addressing) -> Iterator[ProbePath]:
    """Both directions of every link, from gateway to gateway."""
    for link in topology.links:
        for name, source, target in zip(link.directions, link.between, reversed(link.between), strict=True):
            yield ProbePath(
                name,
                _handle(lab, topology.site(source).gateway),
                str(net.link_end(link, source)[0]),
                _handle(lab, topology.site(target).gateway),
                str(net.link_end(link, target)[0]),
                link.name,
            )


@contextmanager
def _reference(lab: LabFolder, topology: Topology) -> Iterator[tuple[ProbePath, ...]]:
    """The bare path, there for as long as the body runs. The keeper owns its Steps: no crash leaves it behind."""
    if not topology.links:
        yield ()
        return
    client.call(lab, "undo", owner=REFERENCE)  # of a certification that was killed
    plan = build.reference(topology.links[0])
    try:
        client.call(lab, "apply", owner=REFERENCE, plan=[steps.to_dict(it) for it in plan])
        a, b = _handle(lab, "ref-a"), _handle(lab, "ref-b")
        yield (
            ProbePath("bare:b", a, "10.254.0.0", b, "10.254.0.1", "ref0"),
            ProbePath("bare:a", b, "10.254.0.1", a, "10.254.0.0", "ref0"),
        )
    finally:
        client.call(lab, "undo", owner=REFERENCE)


def _around(lab: LabFolder, topology: Topology, net: Addressing) -> tuple[bool, str]:
    """Whether all that goes between sites crosses a fiber: (yes, "") or (no, why)."""
    if not topology.links:
        return True, ""
    first, *others = topology.sites
    here, remotes = first.node_names[0], [site.node_names[0] for site in others]

    def path(there: str, addresses: Mapping[str, object]) -> ProbePath:
        return ProbePath(there, _handle(lab, here), str(addresses[here]), _handle(lab, there), str(addresses[there]))

    with _opened([path(there, net.management) for there in remotes]) as probes:
        for there, arrived in rounds(probes, 3, 0.003, SETTLE_S).items():
            if arrived:
                return False, f"{here} reaches {there} over the management network"
    fabric = {node: net.node(node)[0] for node in (here, *remotes)}
    with _opened([path(there, fabric) for there in remotes]) as probes:
        before = _packets(lab)
        patience = SETTLE_S + sum(_longest(link.impairment(it)) for link in topology.links for it in link.directions)
        through = sum(len(arrived) for arrived in rounds(probes, 5, 0.005, patience).values())
        if _packets(lab) - before < through:
            return False, f"{here} reaches other sites without crossing a fiber"
    return True, ""


@contextmanager
def _opened(paths: Sequence[ProbePath]) -> Iterator[list[Probe]]:
    probes: list[Probe] = []
    try:
        for path in paths:
            probes.append(Probe(path))
        yield probes
    finally:
        for probe in probes:
            probe.close()


def _packets(lab: LabFolder) -> int:
    return sum(it["packets"] for it in client.call(lab, "stats")["directions"])


def _handle(lab: LabFolder, node: str) -> Path:
    return places.netns(lab, node)


def _congestion_control(lab: LabFolder, topology: Topology) -> str:
    """What a TCP connection from the first site to the last one really uses; empty if none comes about."""
    here, there = topology.node_names[0], topology.node_names[-1]
    address = str(Addressing(topology).node(there)[0])
    try:
        return congestion_control(_handle(lab, here), _handle(lab, there), address)
    except OSError:
        return ""


def _host(lab: LabFolder, topology: Topology, scheduling: str) -> dict[str, object]:
    """What the measurement and the job depend on, as it is inside the first node."""
    with netlink.Namespace(_handle(lab, topology.node_names[0])) as space:
        sysctls = {key.replace("/", "."): value for key in SYSCTLS if (value := space.read_sysctl(key))}
    return {
        "kernel": platform.release(),
        "congestion_control": _congestion_control(lab, topology) or sysctls.get(SYSCTLS[0].replace("/", "."), ""),
        "sysctls": sysctls,
        "scheduling": scheduling,
        "cpus": psutil.cpu_count() or 1,
    }
