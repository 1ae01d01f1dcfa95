"""Say what a step is predicted to take, between the timing of the operations and the first step."""

from __future__ import annotations

import time
from typing import Final

from testbed.core.analysis.costs.calibrated_step import StepPrediction
from testbed.core.analysis.costs.predicted_run import expected_step, why_unpredicted
from testbed.core.analysis.costs.volleys import why_not
from testbed.core.topology.model import Topology
from testbed.core.units import format_duration
from testbed.core.workload import workload_layout
from testbed.core.workload.workload import AgentWorkload
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs.job import ABOUT_S
from testbed.lab.jobs.running_job import RunningJob
from testbed.lab.lab import Lab
from testbed.lab.progress import Progress

__all__ = ["predicted_note", "say_prediction"]

_POLL_S: Final = 0.1
"""Between two looks whether the ranks have timed their operations, which they do on the same cores."""
BOUND_S: Final = 60.0
"""For so long the prediction is waited for; then the job is followed without it."""


def say_prediction(
    workload: AgentWorkload,
    topology: Topology,
    lab: Lab,
    job: RunningJob,
    run_directory: RunDirectory,
    progress: Progress,
) -> None:
    """Say what a step is predicted to take, once the ranks have timed their operations, or why it is not predicted.

    Nothing is said of a job that ends before its first step: the reason is that job's own.
    """
    twin = workload_layout.twin_of(workload, topology)
    if why := why_not(twin):
        progress.note(_not_predicted(workload, why))
        return
    ranks, until = len(topology.node_names), time.monotonic() + BOUND_S
    waits = True
    while waits:
        # Asked before the records are read: of a short first step, too, the prediction is said.
        over = job.over() or bool(_lab_failure(lab))
        waits = not (over or job.step > 0 or time.monotonic() > until)
        logs = run_directory.rank_logs()
        if sum(bool(log.calibrations) for log in logs) == ranks:
            about_s = workload.step_s or ABOUT_S
            expected = expected_step(twin, lab.certificate, logs, about_s, topology, interval=True)
            if expected is not None:
                progress.note(predicted_note(workload, expected))
            else:
                progress.note(_not_predicted(workload, why_unpredicted(twin, lab.certificate, logs, topology)))
            return
        if waits:
            time.sleep(_POLL_S)
        elif not over:
            when = "before the first step" if job.step > 0 else f"within {format_duration(BOUND_S)}"
            progress.note(_not_predicted(workload, f"not all ranks timed their operations {when}"))


def _lab_failure(lab: Lab) -> str:
    return "" if lab.recorder is None else lab.recorder.lab_failure


def _not_predicted(workload: AgentWorkload, why: str) -> str:
    return f"no prediction for {workload.strategy}: {why}"


def predicted_note(workload: AgentWorkload, expected: StepPrediction) -> str:
    """Return the prediction of a job in a line, before its first step."""
    parts, within = expected.exposed, ""
    if expected.interval is not None:
        low, high = (f"{share:.1%}" for share in expected.interval)
        within = f" ({low} to {high} with operations at their quartiles)" if low != high else ""
    return (
        f"predicted for {workload.strategy}: a step of {format_duration(expected.step_s, 3)}, compute utilization"
        f" {expected.utilization:.1%}{within}, {expected.bytes_per_direction / 1e3:.4g} kB per step and direction;"
        f" exposed {format_duration(parts.total_s, 3)} ({format_duration(parts.propagation_s, 3)} propagation,"
        f" {format_duration(parts.serialization_s + parts.queueing_s, 3)} serialization,"
        f" {format_duration(parts.software_s + parts.tcp_s, 3)} software and site,"
        f" {format_duration(parts.waiting_s, 3)} waiting), from its operations timed alone"
    )
