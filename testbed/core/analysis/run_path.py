"""The critical path of each step of a run: what its twin, its certificate and its records say of it together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.analysis.commits import lineage
from testbed.core.analysis.critical_path import CriticalPath, critical_path
from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.measured_workload import certified_fiber
from testbed.core.analysis.step_costs import FiberModel, step_costs
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_record import RunData

__all__ = ["evaluate"]


def evaluate(run: RunData, logs: Sequence[RankLog]) -> CriticalPath | None:
    """Return the path of each committed step; None for a launched program, or without a certificate or a step."""
    fiber = certified_fiber(run.certificate)
    twin = twin_of(logs, run.info.workload)
    if fiber is None or twin is None or run.certificate is None:
        return None
    world_size = twin.layout.world_size
    rows = [row for row in lineage(logs).values() if len(row) == world_size]
    rows.sort(key=lambda row: max(record.t_end for record in row.values()))
    costs = step_costs(twin, FiberModel.of(fiber, run.certificate.host))
    return critical_path(rows, costs) if rows else None
