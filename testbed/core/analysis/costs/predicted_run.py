"""What was predicted for a run of the testbed's agents, and what it measured: the residual, part by part. Pure.

Before the first step the ranks time the strategy's operations alone (``calibrated_step.py``), and the simulator of
``predict`` composes them with the compute: as declared, or timed alone too. Afterwards the same quantities are those of
the critical path (``critical_path.py``), of steps without a fault in force. Runs without a calibration are predicted
from the compute that they measured, with gloo's default costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.calibrated_step import StepPrediction, predict_step
from testbed.core.analysis.costs.critical_path import CriticalPath, StepParts
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.volleys import timed, why_not
from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.certification.certificate import Certificate
from testbed.core.prediction.network import length_m
from testbed.core.prediction.simulator import Parts as Predicted
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_record import RunData
from testbed.core.topology.model import Topology
from testbed.core.training.twin import Twin

__all__ = ["PARTS", "PredictedRun", "expected_step", "predicted_run", "why_unpredicted"]

PARTS: Mapping[str, tuple[str, ...]] = {
    "propagation": ("propagation_s",),
    "serialization": ("serialization_s",),
    "software and the site": ("software_s", "tcp_s", "rest_s"),
    "waiting": ("peer_wait_s", "late_s"),
}
"""Parts of a prediction, and those of a critical path that they are compared with: TCP's recovery and what the model
of a step does not explain are in the time that an operation takes alone, so they are the library's there."""


@dataclass(frozen=True)
class PredictedRun:
    """Prediction and measurement of a mean step, in seconds and shares.

    Attributes:
        compute_s: what the prediction was made with: declared, timed alone before the job, or measured by it.
        exposed_s, utilization: predicted.
        measured_exposed_s, measured_utilization: of the steps without a fault.
        wire_kappa, propagation, software: w kappa, lambda and o / T of the run.
        delay_s, length_m, rate_bps: of the lab's slowest fiber in use; the rate is payload.
        full_rate_bps: what that rate stands for if the full model's step takes as long.
        measured_compute_s: of the same steps.
        calibrated: whether the operations were timed before the job.
        bytes_per_direction: predicted payload of a step.
        parts: predicted and measured seconds of the exposed time by part, in the order of :data:`PARTS`.
        uncertainty_s: of the measured times of a step, by stalls of the host.
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
    measured_compute_s: float = 0.0
    calibrated: bool = False
    bytes_per_direction: float = 0.0
    parts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    uncertainty_s: float = 0.0

    @property
    def residual(self) -> float:
        """Measured - predicted compute utilization, as a share."""
        return self.measured_utilization - self.utilization

    @property
    def residual_uncertainty(self) -> float:
        """Uncertainty of the residual by stalls of the host: all in compute, or all in exposed communication."""
        compute_s, whole_s = self.measured_compute_s, self.measured_step_s
        in_compute_s, in_exposed_s = min(self.uncertainty_s, compute_s), min(self.uncertainty_s, whole_s - compute_s)
        if self.uncertainty_s <= 0 or whole_s <= in_compute_s or whole_s <= in_exposed_s:
            return 0.0
        low, high = (compute_s - in_compute_s) / (whole_s - in_compute_s), compute_s / (whole_s - in_exposed_s)
        return max(0.0, self.measured_utilization - low, high - self.measured_utilization)

    @property
    def step_s(self) -> float:
        """Predicted time of a step."""
        return self.compute_s + self.exposed_s

    @property
    def measured_step_s(self) -> float:
        return self.measured_compute_s + self.measured_exposed_s


def expected_step(
    twin: Twin | None,
    certificate: Certificate | None,
    logs: Sequence[RankLog],
    about_s: float,
    topology: Topology | None = None,
    *,
    interval: bool = False,
) -> StepPrediction | None:
    """Return the prediction before the first step: from the calibrations in ``logs``, else without the library's time.

    ``about_s``: compute of a step, where the ranks timed none. None without a certificate, for a strategy
    that is not predicted, or without a second site.
    """
    fiber = FiberModel.certified(certificate, topology)
    if twin is None or fiber is None:
        return None
    planned, timings = timed(twin, logs, about_s)
    ranks = [log.calibrations[-1].compute_times_s for log in sorted(logs, key=lambda log: log.rank) if log.calibrations]
    steps_s = tuple(zip(*ranks, strict=False))

    def predicted(took_s: Sequence[float]) -> StepPrediction | None:
        return predict_step(twin, fiber, _compute_s(twin, logs) or about_s, planned, took_s, steps_s)

    mean_step = predicted([timing.mean_s for timing in timings])
    if mean_step is None or not (interval and timings):
        return mean_step
    ends = [
        predicted(times_s)
        for times_s in (
            [timing.fast_s for timing in timings],
            [timing.slow_s for timing in timings],
        )
    ]
    within = [run_predicted.utilization for run_predicted in (mean_step, *ends) if run_predicted is not None]
    return replace(mean_step, interval=(min(within), max(within)))


def why_unpredicted(
    twin: Twin | None, certificate: Certificate | None, logs: Sequence[RankLog], topology: Topology | None = None
) -> str:
    """Return why :func:`expected_step` has no prediction of a job of agents; empty if it has one."""
    if twin is None:
        return "what its ranks exchange is unknown"
    if why := why_not(twin):
        return why
    if FiberModel.certified(certificate, topology) is None:
        return "no fiber in use was certified"
    if expected_step(twin, certificate, logs, 1.0, topology) is not None:
        return ""
    return "a step has too many exchanges to simulate"


def predicted_run(run: RunData, path: CriticalPath | None) -> PredictedRun | None:
    """Return prediction and measurement of a run of agents, with the path of its steps.

    None without steps, a certificate or a second site, and for a strategy that is not predicted.
    """
    if run.info.workload.get("command"):
        return None  # what a program of the user exchanges is not known
    twin = twin_of(run.ranks, run.info.workload)
    if twin is None or path is None:
        return None
    calm = run_path.calm(path, run)
    measured = calm.mean
    prediction = expected_step(twin, run.certificate, run.ranks, measured.compute_s, run.topology)
    if prediction is None or measured.compute_s <= 0:
        return None
    of = prediction.groups
    noise = StallLog(run.stalls, run.tcp_timeouts, run.watched)
    return PredictedRun(
        compute_s=prediction.compute_s,
        exposed_s=prediction.exposed.total_s,
        utilization=prediction.utilization,
        measured_exposed_s=measured.exposed_s,
        measured_utilization=measured.compute_s / measured.total_s,
        wire_kappa=of.wire_kappa,
        propagation=of.propagation,
        software=of.software,
        delay_s=prediction.delay_s,
        length_m=length_m(prediction.delay_s),
        rate_bps=prediction.rate_bps,
        full_rate_bps=prediction.rate_bps * (run.topology.scale if run.topology else 1.0),
        measured_compute_s=measured.compute_s,
        calibrated=any(log.calibrations for log in run.ranks),
        bytes_per_direction=prediction.bytes_per_direction,
        parts=_parts(prediction.exposed, measured),
        uncertainty_s=statistics.fmean(noise.uncertainty_s(step.began_t, step.ended_t) for step in calm.steps),
    )


def _parts(predicted: Predicted, measured: StepParts) -> dict[str, tuple[float, float]]:
    values = (
        predicted.propagation_s,
        predicted.serialization_s + predicted.queueing_s,
        predicted.software_s + predicted.tcp_s,
        predicted.waiting_s,
    )
    return {
        name: (value, sum(getattr(measured, part) for part in of))
        for (name, of), value in zip(PARTS.items(), values, strict=True)
    }


def _compute_s(twin: Twin, logs: Sequence[RankLog]) -> float | None:
    """Return the compute of a step as declared, or as the slowest rank timed it; None if neither is known."""
    if twin.layout.step_s is not None:
        return twin.layout.step_s
    timed = [
        calibration.compute_s
        for log in logs
        for calibration in log.calibrations[-1:]
        if calibration.compute_s is not None
    ]
    return statistics.median(timed) if timed else None
