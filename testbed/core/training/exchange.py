"""Exchanges: operations of a strategy that its groups of ranks do together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from testbed.core.training.strategy_operation import Operation

__all__ = ["Exchange", "at_once", "exchanges", "times"]

_ALIKE = 1.05
"""Sizes of equal operations of different groups, at most, relative to each other."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Equal operations that groups of ranks do at the same time.

    Attributes:
        operations: of all groups; none for what stays within a rank.
        sites: that take part; it starts when all of them have begun it.
        times: so often, one after the other.
        parts: of how many equal parts this is one.
        computes: without operations, what a rank computes after its inner optimizer: kind of each operation that
            follows, and whether it lands in a later step.
        slots: how many of these a site does at once, if fewer than the library allows.
    """

    operations: tuple[Operation, ...]
    sites: tuple[str, ...]
    times: int = 1
    parts: int = 1
    slots: int | None = None
    computes: tuple[tuple[str, bool], ...] = ()

    @property
    def first(self) -> Operation:
        return self.operations[0]

    @property
    def crosses(self) -> bool:
        return len(self.sites) > 1

    @cached_property
    def likeness(self) -> Hashable:
        """What its costs depend on: exchanges that are alike differ by name only."""
        operations = Counter(
            (operation.kind, operation.ranks, operation.byte_count, operation.parts > 0)
            for operation in self.operations
        )
        return tuple(operations.items()), self.sites, self.times, self.parts, self.slots, self.computes

    @cached_property
    def byte_count(self) -> float:
        """Of one part of the largest operation."""
        return max(operation.byte_count for operation in self.operations) / self.parts


def exchanges(operations: Iterable[Operation], sites: Sequence[str]) -> tuple[Exchange, ...]:
    """Return the exchanges of a step in the order in which its ranks do them.

    Equal operations of different groups are done at the same time, unless a rank is in two of the groups: a rank does
    one after the other. Sites that no group connects do theirs independently.

    Args:
        sites: the site of each rank.
    """
    return tuple(exchange for together in _together(operations) for exchange in together.connected(sites))


def at_once(operations: Iterable[Operation]) -> list[tuple[Operation, ...]]:
    """Return the operations that are done at the same time, by equal ones, those of independent sites together."""
    return [tuple(together.operations) for together in _together(operations)]


def _together(operations: Iterable[Operation]) -> list[_Together]:
    alike: dict[tuple[object, ...], list[_Together]] = {}
    groups: list[_Together] = []
    for operation in operations:
        if len(operation.ranks) < 2 or operation.byte_count <= 0:
            continue
        same = alike.setdefault(_likeness(operation), [])
        if not (same and same[-1].add(operation)):
            same.append(_Together(operation))
            groups.append(same[-1])
    return groups


class _Together:
    """Equal operations that are done at the same time."""

    def __init__(self, first: Operation) -> None:
        self.operations = [first]
        self._groups = dict.fromkeys(first.ranks, first.group)

    def add(self, operation: Operation) -> bool:
        """Add ``operation``; return False if one of its ranks is in another group, or if it has another size.

        Slices are of about the same size, also where their codes are not.
        """
        if any(self._groups.get(rank, operation.group) != operation.group for rank in operation.ranks):
            return False
        small, large = sorted((operation.byte_count, self.operations[0].byte_count))
        if large > _ALIKE * small or (small < large and any(rank in self._groups for rank in operation.ranks)):
            return False
        self.operations.append(operation)
        self._groups.update(dict.fromkeys(operation.ranks, operation.group))
        return True

    def connected(self, sites: Sequence[str]) -> list[Exchange]:
        """Return an exchange of each set of sites that a group connects."""
        sets: list[tuple[set[str], list[Operation]]] = []
        for operation in self.operations:
            names, own = {sites[rank] for rank in operation.ranks}, [operation]
            for other in [other for other in sets if other[0] & names]:
                names, own = names | other[0], other[1] + own
                sets.remove(other)
            sets.append((names, own))
        order = tuple(dict.fromkeys(sites))
        return [Exchange(tuple(own), tuple(name for name in order if name in names), times(own)) for names, own in sets]


def _likeness(operation: Operation) -> tuple[object, ...]:
    return (
        operation.kind, operation.what, operation.fragment, operation.lands, operation.parts, operation.turn,
        operation.watched,
    )  # fmt: skip


def times(operations: Sequence[Operation]) -> int:
    """Return how often a group does one of ``operations``, which are equal."""
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    for operation in operations:
        counts[operation.group, operation.ranks] = counts.get((operation.group, operation.ranks), 0) + 1
    return max(counts.values())
