"""Split the time of a run's operations between sites into parts. Pure.

An operation is in service from when its last rank began it and the library had a slot for it, until its last rank ended
it. Its rounds and its bytes over the certified fiber are known, and so is slow start after idling. What is left is the
library's software, and queueing: lanes send others of the job, and cores work for them. Other operations use lanes and
cores while its messages travel, so they delay it only for the share of its time in which it needs them itself. Of an
operation that sends and computes for W seconds and travels for P, whose neighbours need V seconds meanwhile:
took = P + W + V W / (W + P). In a ring messages travel while others are sent, so P decreases as W grows. Neighbours are
taken to need as much software as the operation itself.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, get_args

from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.json_form import Keywords
from testbed.core.prediction.library_costs import GLOO, LibraryCosts
from testbed.core.prediction.simulator import Cost
from testbed.core.records.check_record import CheckLog
from testbed.core.records.operation_record import Done, Tag
from testbed.core.training.exchange import Exchange
from testbed.core.training.strategy_operation import Kind, Operation
from testbed.core.training.twin import Twin

__all__ = ["OperationTime", "Size", "operation_times", "operations_by_tag"]

_NO_WAITING = ("barrier", "sum")
"""Of the job's beginning, and additions in the rank's own memory."""
_HALVINGS = 30
"""Of the interval in which the software of an operation is looked for."""
_MOST = 400
"""Operations of a size that are looked at, evenly over the run."""


NotNegative = Annotated[float, Keywords(minimum=0)]


class Size(NamedTuple):
    """Operations that cost the same: of one kind, with so many ranks and bytes."""

    kind: str
    ranks: int
    byte_count: int


@dataclass(frozen=True)
class OperationTime:
    """Medians of the operations of one size, in seconds.

    Attributes:
        count: how many there were.
        slot_s: from when the last rank began until the library had a slot.
        took_s: from then on, of which the parts are:
        propagation_s: of its rounds, less what the lane hides; serialization_s: of its bytes.
        queueing_s: lanes and cores served other operations of the job; tcp_s: slow start; software_s: the rest.
    """

    size: Size
    """Operations of one size cost the same."""
    count: int
    slot_s: NotNegative
    took_s: NotNegative
    propagation_s: NotNegative
    serialization_s: NotNegative
    """Of its bytes over the certified payload rate."""
    queueing_s: NotNegative
    tcp_s: NotNegative
    """Slow start after idling."""
    software_s: NotNegative
    """The rest."""


@dataclass(eq=False)
class _Service:
    """An operation, and the others in service meanwhile: the sum of their shares, and what its lanes sent of them.

    ``delay_s``: of one round.
    """

    size: Size
    cost: Cost
    delay_s: float
    arrived_t: float
    ended_t: float
    begins_t: float = 0.0
    tcp_s: float = 0.0
    neighbours: float = 0.0
    lanes_s: float = 0.0

    @property
    def took_s(self) -> float:
        return self.ended_t - self.begins_t

    @property
    def serialization_s(self) -> float:
        return min(self.took_s, max(self.cost.lanes.values(), default=0.0))

    def propagation_s(self, software_s: float) -> float:
        """Return the delays during which it is neither sent nor worked for."""
        hidden_s = GLOO.hidden_s(*self.size, self.serialization_s + software_s, self.delay_s)
        return min(self.took_s - self.serialization_s, max(0.0, self.cost.propagation_s - hidden_s))

    def queueing_s(self, software_s: float) -> float:
        """Return for how long it waits for lanes and cores."""
        own_s, others_s = self.serialization_s + software_s, self.lanes_s + self.neighbours * software_s
        return others_s * own_s / (own_s + self.propagation_s(software_s)) if own_s else 0.0

    def software_s(self) -> float:
        """Return the software by which its parts add up to what it took; 0 if they exceed it without any."""
        low_s, high_s = 0.0, self.took_s
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            parts_s = self.propagation_s(middle_s) + self.queueing_s(middle_s) + middle_s
            if self.serialization_s + self.tcp_s + parts_s > self.took_s:
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s

    def meets(self, other: _Service) -> None:
        """Count the time that both are in service."""
        together_s = min(self.ended_t, other.ended_t) - max(self.begins_t, other.begins_t)
        for one, two in ((self, other), (other, self)):
            if two.took_s > 0:
                share = together_s / two.took_s
                shared_s = (seconds for lane, seconds in two.cost.lanes.items() if lane in one.cost.lanes)
                one.neighbours += share
                one.lanes_s += share * max(shared_s, default=0.0)


def operations_by_tag(checks: Iterable[CheckLog]) -> Mapping[Tag, Mapping[int, Done]]:
    """Return the operations of all steps by rank, but those that no step waits for across a fiber.

    Empty for runs of former versions, whose records name no groups.
    """
    by_tag: defaultdict[Tag, dict[int, Done]] = defaultdict(dict)
    for log in checks:
        for step in log.steps:
            for tag, done in step.operations:
                if tag.group and done.kind not in _NO_WAITING:
                    by_tag[tag][log.rank] = done
    return by_tag


def operation_times(checks: Sequence[CheckLog], twin: Twin, fiber: FiberModel) -> tuple[OperationTime, ...]:
    """Return the operations that cross a fiber, by size, those that took longest in all first.

    () for runs of former versions, whose records name no groups.
    """
    costs, sites = replace(fiber.costs(twin.layout), slow_start=fiber.slow_after_idle), twin.layout.sites
    costs_of_kinds: dict[tuple[str, tuple[int, ...], int], Cost] = {}
    by_connection: defaultdict[tuple[object, ...], list[tuple[int, _Service]]] = defaultdict(list)
    for tag, done in operations_by_tag(checks).items():
        if not all(operation.ended for operation in done.values()):
            continue
        members, first = tag.channel[:2] if tag.channel else tag.ranks, next(iter(done.values()))
        kind = "send" if tag.channel else first.kind
        if kind not in get_args(Kind) or any(rank >= len(sites) for rank in members):
            continue
        if len({sites[rank] for rank in members}) < 2:
            continue
        of = (kind, members, first.byte_count)
        if of not in costs_of_kinds:
            costs_of_kinds[of] = _cost(costs, *of)
        service = _Service(
            Size(kind, len(members), first.byte_count),
            costs_of_kinds[of],
            fiber.delay_s,
            max(operation.began_t for operation in done.values()),
            max(operation.ended_t or 0.0 for operation in done.values()),
        )
        by_connection[tag.attempt, tag.group, members, bool(tag.channel)].append((tag.sequence, service))
    for (*_, message), services in by_connection.items():
        if message:  # each tag has numbers of its own
            _slots(sorted((service for _, service in services), key=lambda service: service.arrived_t), None)
        else:
            _slots([service for _, service in sorted(services, key=lambda service: service[0])], GLOO.slots)
    every = sorted(
        (service for services in by_connection.values() for _, service in services),
        key=lambda service: service.begins_t,
    )
    under_way: list[_Service] = []
    for service in every:
        under_way = [earlier for earlier in under_way if earlier.ended_t > service.begins_t]
        for other in under_way:
            service.meets(other)
        under_way.append(service)
    return _by_size(every)


def _cost(costs: LibraryCosts, kind: str, ranks: tuple[int, ...], byte_count: int) -> Cost:
    of: Kind = kind  # type: ignore[assignment]  # of an operation
    sites = tuple(dict.fromkeys(costs.layout.sites[records] for records in ranks))
    exchange = Exchange((Operation(of, ranks, float(byte_count), ""),), sites)
    cost = costs.of(exchange)
    return replace(cost, lanes=costs.lanes(exchange))  # also where messages of other slots are sent between its own


def _slots(services: Sequence[_Service], slots: int | None) -> None:
    """Set when each of a group's operations, in their order, begins: in the slot that is free first."""
    free = [-math.inf] * (slots or 0)
    last_t = -math.inf
    for service in services:
        service.begins_t = service.arrived_t
        if free:
            service.begins_t = min(service.ended_t, max(service.arrived_t, free[0]))
            free = sorted([*free[1:], service.ended_t])
        service.tcp_s = service.cost.cold_s if service.begins_t - last_t > service.cost.cold_after_s else 0.0
        last_t = max(last_t, service.ended_t)


def _by_size(services: Iterable[_Service]) -> tuple[OperationTime, ...]:
    by_size: defaultdict[Size, list[_Service]] = defaultdict(list)
    for service in services:
        by_size[service.size].append(service)
    times = []
    for size, all_of in by_size.items():
        of = all_of[:: math.ceil(len(all_of) / _MOST)]
        software_s = statistics.median(service.software_s() for service in of)
        times.append(
            OperationTime(
                size,
                len(all_of),
                statistics.median(service.begins_t - service.arrived_t for service in of),
                statistics.median(service.took_s for service in of),
                statistics.median(service.propagation_s(software_s) for service in of),
                statistics.median(service.serialization_s for service in of),
                statistics.median(service.queueing_s(software_s) for service in of),
                statistics.median(service.tcp_s for service in of),
                software_s,
            )
        )
    return tuple(sorted(times, key=lambda time: -time.count * time.took_s))
