"""Which ways of training the fibers of a topology can sustain: the table of ``testbed show``. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.network import Network
from testbed.core.prediction.predicted_job import Job
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.simulator import TooMany
from testbed.core.prediction.workload_job import job_on
from testbed.core.topology.model import Topology
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.strategies_built import BUILT
from testbed.core.workload.declared_compute import MODEL_LAYERS, DeclaredCompute
from testbed.core.workload.workload import AgentWorkload

__all__ = ["COMPUTE_S", "GRADIENT_BYTES", "Way", "ways"]

GRADIENT_BYTES: Final = 1e9
"""Default gradient size of a step: a quarter of a billion parameters, in 32 bits as the agents send them."""
COMPUTE_S: Final = 1.0
"""Default compute time of a step, in seconds: our assumption."""

VIABLE: Final = 0.1
COSTLY: Final = 0.5
"""Largest exposed share of a step of a viable, or costly, way of training: our assumption."""


@dataclass(frozen=True)
class Way:
    """A way of training: exposed communication per step, in seconds and as a share of the step.

    ``every`` is the number of steps per exchange; ``exposed_s`` is the mean over them. ``rate_bps`` is the least
    payload rate between two sites for a compute utilization of 90 %; None if distance forbids it at any rate.
    """

    name: str
    every: int
    exposed_s: float
    share: float
    verdict: str
    rate_bps: float | None


def ways(topology: Topology, gradient_bytes: float = GRADIENT_BYTES, compute_s: float = COMPUTE_S) -> tuple[Way, ...]:
    """Return each way that a twin has ``shown``, over the fibers of ``topology`` at full scale; empty for one site.

    Args:
        gradient_bytes: gradients of one step, as exchanged.
        compute_s: compute time of a step in seconds, greater than 0.
    """
    if len([site for site in topology.sites if site.nodes]) < 2:
        return ()
    parameters = max(gradient_bytes / FLOAT32_BYTES, MODEL_LAYERS * topology.scale)
    compute, network = DeclaredCompute(compute_s, model=parameters), Network.of_topology(topology)
    computed = []
    for name, twin in BUILT.items():
        options = vars(twin).get("shown")
        if options is None:
            continue
        workload = AgentWorkload(strategy=name, options=dict(options), compute=compute, layers=MODEL_LAYERS)
        with suppress(TooMany):  # then the table goes without it
            computed.append(_way(job_on(workload, topology, network)))
    return tuple(computed)


def _way(job: Job) -> Way:
    outcome = job.simulate()
    share = outcome.parts.total_s / outcome.step_s

    def utilization(rate_bps: float) -> float:
        return job.but(network=job.network.with_rate(rate_bps / job.scale)).simulate().utilization

    return Way(
        job.twin.name,
        job.twin.cycle,
        outcome.parts.total_s,
        share,
        "viable" if share <= VIABLE else "costly" if share <= COSTLY else "not viable",
        least_rate_bps(utilization, 1 - VIABLE, tolerance=2e-3),  # three digits are shown
    )
