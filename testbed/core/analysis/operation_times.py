"""What operations between sites took in a run, in parts, from the records of its ranks. Pure.

An operation is in service from when its last rank began it and the library had a slot for it, until its last rank ended
it. Its rounds and its bytes over the certified fiber are known, and so is slow start after idling. What is left is the
library's software, and queueing: lanes send others of the job, and cores work for them. Others are served while its own
messages travel, so they delay it by the share of its service in which it is served itself. Of an operation that sends
and computes for W seconds and travels for P, whose neighbours need V seconds meanwhile: took = P + W + V W / (W + P).
In a ring messages travel while others are sent, so P is less the greater W is. Software found by this does not depend
on the distance.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from testbed.core.analysis.fiber_model import FiberModel
from testbed.core.prediction.library_costs import GLOO, LibraryCosts
from testbed.core.prediction.simulator import Cost
from testbed.core.records.check_record import CheckLog
from testbed.core.records.operation_record import Done, Tag
from testbed.core.training.exchange import Exchange
from testbed.core.training.strategy_operation import Kind, Operation
from testbed.core.training.twin import Twin

__all__ = ["OperationTime", "Size", "operation_times"]

_NO_OPERATION = ("barrier", "sum")
_ROUNDS = 20
"""Of the search for the software of all sizes, each of which halves the error."""
_MOST = 400
"""Operations of a size that are looked at, evenly over the run."""


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
    count: int
    slot_s: float
    took_s: float
    propagation_s: float
    serialization_s: float
    queueing_s: float
    tcp_s: float
    software_s: float


@dataclass(eq=False)
class _Service:
    """An operation. ``beside``: others in service meanwhile, and which share of theirs that is."""

    size: Size
    cost: Cost
    rounds: float
    arrived_t: float
    ended_t: float
    begins_t: float = 0.0
    tcp_s: float = 0.0
    beside: list[tuple[_Service, float]] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        return self.ended_t - self.begins_t

    @property
    def serialization_s(self) -> float:
        return max(self.cost.lanes.values(), default=0.0)

    def propagation_s(self, software_s: Mapping[Size, float]) -> float:
        """Return the delays during which it is neither sent nor worked for."""
        own_s, hop_s = self.serialization_s + software_s[self.size], self.cost.propagation_s / max(1.0, self.rounds)
        return min(self.took_s, max(0.0, self.cost.propagation_s - GLOO.hidden_s(*self.size, own_s, hop_s)))

    def left_s(self, software_s: Mapping[Size, float]) -> float:
        """Return what none of the other parts explains."""
        others_s = self.propagation_s(software_s) + self.queueing_s(software_s) + self.tcp_s
        return self.took_s - self.serialization_s - others_s

    def meets(self, other: _Service) -> None:
        together_s = min(self.ended_t, other.ended_t) - max(self.begins_t, other.begins_t)
        for one, two in ((self, other), (other, self)):
            if two.took_s > 0:
                one.beside.append((two, together_s / two.took_s))

    def queueing_s(self, software_s: Mapping[Size, float]) -> float:
        """Return for how long it waits for lanes and cores, by the software of each size."""
        others_s = sum(share * (self._on_my_lanes_s(other) + software_s[other.size]) for other, share in self.beside)
        own_s = self.serialization_s + software_s[self.size]
        return others_s * own_s / (own_s + self.propagation_s(software_s)) if own_s else 0.0

    def _on_my_lanes_s(self, other: _Service) -> float:
        return max((seconds for lane, seconds in other.cost.lanes.items() if lane in self.cost.lanes), default=0.0)


def operation_times(checks: Sequence[CheckLog], twin: Twin, fiber: FiberModel) -> tuple[OperationTime, ...]:
    """Return the operations that cross a fiber, by size, those that took longest in all first.

    () for runs of former versions, whose records name no groups.
    """
    costs = replace(fiber.costs(twin.layout), slow_start=fiber.slow_after_idle)
    known: dict[tuple[str, tuple[int, ...], int], Cost] = {}
    by_group: defaultdict[tuple[object, ...], list[tuple[int, _Service]]] = defaultdict(list)
    for tag, done in _ended(checks).items():
        members, first = _members(tag), next(iter(done.values()))
        kind = "send" if tag.channel else first.kind
        if len({twin.layout.sites[it] for it in members if it < len(twin.layout.sites)}) < 2:
            continue
        of = (kind, members, first.byte_count)
        if of not in known:
            known[of] = _cost(costs, *of)
        service = _Service(
            Size(kind, len(members), first.byte_count),
            known[of],
            GLOO.rounds(kind, len(members), first.byte_count),
            max(it.began_t for it in done.values()),
            max(it.ended_t or 0.0 for it in done.values()),
        )
        by_group[tag.attempt, tag.group, tag.channel].append((tag.sequence, service))
    for (_, _, channel), services in by_group.items():
        _slots([it for _, it in sorted(services, key=lambda it: it[0])], None if channel else GLOO.slots)
    every = sorted((it for services in by_group.values() for _, it in services), key=lambda it: it.begins_t)
    under_way: list[_Service] = []
    for service in every:
        under_way = [it for it in under_way if it.ended_t > service.begins_t]
        for other in under_way:
            service.meets(other)
        under_way.append(service)
    return _by_size(every)


def _ended(checks: Iterable[CheckLog]) -> Mapping[Tag, Mapping[int, Done]]:
    """Return the operations by rank that all ranks that recorded them ended."""
    found: defaultdict[Tag, dict[int, Done]] = defaultdict(dict)
    for log in checks:
        for step in log.steps:
            for tag, done in step.operations:
                if tag.group and done.kind not in _NO_OPERATION:
                    found[tag][log.rank] = done
    return {tag: ranks for tag, ranks in found.items() if all(it.ended for it in ranks.values())}


def _members(tag: Tag) -> tuple[int, ...]:
    return tag.channel[:2] if tag.channel else tag.ranks


def _cost(costs: LibraryCosts, kind: str, ranks: tuple[int, ...], byte_count: int) -> Cost:
    of: Kind = kind  # type: ignore[assignment]  # of an operation
    sites = tuple(dict.fromkeys(costs.layout.sites[it] for it in ranks))
    exchange = Exchange((Operation(of, ranks, float(byte_count), ""),), sites)
    cost = costs.of(exchange)
    return replace(cost, lanes=costs.lanes(exchange))  # also where messages of other slots are sent between its own


def _slots(services: Sequence[_Service], slots: int | None) -> None:
    """Set when each of a group's operations, in their order, begins: in the slot that is free first."""
    free = [-math.inf] * (slots or 0)
    last_t = -math.inf
    for it in services:
        it.begins_t = it.arrived_t
        if free:
            it.begins_t = min(it.ended_t, max(it.arrived_t, free[0]))
            free = sorted([*free[1:], it.ended_t])
        it.tcp_s = it.cost.cold_s if it.begins_t - last_t > it.cost.cold_after_s else 0.0
        last_t = max(last_t, it.ended_t)


def _by_size(services: Iterable[_Service]) -> tuple[OperationTime, ...]:
    by_size: dict[Size, list[_Service]] = defaultdict(list)
    for it in services:
        by_size[it.size].append(it)
    counts = {size: len(of) for size, of in by_size.items()}
    by_size = {size: of[:: math.ceil(len(of) / _MOST)] for size, of in by_size.items()}
    software_s = dict.fromkeys(by_size, 0.0)
    for _ in range(_ROUNDS):
        for size, of in by_size.items():
            left_s = statistics.median(it.left_s(software_s) for it in of)
            # Halfway: more software of all means more queueing behind it.
            software_s[size] = max(0.0, (software_s[size] + left_s) / 2)
    found = [
        OperationTime(
            size,
            counts[size],
            statistics.median(it.begins_t - it.arrived_t for it in of),
            statistics.median(it.took_s for it in of),
            statistics.median(it.propagation_s(software_s) for it in of),
            statistics.median(it.serialization_s for it in of),
            statistics.median(it.queueing_s(software_s) for it in of),
            statistics.median(it.tcp_s for it in of),
            software_s[size],
        )
        for size, of in by_size.items()
    ]
    return tuple(sorted(found, key=lambda it: -it.count * it.took_s))
