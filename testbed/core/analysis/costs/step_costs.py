"""What the exchange of a step costs by the twin and the certificate: the model that a critical path is measured by."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from testbed.core.analysis.costs.critical_path import StepCost, WindowCost
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.operation_times import OperationTime
from testbed.core.analysis.costs.volleys import ALIKE
from testbed.core.prediction.library_costs import LibraryCosts
from testbed.core.prediction.tcp_limits import LEAST_RTO_S, cold_start_s
from testbed.core.training.exchange import Exchange, exchanges
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["step_costs"]


def step_costs(twin: Twin, fiber: FiberModel, times: Sequence[OperationTime] = ()) -> Callable[[int], StepCost]:
    """Return what a step costs, as a function of its number, from 1.

    Propagation is that of each sequential round of messages: of buckets in the library's slots one row after the other,
    of messages that need no slot once. Software is that of all operations. ``times``: of those that the ranks recorded.
    """
    costs = fiber.costs(twin.layout)

    @functools.cache
    def of_operations(operations: tuple[Operation, ...]) -> StepCost:
        inner = [operation for operation in operations if operation.before_update]
        outer = [operation for operation in operations if not operation.before_update]
        inner_cost, outer_cost = (_cost(part, costs, fiber, times) for part in (inner, outer))
        return StepCost(inner_cost, outer_cost, like=repr(operations))

    def of_step(step: int) -> StepCost:
        return of_operations(tuple(twin.operations(step)))

    return of_step


def _cost(
    operations: Sequence[Operation], costs: LibraryCosts, fiber: FiberModel, times: Sequence[OperationTime]
) -> WindowCost:
    sites = costs.layout.sites
    peers: defaultdict[int, set[int]] = defaultdict(set)
    awaited = [operation for operation in operations if not operation.lands and len(operation.ranks) > 1]
    for operation in awaited:
        for rank in operation.ranks:
            peers[rank] |= set(operation.ranks) - {rank}
    across = [operation for operation in awaited if len({sites[rank] for rank in operation.ranks}) > 1]
    moved = max(site_bytes(across, sites).values(), default=0.0)
    largest = max((operation.byte_count for operation in across), default=0.0)
    rtt_s = 2 * fiber.delay_s
    rounds = [(volley, _rounds(volley, costs)) for volley in exchanges(across, sites)]
    return WindowCost(
        peers={rank: frozenset(others) for rank, others in peers.items()},
        crosses=bool(across),
        propagation_s=sum(count * _alone_s(round_, costs) for round_, count in rounds),
        serialization_s=8 * moved / fiber.rate_bps,
        software_s=sum(
            len(round_.operations) * max(1, round_.first.parts) * _software_s(round_, times) for round_, _ in rounds
        ),
        cold_s=cold_start_s(fiber.rate_bps, rtt_s, 8 * largest) if across and fiber.slow_after_idle else 0.0,
        idle_s=LEAST_RTO_S + rtt_s,
    )


def _rounds(exchange: Exchange, costs: LibraryCosts) -> int:
    """Return how many of the parts and repetitions of an exchange follow one another."""
    slots = costs.of(exchange).slots
    return 1 if slots is None else exchange.times * math.ceil(max(1, exchange.first.parts) / slots)


def _alone_s(exchange: Exchange, costs: LibraryCosts) -> float:
    """Return the delays of one part of an exchange during which no lane sends it."""
    cost = costs.of(replace(exchange, parts=max(1, exchange.first.parts)))
    return (cost.propagation_s - cost.hidden_s) / exchange.times


def _software_s(exchange: Exchange, times: Sequence[OperationTime]) -> float:
    """Return the mean software of operations like those of an exchange; 0 if none were recorded.

    Buckets hold whole tensors, so their sizes differ.
    """
    first, parts = exchange.first, max(1, exchange.first.parts)
    size = first.byte_count / parts
    like = [
        time
        for time in times
        if (time.size.kind, time.size.ranks) == (first.kind, len(first.ranks))
        and size <= ALIKE * time.size.byte_count <= ALIKE**2 * size
    ]
    count = sum(time.count for time in like)
    return sum(time.count * time.software_s for time in like) / count if count else 0.0
