"""The fidelity certificate: every fiber measured in both directions, beside a baseline path with a zero-delay redirect.

Baseline and fibers are measured at once (``fiber_measurement.py``), so that load of the machine affects all alike.
Calibrated directions are measured from node to node, and the baseline is subtracted from the others only. The
certificate also proves that no path bypasses the fibers (``bypass_check.py``). Only one certification runs at a time
per host.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from testbed.core.certification.certificate import Certificate, ConcurrentFault
from testbed.core.plan import build, node_paths
from testbed.core.plan.addressing import Addressing
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology
from testbed.host import lab_folder, lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import netlink
from testbed.host.linux.file_lock import FileLock
from testbed.host.measure.probing import ProbePath, congestion_control
from testbed.keeper import client
from testbed.lab import calibrate
from testbed.lab.bypass_check import check_bypass
from testbed.lab.fabric_measurement import measure_fabrics
from testbed.lab.fiber_measurement import FAST, THOROUGH, Measuring, Tell

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
        nodes = calibrate.idle_nodes(lab, topology)
        probed = calibrate.links_to_probe(lab, topology, nodes, not calibrate_first)
        with (
            _reference(lab, topology, tuple(node_paths.steps(topology, probed, nodes))) as bare,
            closing(calibrate.NodePaths(lab, topology, probed, nodes)) as paths,
        ):
            if calibrate_first:
                calibrate.calibrate(lab, topology, paths, tell)
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
            ConcurrentFault(f"{it['id']} ({it['type']} {it['target']})", tuple(it["links"]))
            for it in client.keeper(lab).faults()
            if it["ended_t"] is None
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
