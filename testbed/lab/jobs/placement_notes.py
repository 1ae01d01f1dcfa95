"""Notes on a job before it begins: which dimension of parallelism crosses which fiber, and the rates of the tiers."""

from __future__ import annotations

from testbed.core.topology.model import Topology
from testbed.core.training import placement
from testbed.core.workload import workload_layout
from testbed.core.workload.workload import AgentWorkload

__all__ = ["placement_notes"]


def placement_notes(workload: AgentWorkload, topology: Topology) -> tuple[str, ...]:
    """Return a line per dimension that exchanges anything, and one per tier of a topology with fabrics."""
    twin = workload_layout.twin_of(workload, topology)
    return (*placement.describe(twin, topology), *placement.describe_tiers(topology))
