"""What a run says of other jobs: its model, its compute, what its operations cost; its fibers as certified. Pure."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.measured_library import MeasuredLibrary, measured_library
from testbed.core.analysis.step_costs import FiberModel
from testbed.core.analysis.volleys import timed
from testbed.core.certification.certificate import Certificate
from testbed.core.plan import routing
from testbed.core.prediction.network import payload_rate_bps
from testbed.core.records.run_record import RunData
from testbed.core.topology.model import Topology
from testbed.core.training.site_process import Schedule
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import UserError

__all__ = ["MeasuredJob", "certified_fiber", "measured_job", "measured_utilization"]


@dataclass(frozen=True)
class MeasuredJob:
    """What a run of the agents says of other jobs.

    Attributes:
        workload: what it trained, with the compute that it declared or else measured.
        topology: None if the run has none.
        library: what operations cost, by the times that its ranks took for them before the job; None without.
        utilization: compute / (compute + exposed communication) that it measured.
    """

    workload: AgentWorkload
    topology: Topology | None
    library: MeasuredLibrary | None
    utilization: float | None


def measured_job(run: RunData) -> MeasuredJob:
    """Return what ``run`` says of other jobs.

    Raises:
        UserError: no steps or no certificate: a launched program's, or one that died before.
    """
    compute = [step.compute_s for log in run.ranks for step in log.steps]
    twin, fiber = twin_of(run.ranks, run.info.workload), certified_fiber(run.certificate, run.topology)
    if not compute or twin is None or fiber is None or run.certificate is None:
        missing = "steps" if not compute or twin is None else "certificate"
        raise UserError(f"the run has no {missing} to predict from; name a finished run of an experiment")
    layout, scale = twin.layout, run.topology.scale if run.topology else 1.0
    real = any(it.layer is None for it in layout.tensors)  # the agents' GPT, which has an embedding
    step_s = layout.step_s or statistics.median(compute)
    fastest_s = step_s * min(layout.speeds.values(), default=1.0)
    declared = DeclaredCompute(fastest_s, real, None if real else layout.elements * scale, speeds=layout.speeds)
    workload = AgentWorkload(
        strategy=twin.name,
        options=twin.values,
        compute=declared,
        batch=max(1, layout.tokens // max(1, layout.context)),
        context=layout.context,
        layers=layout.layers,
        width=layout.width,
        heads=layout.heads,
    )
    planned, took_s = timed(twin, run.ranks, step_s)
    library = None
    if planned:
        costs = FiberModel.of(fiber, run.certificate.host).costs(layout, step_s)
        library = measured_library(planned, took_s, costs, Schedule(twin, endless=False))
    return MeasuredJob(workload, run.topology, library, measured_utilization(run))


def certified_fiber(certificate: Certificate | None, topology: Topology | None = None) -> dict[str, float] | None:
    """Return ``delay_s`` and the payload ``rate_bps`` of the slowest fiber of a certificate; None if it has none.

    ``topology``: only fibers that the traffic of the healthy lab takes count, and not those that stand by.
    """
    used = _used(topology) if topology else None
    measured = [
        it
        for link in (certificate.links if certificate else ())
        if used is None or link.name in used
        for it in link.directions
        if it.measured is not None and it.rate is not None and (it.rate.measured_bps or 0.0) > 0
    ]
    if not measured:
        return None
    rate_bps = min(it.rate.measured_bps for it in measured if it.rate)
    return {"delay_s": max(it.target_s for it in measured), "rate_bps": payload_rate_bps(rate_bps)}


def _used(topology: Topology) -> set[str] | None:
    """Return the links on the paths between all sites with ranks; None if a path is not known."""
    sites = [site.name for site in topology.sites if site.nodes]
    paths = [routing.path(topology, here, there) for here, there in itertools.permutations(sites, 2)]
    if not paths or any(path is None for path in paths):
        return None
    return {direction.partition(":")[0] for path in paths for hop in path or () for direction in hop}


def measured_utilization(run: RunData) -> float | None:
    """Return compute / (compute + exposed communication) over all steps of all ranks; None without steps."""
    steps = [step for log in run.ranks for step in log.steps]
    compute_s = sum(step.compute_s for step in steps)
    total_s = compute_s + sum(step.exposed_s for step in steps)
    return compute_s / total_s if total_s > 0 else None
