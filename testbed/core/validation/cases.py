"""The catalogue of operations that measure correctness and speed of a library.

(suite, sites of the ranks, seed) determines everything, so that a run can be repeated. The correctness cases do not
depend on what a library offers: the caller drops those that :func:`not_offered` names.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from testbed.core.validation.elements import TYPES
from testbed.core.validation.operation import BARRIER, OPERATIONS, REDUCING, Group, Operation, OperationName, Reduction

__all__ = [
    "FIRST_FAULT_CALL",
    "FIRST_SPEED_CALL",
    "Case",
    "Series",
    "Suite",
    "correctness",
    "groups",
    "not_offered",
    "performance",
    "preferred",
]

Suite = Literal["quick", "full"]

WORLD: Final = "world"
ACROSS: Final = "first of each site"

FIRST_CASE_CALL: Final = 1
FIRST_SPEED_CALL: Final = 100_000
FIRST_FAULT_CALL: Final = 200_000
"""Call numbers are never used twice in a run; those from FIRST_FAULT_CALL on belong to ``fault_matrix.py``."""

_SMALL: Final[Mapping[Suite, tuple[int, ...]]] = {
    "quick": (0, 1, 3, 1023),
    "full": (0, 1, 2, 3, 5, 7, 16, 17, 255, 256, 257, 1023, 4097),
}
"""Elements; with every type and every reduction. Odd counts are no multiple of the number of ranks, a segment or a
packet; around 256 and 1024 libraries change their algorithm or reach the end of a buffer."""

_MIDDLE: Final[Mapping[Suite, tuple[int, ...]]] = {"quick": (65_537,), "full": (65_537, 1_048_573)}
"""Elements; with every type."""

_LARGE: Final[Mapping[Suite, tuple[tuple[str, int], ...]]] = {
    "quick": (("float32", 4 << 20),),
    "full": (("float32", 16 << 20), ("float64", 32 << 20), ("int64", 64 << 20)),
}
"""(type, approximate n in bytes): streams that fill every buffer on the path. Fourfold for all_reduce in quick."""

_OF_GROUPS: Final[Mapping[Suite, tuple[int, ...]]] = {"quick": (1, 1023), "full": (0, 1, 7, 1023, 65_537)}
_TYPES_OF_GROUPS: Final = ("int32", "float32")

_MIB: Final = 1 << 20
_SPEEDS: Final[Mapping[Suite, tuple[tuple[int, int], ...]]] = {
    "quick": ((8, 15), (64 << 10, 9), (_MIB, 7), (16 * _MIB, 6)),
    "full": (
        *((size, 25) for size in (8, 64, 512, 4 << 10, 32 << 10)),
        *((size, 15) for size in (128 << 10, 512 << 10, 2 * _MIB)),
        *((size, 9) for size in (8 * _MIB, 32 * _MIB, 128 * _MIB)),
    ),
}
"""(n in bytes, repeats that count). Six is the least number that gives a median an interval of 95 %."""


@dataclass(frozen=True)
class Case:
    """Operations that start together, on groups that have no rank in common."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Series:
    """One operation at one size, repeated; the first ``warm_up`` of ``calls`` do not count."""

    do: OperationName
    size: int
    """n of docs/bounds.md in bytes: the actual value, close to the requested size."""
    calls: tuple[Operation, ...]
    warm_up: int = 1


def groups(sites: Sequence[str]) -> tuple[Group, ...]:
    """Return all groups of the catalogue, ``world`` first; ``sites`` is the site of every rank in order.

    One group for each site, named after the site (``at east``), and one of the first rank of each site, unless that is
    the world or a single rank.
    """
    by_site: dict[str, list[int]] = {}
    for rank, site in enumerate(sites):
        by_site.setdefault(site, []).append(rank)
    rank_groups = [Group(WORLD, tuple(range(len(sites))))]
    rank_groups += [Group(f"at {site}", tuple(ranks)) for site, ranks in by_site.items()]
    if 1 < len(by_site) < len(sites):
        rank_groups.append(Group(ACROSS, tuple(ranks[0] for ranks in by_site.values())))
    return tuple(rank_groups)


def not_offered(operation: Operation, offers: Mapping[str, Any]) -> str:
    """Return why ``operation`` is left out for a library with these ``offers`` (answer to ``join``), or ""."""
    offer = offers.get(operation.do)
    if not isinstance(offer, Mapping):
        return f"the library does not offer {operation.do}"
    if operation.group != WORLD and not offers.get("groups"):
        return "the library does not offer groups"
    if operation.do != BARRIER and operation.type not in offer.get("types", ()):
        return f"its {operation.do} does not offer {operation.type}"
    if operation.do in REDUCING and operation.reduction not in offer.get("reductions", ()):
        return f"its {operation.do} does not offer {operation.reduction}"
    return ""


def correctness(suite: Suite, sites: Sequence[str], seed: int = 0) -> tuple[Case, ...]:
    """Return all correctness cases; those of an operation begin with the small ones."""
    made = _Maker(seed, FIRST_CASE_CALL)
    world, *others = groups(sites)
    of_sites = [group for group in others if group.name != ACROSS]
    cases: list[Case] = []
    for do in OPERATIONS:
        if do == BARRIER:
            cases += _barriers(made, [world], of_sites, [group for group in others if group.name == ACROSS])
            continue
        for kind, count, reduction in _kinds(do, suite, len(world.ranks)):
            cases.append(Case((made.operation(do, world, kind, count, reduction),)))
        summed: Reduction = "sum" if do in REDUCING else ""
        for kind, count in itertools.product(_TYPES_OF_GROUPS, _OF_GROUPS[suite]):
            for together in (of_sites, [group for group in others if group.name == ACROSS]):
                operations = tuple(
                    made.operation(do, group, kind, count, summed)
                    for group in together
                    if do != "send" or len(group.ranks) > 1
                )
                cases += [Case(operations)] if operations else []
    return tuple(cases)


def performance(suite: Suite, sites: Sequence[str], offers: Mapping[str, Any], seed: int = 0) -> tuple[Series, ...]:
    """Return a series for every operation that the library ``offers`` at every size, small first; one for ``barrier``.

    The type is float32 where the library has it. ``send`` is from the first rank of the world to the last;
    ``broadcast`` and ``reduce`` have rank 0 as their root.
    """
    made = _Maker(seed, FIRST_SPEED_CALL)
    series: list[Series] = []
    for do in OPERATIONS:
        chosen = preferred(do, offers)
        if chosen is None or (do == "send" and len(sites) < 2):
            continue
        kind, reduction = chosen
        before = -1
        for wanted, repeats in _SPEEDS[suite] if do != BARRIER else _SPEEDS[suite][:1]:
            count = 0 if do == BARRIER else _count(do, kind, wanted, len(sites))
            template = Operation(do, 0, WORLD, kind, count, reduction, 0, len(sites) - 1, seed, keep=False)
            size = template.size_bytes(len(sites))
            if size == before:
                continue  # with many ranks the smallest sizes coincide
            before = size
            calls = tuple(dataclasses.replace(template, call=made.call()) for _ in range(repeats + 1))
            series.append(Series(do, size, calls))
    return tuple(series)


def preferred(
    do: OperationName, offers: Mapping[str, Any], types: Sequence[str] = ("float32",)
) -> tuple[str, Reduction] | None:
    """Return the (type, reduction) to request: the first of ``types`` and ``sum`` if the library ``offers`` them.

    None if it offers no usable type or reduction of the operation.
    """
    offer = offers.get(do)
    if not isinstance(offer, Mapping):
        return None
    if do == BARRIER:
        return "int32", ""
    kind = next((candidate for candidate in (*types, *TYPES) if candidate in offer.get("types", ())), None)
    if kind is None or do not in REDUCING:
        return None if kind is None else (kind, "")
    reductions: tuple[Reduction, ...] = ("sum", "max", "avg")
    reduction = next((candidate for candidate in reductions if candidate in offer.get("reductions", ())), None)
    if reduction is None or (reduction == "avg" and TYPES[kind].is_integer):
        return None
    return kind, reduction


def _barriers(made: _Maker, *together: Sequence[Group]) -> Iterator[Case]:
    """Barriers in which each rank arrives last in turn, to catch one that waits for some ranks only."""
    for groups_ in together:
        for late in range(max((len(group.ranks) for group in groups_), default=0)):
            operations = (
                made.operation(BARRIER, group, "int32", 0, "") for group in groups_ if late < len(group.ranks)
            )
            yield Case(tuple(dataclasses.replace(operation, late=late) for operation in operations))


def _kinds(do: OperationName, suite: Suite, world: int) -> Iterator[tuple[str, int, Reduction]]:
    """(type, count, reduction) of all cases of an operation on the world."""
    if do == "send" and world < 2:
        return
    reductions: tuple[Reduction, ...] = ("sum", "max", "avg") if do in REDUCING else ("",)
    for kind, reduction, count in itertools.product(TYPES, reductions, _SMALL[suite]):
        if reduction != "avg" or not TYPES[kind].is_integer:
            yield kind, count, reduction
    for kind, count in itertools.product(TYPES, _MIDDLE[suite]):
        yield kind, _count(do, kind, count * TYPES[kind].size, world), reductions[0]
    for kind, size in _LARGE[suite]:
        much = size * 4 if (suite, do) == ("quick", "all_reduce") else size
        yield kind, _count(do, kind, much, world) - 3, reductions[0]


def _count(do: OperationName, kind: str, size: int, world: int) -> int:
    """Return the number of elements (of a block, where there are blocks) for which n is about ``size``; at least 1."""
    blocks = world if do in ("reduce_scatter", "all_gather", "all_to_all") else 1
    return max(1, size // (TYPES[kind].size * blocks))


class _Maker:
    """Makes operations with unique call numbers and varying roots."""

    def __init__(self, seed: int, first_call: int) -> None:
        self._calls = itertools.count(first_call)
        self._random = random.Random(seed)
        self._seed = seed

    def call(self) -> int:
        return next(self._calls)

    def operation(self, do: OperationName, group: Group, kind: str, count: int, reduction: Reduction) -> Operation:
        world = len(group.ranks)
        root = self._random.randrange(world)
        to = (root + self._random.randrange(1, world)) % world if world > 1 else root
        return Operation(do, self.call(), group.name, kind, count, reduction, root, to, self._seed)
