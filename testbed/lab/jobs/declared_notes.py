"""Notes on a job's declared compute before it begins: what it stands for, and whether these cores carry it."""

from __future__ import annotations

import os

from testbed.core.prediction.machine_limits import cpu_bound
from testbed.core.topology.model import Topology
from testbed.core.workload.declared_compute import equivalent
from testbed.core.workload.workload import AgentWorkload

__all__ = ["cores", "declared_notes"]


def cores() -> int:
    """Return how many cores this process, and the ranks that it starts, may use."""
    return len(os.sched_getaffinity(0))


def declared_notes(workload: AgentWorkload, topology: Topology) -> tuple[str, ...]:
    """Return full scale of declared compute, and the verdict on this machine, a line each; none for real compute."""
    if workload.compute is None or workload.step_s is None:
        return ()
    slowest = min((link.rate_bps for link in topology.links), default=None)
    of = workload.compute
    told = equivalent(of.seconds, workload.elements(topology.scale), topology.scale, slowest, of.speeds)
    bound = cpu_bound(len(topology.node_names), of.seconds, cores())
    return (told, *([bound] if bound else []))
