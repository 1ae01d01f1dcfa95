"""What was predicted for a run of the testbed's agents, and what it measured: the residual. Pure.

Before the job: the exposed communication of a step, from the certified fibers and the agents' model. One bucket after
the backward pass does not depend on their compute. Afterwards: compute utilization with the compute that the run
measured, and the residual of both. The strategy's twin says which closed form is its own (``Twin.prediction``). Neither
knows the library: c and w are those of the strategy's pattern.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.measured_workload import FLOAT32_BITS, certified_fiber, measured_workload
from testbed.core.certification.certificate import Certificate
from testbed.core.physics.validity import Exchange
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.similarity import groups, length_m
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.records.run_record import RunData
from testbed.core.topology.model import Topology
from testbed.core.training.operation import Operation
from testbed.core.training.twin import Twin
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import UserError

__all__ = ["PredictedRun", "expected_exchange", "predicted_run"]

ANY_STEP_S = 1.0
"""Compute of a step, which the exposed time of one bucket does not depend on."""


@dataclass(frozen=True)
class PredictedRun:
    """Prediction and measurement of a median step of a rank, in seconds and shares.

    Attributes:
        compute_s: measured; the prediction takes it as given.
        exposed_s, utilization: predicted.
        measured_exposed_s, measured_utilization: of the same steps.
        wire_kappa, propagation, software: w kappa, lambda and o / T of the run.
        delay_s, length_m, rate_bps: of the lab's slowest fiber; the rate is payload.
        full_rate_bps: what that rate stands for if the full model's step takes as long.
    """

    compute_s: float
    exposed_s: float
    utilization: float
    measured_exposed_s: float
    measured_utilization: float
    wire_kappa: float
    propagation: float
    software: float
    delay_s: float
    length_m: float
    rate_bps: float
    full_rate_bps: float

    @property
    def residual(self) -> float:
        """Measured - predicted compute utilization, as a share."""
        return self.measured_utilization - self.utilization


def expected_exchange(
    topology: Topology, certificate: Certificate | None, strategy: str = AgentWorkload.strategy
) -> Outcome | None:
    """Return what a step of the agents will expose over these fibers; None without a certificate or a second site.

    ``strategy``: the name of a closed form.
    """
    fiber = certified_fiber(certificate)
    if fiber is None or len(topology.sites) < 2:
        return None
    bits = 8 * Exchange(len(topology.node_names)).gradient_bytes
    inputs = Inputs(
        ANY_STEP_S, bits / FLOAT32_BITS, 1, fiber["rate_bps"], fiber["delay_s"], bits=FLOAT32_BITS, buckets=1,
        sites=len(topology.sites), ranks_per_site=max(site.nodes for site in topology.sites),
    )  # fmt: skip
    return STRATEGIES[strategy].predict(inputs)


def predicted_run(run: RunData) -> PredictedRun | None:
    """Return prediction and measurement of a run of agents; None without steps, a certificate, or a second site."""
    if run.info.workload.get("command"):
        return None  # what a program of the user exchanges is not known
    try:
        found = measured_workload(run)
    except UserError:
        return None
    twin = twin_of(run.ranks, run.info.workload)
    strategy = STRATEGIES.get(twin.prediction or twin.name) if twin else None
    if found["sites"] < 2 or twin is None or strategy is None:
        return None
    more = twin.predicted_by(found["rate_bps"], found["delay_s"])
    inputs = Inputs(layers=1, **{**found, **_declared(twin, strategy.own), **more})
    outcome, of = strategy.predict(inputs), groups(inputs, strategy.exchanged(inputs))
    exposed_s = _usual_exposed_s(run, twin)
    scale = run.topology.scale if run.topology else 1.0
    return PredictedRun(
        compute_s=inputs.step_s,
        exposed_s=outcome.exposed.total_s,
        utilization=outcome.utilization,
        measured_exposed_s=exposed_s,
        measured_utilization=inputs.step_s / (inputs.step_s + max(0.0, exposed_s)),
        wire_kappa=of.wire_kappa,
        propagation=of.propagation,
        software=of.software,
        delay_s=inputs.delay_s,
        length_m=length_m(inputs.delay_s),
        rate_bps=inputs.rate_bps,
        full_rate_bps=inputs.rate_bps * scale,
    )


def _declared(twin: Twin, own: Collection[str]) -> dict[str, Any]:
    """Return the inputs that the strategy's options declare, by the names that both share."""
    common = {it.name for it in fields(Inputs)} & ({*own, "every", "bits", "accumulate"})
    values = {it.argument: twin.values[it.name] for it in twin.options}
    return {name: float(value) if name == "bits" else value for name, value in values.items() if name in common}


def _usual_exposed_s(run: RunData, twin: Twin) -> float:
    """Return the exposed time of a usual step: the median of those with the same exchanges, each by its share."""
    alike: dict[tuple[Operation, ...], list[float]] = {}
    for log in run.ranks:
        for step in log.steps:
            alike.setdefault(tuple(twin.operations(step.step)), []).append(step.exposed_s)
    count = sum(map(len, alike.values()))
    return sum(len(each) / count * statistics.median(each) for each in alike.values())
