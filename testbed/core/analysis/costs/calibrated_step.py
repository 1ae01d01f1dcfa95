"""Predict a step of a job from its own operations, timed alone before it, by the simulator. Pure.

Operations that were not timed cost what gloo's algorithm, its software and the fiber say. A rank waits for
the slowest of those with which it ends the step: by how much their compute differs was timed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.measured_library import measured_library
from testbed.core.analysis.costs.volleys import Volley, cycle_of, why_not
from testbed.core.prediction.similarity import Groups, groups
from testbed.core.prediction.simulator import Parts, TooMany, simulate
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.site_process import Schedule
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["StepPrediction", "predict_step"]

_MOST_STEPS: Final = 400
"""A longer job is its steady state: how it ends weighs little."""
_ENDLESS: Final = 10**12


@dataclass(frozen=True)
class StepPrediction:
    """A mean step as predicted.

    Attributes:
        bytes_per_direction: payload of a step in the busiest direction between two sites.
        delay_s, rate_bps: of the slowest fiber.
        interval: utilization with operations at the quartiles of their calibration; None if none were timed.
    """

    compute_s: float
    exposed: Parts
    bytes_per_direction: float
    groups: Groups
    delay_s: float
    rate_bps: float
    interval: tuple[float, float] | None = None

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed.total_s

    @property
    def utilization(self) -> float:
        return self.compute_s / self.step_s


def predict_step(
    twin: Twin,
    fiber: FiberModel,
    compute_s: float,
    planned: Sequence[Volley] = (),
    took_s: Sequence[float] = (),
    steps_s: Sequence[Sequence[float]] = (),
) -> StepPrediction | None:
    """Return the prediction; None for a strategy that has none (:func:`why_not`).

    Args:
        compute_s: of a step, as declared or measured.
        planned, took_s: the volleys and how long each took alone; empty: gloo's costs.
        steps_s: compute of steps that all ranks began together, of each rank.
    """
    if why_not(twin):
        return None
    sites, cycle = twin.layout.sites, cycle_of(twin)
    ends = twin.layout.steps <= _MOST_STEPS and twin.composed
    endless = type(twin)(twin.values, replace(twin.layout, steps=_ENDLESS))
    schedule = Schedule(twin, endless=False) if ends else endless.schedule
    processes = schedule.processes() if twin.composed else endless.processes()
    costs = fiber.costs(twin.layout, compute_s)
    if planned:
        costs = replace(costs, library=measured_library(planned, took_s, costs, Schedule(twin, endless=False)))
    try:
        simulated = simulate(
            processes,
            costs,
            cycle=None if ends else endless.cycle,
            site=twin.layout.site_names[0],
            skip=1 if ends else 0,
            keep=True,
            late_as_waiting=True,
        )
    except TooMany:
        return None
    exposed = simulated.parts + Parts(waiting_s=_peer_wait_s(twin, cycle, steps_s))
    steps = [site_bytes(twin.operations(step), sites) for step in range(1, cycle + 1)]
    pairs = {pair for bytes_by_pair in steps for pair in bytes_by_pair}
    moved = max((sum(bytes_by_pair.get(pair, 0.0) for bytes_by_pair in steps) for pair in pairs), default=0.0) / cycle
    return StepPrediction(
        compute_s,
        exposed,
        moved,
        groups(costs, costs.network, cycle, compute_s, simulated),
        fiber.delay_s,
        fiber.rate_bps,
    )


def _peer_wait_s(twin: Twin, cycle: int, steps_s: Sequence[Sequence[float]]) -> float:
    """Return how long a rank waits, at the mean, for the slowest of those with which it ends a step."""
    if not steps_s:
        return 0.0
    waits: dict[tuple[Operation, ...], float] = {}
    total_s = 0.0
    for step in range(1, cycle + 1):
        awaited = tuple(operation for operation in twin.operations(step) if not operation.lands and operation.watched)
        if awaited not in waits:
            waits[awaited] = _wait_of_mates_s(awaited, steps_s)
        total_s += waits[awaited]
    return total_s / cycle


def _wait_of_mates_s(operations: Sequence[Operation], steps_s: Sequence[Sequence[float]]) -> float:
    world = min((len(row) for row in steps_s), default=0)
    mates = {rank: {rank} for rank in range(world)}
    for operation in operations:
        joined = set().union(*(mates.get(rank, set()) for rank in operation.ranks))
        mates.update(dict.fromkeys(joined, joined))
    waits = [max(row[mate] for mate in mates[rank]) - row[rank] for row in steps_s for rank in range(world)]
    return sum(waits) / len(waits) if waits else 0.0
