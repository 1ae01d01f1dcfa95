"""Notes on a job before it begins: what its declared compute stands for, whether these cores carry it, and what crosses
which fiber."""

from __future__ import annotations

import os

from testbed.core.prediction.machine_limits import cpu_bound
from testbed.core.topology.model import Topology
from testbed.core.training import placement
from testbed.core.workload import workload_layout
from testbed.core.workload.declared_compute import equivalent
from testbed.core.workload.workload import AgentWorkload

__all__ = ["cores", "declared_notes", "placement_notes"]


def placement_notes(workload: AgentWorkload, topology: Topology) -> tuple[str, ...]:
    """Return a line per dimension that exchanges anything, and one per tier of a topology with fabrics."""
    twin = workload_layout.twin_of(workload, topology)
    return (*placement.describe(twin, topology), *placement.describe_tiers(topology))


def cores() -> int:
    """Return how many cores this process, and the ranks that it starts, may use."""
    return len(os.sched_getaffinity(0))


def declared_notes(workload: AgentWorkload, topology: Topology) -> tuple[str, ...]:
    """Return full scale of declared compute, and the verdict on this machine, a line each; none for real compute."""
    if workload.compute is None or workload.step_s is None:
        return ()
    slowest = min((link.rate_bps for link in topology.links), default=None)
    of = workload.compute
    full_scale_note = equivalent(of.seconds, workload.elements(topology.scale), topology.scale, slowest, of.speeds)
    bound = cpu_bound(len(topology.node_names), of.seconds, cores())
    return (full_scale_note, *([bound] if bound else []))
