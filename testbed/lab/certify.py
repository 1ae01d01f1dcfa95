"""The fidelity certificate: every fiber measured in both directions, beside a baseline path with a zero-delay redirect.

Baseline and fibers are measured at once (``fiber_measurement.py``), so that load of the machine affects all alike.
Calibrated directions are measured from node to node, and the baseline is subtracted from the others only. The
certificate also proves that no path bypasses the fibers (``bypass_check.py``). Only one certification runs at a time
per host.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil

from testbed.core.certification.certificate import Certificate, ConcurrentFault
from testbed.core.certification.host_log import Leg
from testbed.core.physics import calibration
from testbed.core.plan import build, node_paths
from testbed.core.plan.addressing import Addressing
from testbed.core.plan.node_paths import NodePath
from testbed.core.plan.properties import Calibrated
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Link, Topology
from testbed.errors import HostError, StorageError
from testbed.host import lab_folder, lab_nodes
from testbed.host.files import beneath
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import netlink
from testbed.host.linux.file_lock import FileLock
from testbed.host.measure.probing import Echo, Probe, ProbePath, Prober, congestion_control, rounds
from testbed.keeper import client
from testbed.lab.bypass_check import check_bypass
from testbed.lab.fabric_measurement import measure_fabrics
from testbed.lab.fiber_measurement import FAST, RESOLVING_S, SETTLE_S, THOROUGH, Measuring, Tell
from testbed.lab.packet_log import PacketLog, split_by_host

__all__ = ["calibrate", "certify", "read_stored", "store"]


OWNER = "calibration"
"""Owner of what is taken off, as long as the lab lives."""

MOST_ROUNDS, LEAST_ROUNDS, ALL_PACKETS = 100, 12, 2400
"""Packets per path, and of all paths together: with many links, fewer of each instead of a longer wait."""
INTERVAL_S, SLOT_S = 0.001, 0.0001
"""Least interval between two packets of a path, and of the sender."""
INSIDE_ROUNDS, INSIDE_INTERVAL_S = 200, 0.0002
FEWEST_ON_TIME, TRIES = 10, 3
"""Minimum number of packets on time for a minimum to count, and maximum number of tries."""
CORRECTIONS = 2
"""How often early packets may reduce what is taken off: the second time for a delay that the emulator's own wake-up had
hidden, which is one of a few microseconds."""


class NodePaths:
    """Probes from node to node over ``links``, while certification's Steps provide the paths. Must be closed.

    ``nodes``: the node to use of each site. ``inside``: a path inside a site; None without links. Raises HostError.
    """

    def __init__(self, lab: LabFolder, topology: Topology, links: Sequence[Link], nodes: Mapping[str, str]) -> None:
        self._lab = lab
        self._opened = ExitStack()
        self._probes: dict[str, Probe] = {}
        self.inside = self._path(node_paths.inside(topology, nodes)) if links else None
        try:
            for link in links:
                for path in node_paths.node_paths(topology, link, nodes):
                    self._probes[path.name] = self._opened.enter_context(closing(Probe(self._path(path))))
        except HostError:
            self.close()
            raise

    def close(self) -> None:
        self._opened.close()

    def of(self, directions: Collection[str]) -> dict[str, Probe]:
        """Return the probes of these directions, by name; without those that have none."""
        return {name: probe for name, probe in self._probes.items() if name in directions}

    def _path(self, path: NodePath) -> ProbePath:
        sender, receiver = (lab_nodes.netns(self._lab, node) for node in (path.sender, path.receiver))
        return ProbePath(path.name, sender, path.source, receiver, path.destination)


def idle_nodes(lab: LabFolder, topology: Topology) -> dict[str, str]:
    """Return the first node of each site that no fault is acting on; lacks sites without such a node."""
    active = (fault for fault in client.keeper(lab).faults() if fault["ended_t"] is None)
    struck = {node for fault in active for node in fault["nodes"]}
    idle = {site.name: [name for name in site.node_names if name not in struck] for site in topology.sites}
    return {site: nodes[0] for site, nodes in idle.items() if nodes}


def links_to_probe(lab: LabFolder, topology: Topology, nodes: Mapping[str, str], calibrated: bool) -> tuple[Link, ...]:
    """Return the links to measure from node to node: those that are ``calibrated``, or that are to be."""
    if calibrated:
        taken_off_s = client.keeper(lab).hello().get("taken_off_s", {})
        links = [link for link in topology.links if taken_off_s.keys() & set(link.directions)]
    else:
        links = [link for link in topology.links if any(_targets([link]))]
    return tuple(link for link in links if nodes.keys() >= set(link.between))


def _targets(links: Sequence[Link]) -> Iterator[tuple[str, float]]:
    """Yield (direction, its delay) for each direction to calibrate."""
    for link in links:
        for name in link.directions:
            delay_s = link.impairment(name).delay_s
            if link.calibrate and delay_s > 0:
                yield name, delay_s


def calibrate(lab: LabFolder, topology: Topology, paths: NodePaths, tell: Tell) -> dict[str, float]:
    """Measure what comes off each direction's delays, let the keeper apply it, and return it in seconds.

    Raises LabError, HostError.
    """
    targets = dict(_targets(topology.links))
    across = paths.of(targets)
    targets = {name: targets[name] for name in across}
    if not targets or paths.inside is None:
        return {}
    tell(f"calibrate {len(targets)} directions")
    inside_s = _inside(paths.inside, tell)
    if inside_s is None:
        return {}
    _apply(lab, (Calibrated(name, 0.0, plain_s=0.0) for name in targets))
    least = calibration.alike(_least(lab, list(across.values()), dict.fromkeys(targets, 0.0)))
    off = {name: calibration.taken_off_s(targets[name], least[name], inside_s) for name in least}
    off = {name: value for name, value in off.items() if value}
    early = set(off)
    for _ in range(CORRECTIONS):
        if not early:
            break
        _apply(lab, (Calibrated(name, off[name], plain_s=targets[name] - off[name]) for name in off))
        checked = [across[name] for name in off if name in early]
        least_s = _least(lab, checked, {name: targets[name] - off[name] for name in off})
        beyond = calibration.alike({name: least_s[name] - (targets[name] - off[name]) for name in least_s})
        by = {name: calibration.early_s(off[name], beyond[name]) for name in beyond}
        # What could not be checked is not taken off.
        by |= {prober.path.name: off[prober.path.name] for prober in checked if prober.path.name not in beyond}
        off |= {name: max(0.0, off[name] - by[name]) for name in by}
        early = {name for name in by if by[name] and off[name]}
    shared = calibration.share(link.between for link in topology.links)
    off = {name: value * shared for name, value in off.items() if value}
    _apply(lab, (Calibrated(name, value) for name, value in off.items()))
    return off


def _apply(lab: LabFolder, plan: Iterable[Calibrated]) -> None:
    client.keeper(lab).undo(owner=OWNER)
    client.keeper(lab).apply(owner=OWNER, plan=tuple(plan))


def _inside(path: ProbePath, tell: Tell) -> float | None:
    """Return the least RTT inside a site in seconds; None if it cannot be measured."""
    try:
        with closing(Echo(path)) as echo:
            rounds([echo], 2, INTERVAL_S, SETTLE_S)
            arrivals = rounds([echo], INSIDE_ROUNDS, INSIDE_INTERVAL_S, SETTLE_S)[path.name]
    except HostError as error:
        tell(f"not calibrated: {error}")
        return None
    return min((arrival.delay_s for arrival in arrivals), default=None)


def _least(lab: LabFolder, probers: Sequence[Prober], delays_s: Mapping[str, float]) -> dict[str, float]:
    """Return the least time over each path in seconds, of packets that the host did not delay.

    Paths with too few such packets are missing. ``delays_s`` are the delays in force, by direction.
    """
    interval_s = max(INTERVAL_S, SLOT_S * len(probers))
    patience_s = SETTLE_S + 2 * max(delays_s.values(), default=0.0)
    # The first packets of a path resolve neighbours and warm caches.
    came = rounds(probers, 1, interval_s, patience_s)
    until = time.monotonic() + RESOLVING_S
    while (silent := [prober for prober in probers if not came[prober.path.name]]) and time.monotonic() < until:
        came |= rounds(silent, 1, SLOT_S * len(silent), patience_s)
    count = max(LEAST_ROUNDS, min(MOST_ROUNDS, ALL_PACKETS // len(probers)))
    on_time_s: dict[str, list[float]] = {prober.path.name: [] for prober in probers}
    with PacketLog(lab) as packet_log:
        for _ in range(TRIES):
            waiting = [prober for prober in probers if len(on_time_s[prober.path.name]) < FEWEST_ON_TIME]
            if not waiting:
                break
            arrivals = rounds(waiting, count, interval_s, patience_s)
            log = packet_log.read()
            for prober in waiting:
                name = prober.path.name
                kept, _ = split_by_host(log, prober, arrivals[name], [Leg(name, delays_s[name])])
                on_time_s[name] += [arrival.delay_s for arrival in kept]
    return {name: min(times_s) for name, times_s in on_time_s.items() if len(times_s) >= FEWEST_ON_TIME}


REFERENCE = "certification"
"""Owner of the reference path's Steps."""

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


def certify(
    lab: LabFolder,
    topology: Topology,
    *,
    thorough: bool = False,
    calibrate_first: bool = False,
    tell: Tell | None = None,
) -> Certificate:
    """Measure every link of a running lab. Takes about a second, longer with many links or ``thorough``.

    ``calibrate_first`` calibrates the links before, as while a lab comes up. ``tell`` receives the current activity and
    its estimated duration. Raises LabError or HostError when nothing can be measured; measurements outside tolerance
    are in the certificate.
    """
    tell = tell or (lambda text: None)
    began = time.monotonic()
    with FileLock(lab_folder.root() / "certification.lock"):
        nodes = idle_nodes(lab, topology)
        probed = links_to_probe(lab, topology, nodes, not calibrate_first)
        with (
            _reference(lab, topology, tuple(node_paths.steps(topology, probed, nodes))) as bare,
            closing(NodePaths(lab, topology, probed, nodes)) as paths,
        ):
            if calibrate_first:
                calibrate(lab, topology, paths, tell)
            measuring = Measuring(lab, topology, THOROUGH if thorough else FAST, tell)
            links, load, noise = measuring.measure(bare, paths.of(measuring.calibrated), paths.inside)
        fabrics = measure_fabrics(lab, topology, tell)
        # Last: in a lab that has just come up, not every gateway has seen its carriers before.
        around = check_bypass(lab, topology)
    hello = client.keeper(lab).hello()
    return Certificate(
        lab=lab.name,
        topology=topology.name,
        taken_unix_s=time.time(),
        emulator=hello["emulator"],
        links=links,
        fabrics=fabrics,
        around_ok=around.ok,
        around_why=around.why,
        around_pairs=around.pairs,
        around_families=around.families,
        around_took_s=around.took_s,
        cpu_busy=load.busy,
        host=_host(lab, topology, hello["scheduling"]),
        thorough=thorough,
        took_s=round(time.monotonic() - began, 3),
        stolen=load.stolen,
        noise=noise,
        around_unmeasured=around.unmeasured,
        faults=tuple(
            ConcurrentFault(f"{fault['id']} ({fault['type']} {fault['target']})", tuple(fault["links"]))
            for fault in client.keeper(lab).faults()
            if fault["ended_t"] is None
        ),
    )


@contextmanager
def _reference(lab: LabFolder, topology: Topology, beside: Plan) -> Iterator[tuple[ProbePath, ...]]:
    """Provide the baseline path, and the Steps ``beside``, while the body runs. The keeper owns all of them, so that no
    crash leaves any behind."""
    if not topology.links:
        yield ()
        return
    client.keeper(lab).undo(owner=REFERENCE)  # left by a certification that was killed
    plan = (*build.reference(topology.links[0]), *beside)
    try:
        client.keeper(lab).apply(owner=REFERENCE, plan=plan)
        a, b = _handle(lab, "ref-a"), _handle(lab, "ref-b")
        yield (
            ProbePath("bare:b", a, "10.254.0.0", b, "10.254.0.1", "ref0"),
            ProbePath("bare:a", b, "10.254.0.1", a, "10.254.0.0", "ref0"),
        )
    finally:
        client.keeper(lab).undo(owner=REFERENCE)


def _handle(lab: LabFolder, node: str) -> Path:
    return lab_nodes.netns(lab, node)


def _congestion_control(lab: LabFolder, topology: Topology) -> str:
    """Return the algorithm that a TCP connection from the first to the last site uses; empty if it cannot connect."""
    here, there = topology.node_names[0], topology.node_names[-1]
    address = str(Addressing(topology).node(there)[0])
    try:
        return congestion_control(_handle(lab, here), _handle(lab, there), address)
    except OSError:
        return ""


def _host(lab: LabFolder, topology: Topology, scheduling: str) -> dict[str, object]:
    """Return the host settings that the measurement and the job depend on, as seen inside the first node."""
    with netlink.Namespace(_handle(lab, topology.node_names[0])) as space:
        sysctls = {key.replace("/", "."): value for key in SYSCTLS if (value := space.read_sysctl(key))}
    return {
        "kernel": platform.release(),
        "congestion_control": _congestion_control(lab, topology) or sysctls.get(SYSCTLS[0].replace("/", "."), ""),
        "sysctls": sysctls,
        "scheduling": scheduling,
        "cpus": psutil.cpu_count() or 1,
    }


def store(lab: LabFolder, certificate: Certificate) -> None:
    """Keep a certificate with the lab. Raises StorageError."""
    try:
        beneath.replace(lab.path, lab.certificate.name, json.dumps(certificate.to_dict(), indent=1).encode())
    except OSError as error:
        raise StorageError(f"cannot write {lab.certificate}: {error.strerror}") from error


def read_stored(lab: LabFolder) -> Certificate | None:
    """Return the lab's certificate; None if there is none that can be read."""
    try:
        return Certificate.from_dict(json.loads(lab.certificate.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
