"""What operations cost by the times that ranks took for them alone before a job, as a library. Pure.

What an operation took beyond its rounds and its bytes is software, so these costs hold over other fibers, and for other
groups as far as they are like those that were timed. A burst of parts that follow one another was timed beside one
part: by the burst, a part holds its slot for as long as the burst's share says; by the one, its connections were idle
before. Messages need no slot: what each one more of a burst takes is time on the lane. What follows an inner optimizer
was timed as a whole, with what each rank computes for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from testbed.core.analysis.costs.volleys import ALIKE, EXCHANGE, Volley
from testbed.core.prediction.library_costs import GLOO, LibraryCosts, OperationCost
from testbed.core.training.exchange import Exchange
from testbed.core.training.site_process import Schedule
from testbed.core.training.strategy_operation import Kind, Operation

__all__ = ["MeasuredLibrary", "measured_library"]

_LITTLE: Final = 1e-9


@dataclass(frozen=True)
class _Point:
    """What an operation of this kind, ranks and size costs; ``beside``: as a part beside the backward pass."""

    kind: str
    ranks: int
    byte_count: float
    beside: bool
    crosses: bool
    cost: OperationCost


@dataclass(frozen=True)
class MeasuredLibrary:
    """A library by what was timed; of kinds that were not, gloo's costs.

    ``updates``: seconds of what follows an inner optimizer, by the operations that follow it (``Exchange.computes``).
    """

    points: tuple[_Point, ...]
    updates: Mapping[tuple[tuple[str, bool], ...], float] = field(default_factory=dict)
    name: str = "torch-gloo, as measured"
    slots: int | None = GLOO.slots

    @cached_property
    def measured(self) -> frozenset[str]:
        return frozenset(point.kind for point in self.points)

    def cost(self, kind: str, ranks: int, byte_count: float, *, beside: bool, crosses: bool) -> OperationCost:
        """Return what the nearest operation cost: of the same use if there is one, then by ranks, then by bytes."""
        plain = GLOO.cost(kind, ranks, byte_count, beside=beside, crosses=crosses)
        points = [point for point in self.points if point.kind == kind]
        if not points:
            return plain

        def unlike(point: _Point) -> tuple[bool, bool, float, float]:
            far = abs(math.log(max(point.byte_count, 1.0) / max(byte_count, 1.0)))
            far = 0.0 if far <= math.log(ALIKE) else far
            return point.crosses != crosses, point.beside != beside, abs(math.log(point.ranks / ranks)), far

        nearest = min(points, key=unlike)
        same = nearest.ranks == ranks and not any(unlike(nearest)[:2])
        rounds = nearest.cost.rounds if same and not unlike(nearest)[3] else plain.rounds
        return OperationCost(
            rounds, nearest.cost.software_s, nearest.cost.cold_s, nearest.cost.idle_s, nearest.cost.lane,
            nearest.cost.hides,
        )  # fmt: skip

    def hidden_s(self, kind: str, ranks: int, byte_count: float, serial_s: float, delay_s: float) -> float:
        return GLOO.hidden_s(kind, ranks, byte_count, serial_s, delay_s)

    def update_s(self, before: tuple[tuple[str, bool], ...]) -> float:
        """Return what each rank computes between its inner optimizer and the operations ``before`` which it does."""
        return self.updates.get(before, 0.0)


def measured_library(
    planned: Sequence[Volley], took_s: Sequence[float], costs: LibraryCosts, schedule: Schedule
) -> MeasuredLibrary:
    """Return the library of what was timed.

    Args:
        planned, took_s: the volleys and how long each took.
        costs: of the fibers of the lab in which they were timed, by gloo's rounds.
        schedule: of the job that was timed.
    """
    timed = list(zip(planned, took_s, strict=False))
    ones = {
        _what(operation): (operation, seconds)
        for operation, seconds in timed
        if operation.kind != EXCHANGE and operation.burst == 1
    }
    bursts = {
        _what(operation): (operation.burst, seconds)
        for operation, seconds in timed
        if operation.kind != EXCHANGE and operation.burst > 1
    }
    points = [_point(volley, one_s, bursts.get(what), costs) for what, (volley, one_s) in ones.items() if one_s]
    library = MeasuredLibrary(tuple(points))
    by_library = replace(costs, library=library)
    updates: dict[tuple[tuple[str, bool], ...], float] = {}
    for volley, seconds in timed:
        if volley.kind != EXCHANGE:
            continue
        step = schedule.step(volley.step)
        sites = (step.of(site) for site in costs.layout.site_names)
        known_s = max(sum(by_library.of(operation).alone_s for _, operation in own.outer) for own in sites)
        for _, update in step.updates[:1]:
            updates.setdefault(update.computes, max(0.0, seconds - known_s))
    return replace(library, updates=updates)


def _what(volley: Volley) -> tuple[object, ...]:
    return volley.kind, volley.what, volley.beside, volley.groups, round(volley.byte_count)


def _point(volley: Volley, one_s: float, burst: tuple[int, float] | None, costs: LibraryCosts) -> _Point:
    kind: Kind = volley.kind  # type: ignore[assignment]  # of an operation
    operations = tuple(Operation(kind, ranks, volley.byte_count, volley.what, group) for group, ranks in volley.groups)
    sites = tuple(dict.fromkeys(costs.layout.sites[rank] for operation in operations for rank in operation.ranks))
    cost = costs.of(Exchange(operations, sites))
    rounds = GLOO.cost(kind, len(operations[0].ranks), volley.byte_count, beside=False, crosses=True).rounds
    serial_s, propagation_s = max(cost.lanes.values(), default=0.0), cost.propagation_s
    if burst is None:
        fitted = _fitted(rounds, propagation_s, cost.hidden_s, serial_s, one_s)
    elif cost.slots is None:
        fitted = _of_messages(rounds, propagation_s, serial_s, one_s, *burst)
    else:
        count, burst_s = burst
        slots = min(cost.slots, count) if volley.at_once else 1
        fitted = _fitted(rounds, propagation_s, cost.hidden_s, serial_s, burst_s / math.ceil(count / slots), slots)
    share = fitted.rounds / rounds if rounds else 0.0
    hidden_s = cost.hidden_s if fitted.hides else 0.0
    more_s = one_s - fitted.software_s - share * propagation_s + hidden_s - fitted.lane * serial_s
    fitted = replace(fitted, cold_s=max(0.0, more_s), idle_s=volley.gap_s)
    return _Point(kind, len(operations[0].ranks), volley.byte_count, volley.beside, volley.crosses, fitted)


def _fitted(
    rounds: float, propagation_s: float, hidden_s: float, serial_s: float, took_s: float, slots: int = 1
) -> OperationCost:
    """Return the cost of what takes ``took_s`` in all: first its rounds, then its bytes, and software.

    In the other of ``slots`` as much is sent at the same time, so the lanes of all together take no longer than that.
    ``hidden_s`` of the rounds go on while its bytes are sent; not if it took less than both one after the other.
    """
    if hidden_s and took_s >= max(propagation_s + serial_s - hidden_s, slots * serial_s):
        return OperationCost(rounds, took_s - propagation_s + hidden_s - serial_s)
    share = min(1.0, took_s / propagation_s) if propagation_s else 1.0
    left_s = max(0.0, took_s - share * propagation_s)
    most_s = min(left_s, (1 - _LITTLE) * took_s / slots)
    lane = min(1.0, most_s / serial_s) if serial_s else 1.0
    return OperationCost(share * rounds, max(0.0, left_s - lane * serial_s), lane=lane, hides=False)


def _of_messages(
    rounds: float, propagation_s: float, serial_s: float, one_s: float, count: int, took_s: float
) -> OperationCost:
    """``count`` messages on their way at once took ``took_s``, and one took ``one_s`` after an idle time."""
    lane_s = max(serial_s, (took_s - one_s) / (count - 1)) if count > 1 else serial_s
    lane_s = min(lane_s, took_s / count)
    latency_s = took_s - count * lane_s
    share = min(1.0, latency_s / propagation_s) if propagation_s else 1.0
    software_s = max(0.0, latency_s - share * propagation_s)
    return OperationCost(share * rounds, software_s, lane=lane_s / serial_s if serial_s else 1.0, hides=False)
