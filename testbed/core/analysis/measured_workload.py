"""Inputs of a prediction from a run: its model, its compute, the fibers as certified. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from typing import Any, Final

from testbed.core.certification.certificate import Certificate
from testbed.core.plan import routing
from testbed.core.prediction.network import payload_rate_bps
from testbed.core.records.run_record import RunData
from testbed.core.topology.model import Topology
from testbed.errors import UserError

__all__ = ["certified_fiber", "measured_utilization", "measured_workload"]

FLOAT32_BITS: Final = 32.0


def measured_workload(run: RunData) -> dict[str, Any]:
    """Return T, the model, sites, ranks, delay and payload rate of a run of the testbed's agents, for ``Inputs``.

    T is the median compute of a rank's step. Delay and rate are those of the slowest certified fiber in use. The
    agents send one bucket a step: PyTorch's buckets of 25 MB hold their whole model.

    Raises:
        UserError: no steps or no certificate: a launched program's, or one that died before.
    """
    compute = [step.compute_s for log in run.ranks for step in log.steps]
    jobs = [log.job for log in run.ranks if log.job is not None]
    fiber = certified_fiber(run.certificate, run.topology)
    if not compute or not jobs or fiber is None:
        missing = "steps" if not compute or not jobs else "certificate"
        raise UserError(f"the run has no {missing} to predict from; name a finished run of an experiment")
    nodes: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        nodes[job.site] += 1
    return {
        "step_s": statistics.median(compute),
        "parameters": float(jobs[0].parameters or 1),
        "bits": FLOAT32_BITS,
        "buckets": 1,
        "sites": len(nodes),
        "ranks_per_site": max(nodes.values()),
        **fiber,
    }


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
