"""The fidelity certificate: every fiber measured both ways against the same path with a zero-delay redirect.

Latency is measured on all links at once, interleaved with the bare reference path, so that whatever the machine does to
one it does to the other. Rate is measured one direction at a time: trains would compete for the cores. One
certification at a time per host. It also proves that nothing goes around the fiber.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import psutil

from testbed.core.evidence import certificate as certificates
from testbed.core.evidence.certificate import Certificate, LinkCertificate
from testbed.core.plan import build
from testbed.core.plan import step as steps
from testbed.core.plan.addressing import Addressing, namespace_name
from testbed.core.topology.model import Link, Topology
from testbed.host import namespace, netlink
from testbed.host.probing import Probe, ProbePath, congestion_control, one_way
from testbed.lab import client, state
from testbed.lab.state import LabFolder

REFERENCE = "certification"
"""Owner of the reference path's Steps."""

PROBES, FEWEST_PROBES, MOST_PROBES, THOROUGH_PROBES = 100, 30, 4000, 1000
"""For each direction; the third is for all of them together."""
INTERVAL_S = 0.004
SETTLE_S = 0.05
TRAIN_S = 0.02
"""A train of this duration on the wire, as far as the queue holds it."""

TRAINS = 3

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


def certify(lab: LabFolder, topology: Topology, *, thorough: bool = False) -> Certificate:
    """Measure every link of a lab that is up. Takes about a second, longer with many links or ``thorough``.

    Raises LabError or HostError when it cannot be measured at all; what is measured and bad is in the certificate.
    """
    # Probes on many links share one sender: what a direction gets then is fewer, not a longer wait for everybody.
    fair = max(FEWEST_PROBES, min(PROBES, MOST_PROBES // max(1, 2 * len(topology.links))))
    count = THOROUGH_PROBES if thorough else fair
    net = Addressing(topology)
    with filelock.FileLock(state.root() / "certification.lock"):
        psutil.cpu_percent()
        with _reference(lab, topology) as bare_paths:
            around_ok, around_why = _around(lab, topology, net)
            with _opened([*_paths(lab, topology, net), *bare_paths]) as probes:
                delays = _delays(probes, topology, count)
                by_name = {probe.path.name: probe for probe in probes}
                rates = {
                    direction: _rate(by_name[direction], link)
                    for link in topology.links
                    for direction in link.directions
                    if delays[direction]
                }
        busy = psutil.cpu_percent() / 100
    bare = [delay for path in bare_paths for delay in delays[path.name]]
    links = tuple(
        LinkCertificate(
            link.name,
            link.length_m / 1000,
            tuple(
                certificates.build_direction(
                    direction,
                    link.delay_s,
                    delays[direction],
                    bare,
                    count,
                    link.rate_bps,
                    rates.get(direction),
                    link.loss,
                )
                for direction in link.directions
            ),
        )
        for link in topology.links
    )
    hello = client.call(lab, "hello")
    return certificates.build(
        lab.name,
        topology.name,
        hello["emulator"],
        links,
        around_ok,
        around_why,
        busy,
        _host(lab, topology, hello["scheduling"]),
        time.time(),
    )


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
            ProbePath("bare:b", a, "10.254.0.0", b, "10.254.0.1"),
            ProbePath("bare:a", b, "10.254.0.1", a, "10.254.0.0"),
        )
    finally:
        client.call(lab, "undo", owner=REFERENCE)


def _delays(probes: list[Probe], topology: Topology, count: int) -> dict[str, list[float]]:
    longest = max((link.delay_s for link in topology.links), default=0.0)
    # The first packets of a path resolve neighbours and warm caches: they are sent, and not counted.
    one_way(probes, 5, INTERVAL_S, longest + SETTLE_S)
    return one_way(probes, count, max(INTERVAL_S, 0.0003 * len(probes)), longest + SETTLE_S)


def _rate(probe: Probe, link: Link) -> float | None:
    if link.rate_bps <= 0:
        return None
    wire_bytes = int(min(link.rate_bps * TRAIN_S / 8, 0.8 * link.queue_bytes))
    measured: list[float] = []
    for _ in range(TRAINS):
        found = probe.rate(link.mtu, wire_bytes, link.rate_bps, link.delay_s)
        if found is not None:
            measured.append(found)
            if certificates.RateCertificate(link.rate_bps, found).ok:
                return found  # one undisturbed train tells; only what looks wrong is looked at again
    return statistics.median(measured) if measured else None


def _around(lab: LabFolder, topology: Topology, net: Addressing) -> tuple[bool, str]:
    """Whether all that goes between sites crosses a fiber: (yes, "") or (no, why)."""
    if not topology.links:
        return True, ""
    first, *others = topology.sites
    here, remotes = first.node_names[0], [site.node_names[0] for site in others]

    def path(there: str, addresses: Mapping[str, object]) -> ProbePath:
        return ProbePath(there, _handle(lab, here), str(addresses[here]), _handle(lab, there), str(addresses[there]))

    with _opened([path(there, net.management) for there in remotes]) as probes:
        for there, delays in one_way(probes, 3, 0.003, SETTLE_S).items():
            if delays:
                return False, f"{here} reaches {there} over the management network"
    fabric = {node: net.node(node)[0] for node in (here, *remotes)}
    with _opened([path(there, fabric) for there in remotes]) as probes:
        before = _packets(lab)
        patience = sum(link.delay_s for link in topology.links) + SETTLE_S
        arrived = sum(len(delays) for delays in one_way(probes, 5, 0.005, patience).values())
        if _packets(lab) - before < arrived:
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
    return namespace.netns_path(namespace_name(lab.name, node))


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
