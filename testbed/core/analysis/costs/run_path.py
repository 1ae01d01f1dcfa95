"""The critical path of each step of a run: what its twin, its certificate and its records say of it together. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.core.analysis.commits import lineage
from testbed.core.analysis.costs.critical_path import CriticalPath, Operations, TimedOperation, critical_path
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.operation_times import operation_times, operations_by_tag
from testbed.core.analysis.costs.step_costs import step_costs
from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.timeline import Stretches, fault_windows
from testbed.core.records.check_record import CheckLog
from testbed.core.records.event import Event
from testbed.core.records.operation_record import Done
from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.records.run_record import RunData
from testbed.core.training.twin import Twin

__all__ = ["calm", "disturbed", "evaluate"]

_MOST_AFTER_S = 2.0
"""So long after its end a fault may slow steps down."""


def evaluate(run: RunData, logs: Sequence[RankLog]) -> CriticalPath | None:
    """Return the path of each committed step; None for a launched program, or without a certificate or a step."""
    fiber, twin = FiberModel.certified(run.certificate, run.topology), twin_of(logs, run.info.workload)
    if fiber is None or twin is None:
        return None
    world_size = twin.layout.world_size
    rows = [row for row in lineage(logs).values() if len(row) == world_size]
    rows.sort(key=lambda row: max(record.t_end for record in row.values()))
    if not rows:
        return None
    times = operation_times(run.checks, twin, fiber)
    measured_path = critical_path(rows, step_costs(twin, fiber, times), _operations(run.checks, twin))
    return replace(measured_path, operations=times)


def calm(path: CriticalPath, run: RunData) -> CriticalPath:
    """Return the steps that no fault touched, without the first of each attempt, which makes connections and touches
    its memory for the first time; all steps, if each was touched."""
    faults = disturbed(run.events)
    first = {step.attempt: step.step for step in reversed(path.steps)}
    later = [step for step in path.steps if step.step != first[step.attempt]]
    untouched = tuple(path for path in later if not faults.touch(path.began_t, path.ended_t))
    return replace(path, steps=untouched) if untouched else path


def disturbed(events: Sequence[Event]) -> Stretches:
    """Return the intervals in which a fault was active, each extended by its aftermath."""
    return Stretches(
        (window.began_t, window.ended_t + _MOST_AFTER_S if window.ended_t is not None else math.inf)
        for window in fault_windows(events)
    )


def _operations(checks: Sequence[CheckLog], twin: Twin) -> Operations | None:
    """Return the recorded operations of a rank in a step; None in runs of former versions, which name no groups.

    Operations that go on beside later steps are left out: what a step waits of them it records itself.
    """
    by_tag = operations_by_tag(checks)
    if not by_tag:
        return None
    beside = _beside(twin)
    timed_by_step: defaultdict[tuple[int, int, int], list[TimedOperation]] = defaultdict(list)
    sites = twin.layout.sites
    for tag, ranks in by_tag.items():
        ended = {rank: done for rank, done in ranks.items() if done.ended_t is not None}
        if tag.group in beside or not ended:
            continue
        members = tag.ranks or (*ended,)
        crosses = len({sites[rank] for rank in members if rank < len(sites)}) > 1
        arrived_t = max(done.began_t for done in ranks.values())
        for rank, done in ended.items():
            timed = _timed(done, arrived_t, crosses)
            timed_by_step[rank, tag.attempt, done.step].append(timed)
    return _by_step(timed_by_step)


def _timed(done: Done, arrived_t: float, crosses: bool) -> TimedOperation:
    ended_t = done.began_t if done.ended_t is None else max(done.ended_t, done.began_t)
    # A message may have been received after its sender had begun, and its sender cannot wait for its receipt.
    return TimedOperation(
        done.began_t, min(max(arrived_t, done.began_t), ended_t), ended_t, crosses, done.waited_s or 0.0
    )


def _by_step(timed: Mapping[tuple[int, int, int], Sequence[TimedOperation]]) -> Operations:
    def of_step(rank: int, record: StepRecord) -> Sequence[TimedOperation]:
        return timed.get((rank, record.attempt, record.step), ())

    return of_step


def _beside(twin: Twin) -> frozenset[str]:
    """Return the groups of exchanges that land in a later step."""
    steps = range(1, min(twin.layout.steps, twin.cycle) + 1)
    return frozenset(operation.group for step in steps for operation in twin.operations(step) if operation.lands)
