"""Placement in the report: which dimension of parallelism crossed which fiber, by the twin; the tiers' rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.core.analysis.job_twin import twin_of
from testbed.core.records.rank_log import RankLog
from testbed.core.topology.model import Topology
from testbed.core.training import placement

__all__ = ["lines"]


def lines(logs: Sequence[RankLog], workload: Mapping[str, object], topology: Topology | None) -> tuple[str, ...]:
    """Return the lines of ``placement.describe``; none while strategy, ranks or topology are unknown.

    What crossed each direction is compared with the same operations by the wire check.
    """
    if topology is None:
        return ()
    twin = twin_of(logs, workload)
    known = {site.name for site in topology.sites}
    if twin is None or not known.issuperset(twin.layout.sites):
        return placement.describe_tiers(topology)
    return (*placement.describe(twin, topology), *placement.describe_tiers(topology))
