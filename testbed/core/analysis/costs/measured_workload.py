"""What a run says of other jobs: its model, its compute, what its operations cost; its fibers as certified. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.measured_library import MeasuredLibrary, measured_library
from testbed.core.analysis.costs.volleys import timed
from testbed.core.analysis.job_twin import twin_of
from testbed.core.prediction.library_costs import GLOO, Library
from testbed.core.prediction.simulator import TooMany
from testbed.core.prediction.workload_job import job_on
from testbed.core.records.rank_log import StepRecord
from testbed.core.records.run_record import RunData
from testbed.core.topology.model import Topology
from testbed.core.training.site_process import Schedule
from testbed.core.training.twin import Twin
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import UserError

__all__ = ["MeasuredJob", "SteadyStep", "measured_job", "measured_utilization", "steady_step"]


@dataclass(frozen=True)
class MeasuredJob:
    """What a run of the agents says of other jobs.

    Attributes:
        workload: what it trained, with the compute that it declared or else measured.
        topology: None if the run has none.
        library: what operations cost, by the times that its ranks took for them before the job; None without.
        quartiles: the same by the quartiles of these times.
        unattributed_s: mean step without faults, measured minus simulated with these costs.
        utilization: compute / (compute + exposed communication) that it measured.
    """

    workload: AgentWorkload
    topology: Topology | None
    library: MeasuredLibrary | None
    quartiles: tuple[MeasuredLibrary, ...]
    unattributed_s: float
    utilization: float | None


def measured_job(run: RunData) -> MeasuredJob:
    """Return what ``run`` says of other jobs.

    Raises:
        UserError: no steps or no certificate: a launched program's, or one that died before.
    """
    compute = [step.compute_s for log in run.ranks for step in log.steps]
    twin, fiber = twin_of(run.ranks, run.info.workload), FiberModel.certified(run.certificate, run.topology)
    if not compute or twin is None or fiber is None:
        missing = "steps" if not compute or twin is None else "certificate"
        raise UserError(f"the run has no {missing} to predict from; name a finished run of an experiment")
    layout, scale = twin.layout, run.topology.scale if run.topology else 1.0
    real = any(tensor.layer is None for tensor in layout.tensors)  # the agents' GPT, which has an embedding
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
    libraries = _libraries(twin, fiber, run, step_s)
    library, *quartiles = libraries or (None,)
    unattributed_s = _unattributed_s(workload, library, run, twin.cycle)
    return MeasuredJob(workload, run.topology, library, tuple(quartiles), unattributed_s, measured_utilization(run))


def _libraries(twin: Twin, fiber: FiberModel, run: RunData, step_s: float) -> tuple[MeasuredLibrary, ...]:
    """Return the library by the mean of its times, and by their quartiles; () if nothing was timed."""
    planned, timings = timed(twin, run.ranks, step_s)
    costs, schedule = fiber.costs(twin.layout, step_s), Schedule(twin, endless=False)
    times = (
        [
            [timing.mean_s for timing in timings],
            [timing.fast_s for timing in timings],
            [timing.slow_s for timing in timings],
        ]
        if timings
        else []
    )
    return tuple(measured_library(planned, times_s, costs, schedule) for times_s in times)


def _unattributed_s(workload: AgentWorkload, library: Library | None, run: RunData, cycle: int) -> float:
    """Return measured minus simulated exposed time of a steady step; 0 if either is unknown, or sites differ in speed:
    faster ones wait, and only the fastest one is simulated."""
    steady = steady_step(run, cycle)
    if run.topology is None or steady is None or (workload.compute and workload.compute.speeds):
        return 0.0
    try:
        simulated = job_on(workload, run.topology, library=library or GLOO).simulate()
    except TooMany:
        return 0.0
    return steady.exposed_s - simulated.parts.total_s


@dataclass(frozen=True)
class SteadyStep:
    """Compute and exposed communication of a mean step, in seconds."""

    compute_s: float
    exposed_s: float

    @property
    def utilization(self) -> float:
        return self.compute_s / (self.compute_s + self.exposed_s)


def steady_step(run: RunData, cycle: int) -> SteadyStep | None:
    """Return the mean step of all ranks over whole cycles, without the first and the last one, and without faults.

    If the job is too short, all steps but the first count. None without a second step, or without compute.
    """
    faults = run_path.disturbed(run.events)
    every = [record for log in run.ranks for record in log.steps]
    touched = {_cycle(record, cycle) for record in every if faults.touch(record.t_begin, record.t_end)}
    steps = [record for record in every if _cycle(record, cycle) not in touched]
    last = max((record.step for record in every), default=0)
    counted = [record for record in steps if cycle < record.step <= last - last % cycle - cycle]
    counted = counted or [record for record in every if record.step > 1]
    compute_s = sum(record.compute_s for record in counted)
    if compute_s <= 0:
        return None
    return SteadyStep(compute_s / len(counted), sum(record.exposed_s for record in counted) / len(counted))


def _cycle(step: StepRecord, cycle: int) -> tuple[int, int]:
    """Return attempt and number of the cycle of a step."""
    return step.attempt, (step.step - 1) // cycle


def measured_utilization(run: RunData) -> float | None:
    """Return compute / (compute + exposed communication) over all steps of all ranks; None without steps."""
    steps = [step for log in run.ranks for step in log.steps]
    compute_s = sum(step.compute_s for step in steps)
    total_s = compute_s + sum(step.exposed_s for step in steps)
    return compute_s / total_s if total_s > 0 else None
