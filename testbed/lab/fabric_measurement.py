"""Measure the fabrics of all sites: each port by a packet train to the next node, the core by trains of all nodes.

A train is longer than what a port's token bucket lets pass at once, and its sender has a send buffer below the port's
queue: it waits in ``sendto`` rather than lose packets, and the queue is never empty before the train is through. Ports
are measured one after the other in a site, because they share its core, and side by side in different sites.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Final

from testbed.core.certification.dispersion import FEWEST_PAIRS, TrainArrival, pair_rates_bps, rate_bps
from testbed.core.certification.fabric_certificate import FabricCertificate, FabricRate
from testbed.core.certification.host_log import HostLog
from testbed.core.physics import fabric_queue
from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing
from testbed.core.plan.build import FABRIC_BRIDGE
from testbed.core.topology.model import Site, Topology
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.scheduling import realtime_priority, use_realtime_priority
from testbed.host.measure.packet_trains import CAPACITY_BPS
from testbed.host.measure.probing import Probe, ProbePath, rounds
from testbed.host.measure.rate_trains import SHORTEST, Passage, Train, send_trains
from testbed.lab.packet_log import PacketLog, monotonic_offset_s, tries

__all__ = ["measure_fabrics"]

MOST_TRAIN_S: Final = 0.03
LEAST_TRAIN_S: Final = 0.01
LONGEST_TRAIN_S: Final = 2.0
"""A slower port is not measured."""
ALL_S: Final = 2.0
"""Duration of the trains of all ports, of which CAPACITY_BPS are measured at a time."""
BURSTS: Final = 4
"""Length of a train in bursts of the buckets that it passes; the first of them are left out."""

Tell = Callable[[str], None]


def measure_fabrics(lab: LabFolder, topology: Topology, tell: Tell) -> tuple[FabricCertificate, ...]:
    """Return the certificates of all sites whose fabric has a rate; nothing is sent for the others."""
    sites = [site for site in topology.sites if site.fabric_bps]
    if not sites:
        return ()
    load = sum(len(_hops(site)) * min(CAPACITY_BPS, site.fabric_bps) for site in sites)
    train_s = min(MOST_TRAIN_S, max(LEAST_TRAIN_S, ALL_S * CAPACITY_BPS / load))
    tell(f"fabrics of {len(sites)} sites, about {train_s * load / CAPACITY_BPS:.1f} s")
    with ExitStack() as opened:
        probes = {site.name: list(_probes(lab, topology, site, opened)) for site in sites}
        rounds([probe for some in probes.values() for probe in some], 3, 0.004, 0.2)  # resolves neighbours
        with realtime_priority(wanted=True), PacketLog(lab) as packet_log:
            ports = _ports(topology, sites, probes, train_s, packet_log, tell)
            cores = {site.name: _core(topology, site, probes[site.name], train_s, packet_log, tell) for site in sites}
    return tuple(
        FabricCertificate(
            site.name, site.fabric_bps, site.core_bps, site.oversubscription, (*ports[site.name], *cores[site.name])
        )
        for site in sites
    )


def _hops(site: Site) -> list[tuple[str, str]]:
    """Return paths that cross each port of a site both ways: a ring of its nodes; to the gateway and back for one."""
    nodes = site.node_names
    if len(nodes) == 1:
        return [(nodes[0], site.gateway), (site.gateway, nodes[0])]
    return list(zip(nodes, nodes[1:] + nodes[:1], strict=True))


def _probes(lab: LabFolder, topology: Topology, site: Site, opened: ExitStack) -> Iterator[Probe]:
    net = Addressing(topology)

    def address(place: str) -> str:
        return str((net.gateway(site.name) if place == site.gateway else net.node(place))[0])

    for here, there in _hops(site):
        device = FABRIC_BRIDGE if here == site.gateway else FABRIC_INTERFACE
        path = ProbePath(
            f"{here} > {there}",
            lab_nodes.netns(lab, here),
            address(here),
            lab_nodes.netns(lab, there),
            address(there),
            device,
        )
        probe = opened.enter_context(closing(Probe(path)))
        # The kernel doubles it, and counts more than the packets' own bytes.
        wanted = fabric_queue.queue_bytes(min(site.fabric_bps, site.core_bps)) // 4
        probe.sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted)
        yield probe


def _mtu(topology: Topology) -> int:
    return min((link.mtu for link in topology.links), default=1500)


def _train(probe: Probe, mtu: int, rate_bps: float, skipped_bytes: float, train_s: float) -> Train:
    """Return a train at ``rate_bps`` that is ``train_s`` long, and longer than the first ``skipped_bytes``."""
    sized = Train(probe, mtu, SHORTEST, rate_bps)
    size_bits = max(rate_bps * train_s, BURSTS * 8 * skipped_bytes)
    return Train(probe, mtu, max(SHORTEST, round(size_bits / sized.frame_bits)), rate_bps)


def _ports(
    topology: Topology,
    sites: Sequence[Site],
    probes: dict[str, list[Probe]],
    train_s: float,
    packet_log: PacketLog,
    tell: Tell,
) -> dict[str, list[FabricRate]]:
    rates: dict[str, list[FabricRate]] = {site.name: [] for site in sites}
    for turn in range(max(len(probe) for probe in probes.values())):
        waiting = {site.name: site for site in sites if turn < len(probes[site.name])}
        latest: dict[str, FabricRate] = {}
        pairs: dict[str, list[float]] = {name: [] for name in waiting}
        for _ in tries(tell):
            trains: dict[str, Train] = {}
            for name, site in waiting.items():
                probe, target = probes[name][turn], min(site.fabric_bps, site.core_bps)
                skipped = fabric_queue.burst_bytes(site.fabric_bps)
                train = _train(probe, _mtu(topology), target, skipped, train_s)
                if train.lasts_s > LONGEST_TRAIN_S:
                    latest[name] = FabricRate(probe.path.name, target, note=_too_long(train))
                else:
                    trains[name] = train
            passages = send_trains(list(trains.values()))
            log = packet_log.read()
            for (name, train), passage in zip(trains.items(), passages, strict=True):
                skipped = fabric_queue.burst_bytes(waiting[name].fabric_bps)
                pairs[name] += _pair_rates([passage], train.rate_bps, skipped, log)
                latest[name] = _rate(train.probe.path.name, train.rate_bps, pairs[name], [passage])
            waiting = {name: waiting[name] for name in trains if latest[name].unmeasured}
            if not waiting:
                break
        for name, rate in latest.items():
            rates[name].append(rate)
    return rates


def _core(
    topology: Topology, site: Site, probes: Sequence[Probe], train_s: float, packet_log: PacketLog, tell: Tell
) -> list[FabricRate]:
    """Return the rate of the core; nothing where ports alone show all there is."""
    if site.core_bps >= len(site.node_names) * site.fabric_bps or site.core_bps <= site.fabric_bps:
        return []
    if site.core_bps > CAPACITY_BPS:
        return [FabricRate("core", site.core_bps, note="more than this machine sends at once; not measured")]
    skipped = fabric_queue.burst_bytes(site.core_bps) + len(probes) * fabric_queue.burst_bytes(site.fabric_bps)
    share_bps = site.core_bps / len(probes)
    trains = [_train(probe, _mtu(topology), share_bps, skipped / len(probes), train_s) for probe in probes]
    if (longest := max(trains, key=lambda train: train.lasts_s)).lasts_s > LONGEST_TRAIN_S:
        return [FabricRate("core", site.core_bps, note=_too_long(longest))]
    measured = FabricRate("core", site.core_bps)
    pairs: list[float] = []
    with ThreadPoolExecutor(len(trains), initializer=use_realtime_priority) as senders:  # each waits in `sendto`
        for _ in tries(tell):
            passages = [passage for sent in senders.map(lambda train: send_trains([train]), trains) for passage in sent]
            pairs += _pair_rates(passages, site.core_bps, skipped, packet_log.read())
            measured = _rate("core", site.core_bps, pairs, passages)
            if not measured.unmeasured:
                break
    return [measured]


def _pair_rates(
    passages: Sequence[Passage], target_bps: float, skipped_bytes: float, log: HostLog
) -> tuple[float, ...]:
    """Return the rates of the pairs of packets of all passages together in bit/s, without the first bytes.

    The kernel's queue of a port records no packets, so a packet is on time unless a core stalled as it arrived.
    """
    offset_s, kernel_log = monotonic_offset_s(), HostLog(log.stalls)
    arrivals = []
    for passage in passages:
        for since_s, bits, _ in passage.arrivals:
            arrived_t = offset_s + passage.epoch_ns * 1e-9 + since_s
            arrivals.append(TrainArrival(arrived_t, bits, *kernel_log.is_on_time("", None, arrived_t)))
    last_bits = sum(arrival.bits for arrival in arrivals) - 8 * 1.2 * skipped_bytes
    return pair_rates_bps(arrivals, target_bps, last_bits=last_bits) if last_bits > 0 else ()


def _rate(path: str, target_bps: float, pairs: Sequence[float], passages: Sequence[Passage]) -> FabricRate:
    measured = rate_bps(pairs)
    unmeasured = ""
    if measured is None and any(passage.arrivals for passage in passages):
        unmeasured = f"{len(pairs)} pairs of packets were on time, expected {FEWEST_PAIRS} or more"
    return FabricRate(path, target_bps, measured, unmeasured=unmeasured)


def _too_long(train: Train) -> str:
    return f"a packet train would take {train.lasts_s:.1f} s, so the rate was not measured"
