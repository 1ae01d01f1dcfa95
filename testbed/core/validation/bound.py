"""Lower bound on the time of an operation over given fibers, and the figures that are compared with it.

docs/bounds.md has the derivation and the assumptions. In short: an element is an atom (nothing is compressed), sums are
made at sites, time begins with the common start. Consider bytes that must travel from a site s to a site t, and any set
of sites A that holds s and not t. Every byte crosses some fiber i out of A, no sooner than dist(s, tail of i) after the
start and no later than delay(i) + dist(head of i, t) before the end. So at most

    sum over i of rate(i) * max(0, T - dist(s, tail i) - delay(i) - dist(head i, t))

bytes arrive within T, and T is at least the time at which this reaches the bytes that must cross.
For one fiber: d + n/B.

nccl-tests' bandwidths: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from testbed.core.validation.fibers import Fiber, distances
from testbed.core.validation.operation import BARRIER, OperationName

__all__ = [
    "MOST_CUTS",
    "Interval",
    "Placed",
    "algorithm_rate",
    "bound_s",
    "bus_rate",
    "latency_s",
    "median_interval",
    "median_uncertainty_s",
]

MOST_CUTS: Final = 8
"""Largest number of sites for which every set of sites is considered as one side of a cut (2**8), and every pair of
sites across it. With more sites the sets are each site with its 1, 2, … nearest sites, and the pair is the farthest."""


@dataclass(frozen=True)
class Placed:
    """An operation of ``size`` bytes (n) and the sites of the ranks of its group, in order.

    ``root`` and ``to`` are rank numbers in the group, for operations that have them.
    """

    do: OperationName
    size: int
    sites: tuple[str, ...]
    root: int = 0
    to: int = 0

    @cached_property
    def ranks_at(self) -> dict[str, int]:
        """Number of ranks at each site, ordered by first rank."""
        return {site: self.sites.count(site) for site in dict.fromkeys(self.sites)}

    def must_move(self, tail: str, head: str) -> float:
        """Least number of bytes that ``head`` must receive because its result depends on data only ``tail`` had."""
        return self.must_cross({tail}, {head})

    def must_cross(self, tails: Iterable[str], heads: Iterable[str]) -> float:
        """Return the least number of bytes that must travel from the sites ``tails``, taken together, to ``heads``.

        Data may be reduced within ``tails`` before it is sent, and passed on within ``heads`` after it arrived.
        """
        world, ranks = len(self.sites), self.ranks_at
        here, there = (sum(ranks.get(site, 0) for site in set(some)) for some in (tails, heads))
        if not here or not there or not world:
            return 0.0
        match self.do:
            case "all_reduce":
                return float(self.size)
            case "reduce_scatter":
                return self.size * there / world
            case "all_gather":
                return self.size * here / world
            case "all_to_all":
                return self.size * here * there / world
            case "broadcast":
                return float(self.size) if self.sites[self.root] in set(tails) else 0.0
            case "reduce":
                return float(self.size) if self.sites[self.root] in set(heads) else 0.0
            case "send":
                crosses = self.sites[self.root] in set(tails) and self.sites[self.to] in set(heads)
                return float(self.size) if crosses else 0.0
            case "barrier":
                return 0.0

    @property
    def volume(self) -> float:
        """Least number of bytes that must leave one site for another, summed over all sites."""
        ranks, size = self.ranks_at, float(self.size)
        sites = len(ranks)
        match self.do:
            case "all_reduce":
                return 2 * (sites - 1) * size
            case "reduce_scatter" | "all_gather" | "broadcast" | "reduce":
                return (sites - 1) * size
            case "all_to_all":
                crossing = sum(a * b for (_, a), (_, b) in itertools.permutations(ranks.items(), 2))
                return size * crossing / len(self.sites)
            case "send":
                return size if self.sites[self.root] != self.sites[self.to] else 0.0
            case "barrier":
                return 0.0


def bound_s(placed: Placed, every: Sequence[Fiber]) -> float:
    """Return the least time of the operation over these fibers, in seconds; 0 where nothing must cross a fiber.

    Infinite where something must cross and no fiber connects the sites.
    """
    dist = distances(every)
    members = tuple(placed.ranks_at)
    pairs = [pair for pair in itertools.permutations(members, 2) if _depends(placed, *pair)]
    if any(head not in dist.get(tail, {}) for tail, head in pairs):
        return math.inf
    least = max((dist[tail][head] for tail, head in pairs), default=0.0)
    if len(dist) > MOST_CUTS and pairs:
        pairs = [max(pairs, key=lambda pair: dist[pair[0]][pair[1]])]
    for inside, crossing in _cuts(tuple(every), members):
        heads = [site for site in members if site not in inside]
        must = placed.must_cross([site for site in members if site in inside], heads)
        least = max(least, _fill(must, [(fiber.rate, fiber.delay_s) for fiber in crossing]))
        for tail, head in pairs:
            if tail in inside and head not in inside:
                windows = [(window.rate, _sum(dist, tail, window, head)) for window in crossing]
                least = max(least, _fill(placed.must_move(tail, head), windows))
    leaving = [(fiber.rate, fiber.delay_s) for fiber in every if fiber.tail in members]
    return max(least, _fill(placed.volume, leaving))


def latency_s(placed: Placed, every: Sequence[Fiber]) -> float:
    """Return d: the largest one-way delay between two sites of which one depends on the other."""
    dist = distances(every)
    pairs = [pair for pair in itertools.permutations(placed.ranks_at, 2) if _depends(placed, *pair)]
    return max((dist.get(tail, {}).get(head, math.inf) for tail, head in pairs), default=0.0)


def algorithm_rate(placed: Placed, time_s: float) -> float:
    """nccl-tests' algorithm bandwidth, n / t, in byte/s."""
    return placed.size / time_s if time_s > 0 else 0.0


def bus_rate(placed: Placed, time_s: float) -> float:
    """nccl-tests' bus bandwidth in byte/s: comparable with the rate of a link, whatever the number of ranks."""
    world = len(placed.sites)
    factors: Mapping[OperationName, float] = {
        "all_reduce": 2 * (world - 1) / world,
        "reduce_scatter": (world - 1) / world,
        "all_gather": (world - 1) / world,
        "all_to_all": (world - 1) / world,
    }
    return algorithm_rate(placed, time_s) * factors.get(placed.do, 1.0)


@dataclass(frozen=True)
class Interval:
    """A median and an interval that holds the true median in at least 95 of 100 cases, whatever the distribution."""

    low: float
    median: float
    high: float


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median of at least one value, and its interval by order statistics.

    The number of values below the true median is binomial with 1/2: the k-th smallest and the k-th largest of n hold it
    between them with probability 1 - 2 P(fewer than k are below) (David and Nagaraja, Order Statistics, 3rd edition,
    2003, section 7.1). With fewer than six values no interval reaches 95 %; the interval is then the full range.
    """
    ordered = sorted(values)
    count = len(ordered)
    within, k = 0.0, 0  # the probability that at most k - 1 of them are below
    while k < (count + 1) // 2:
        next_within = within + math.comb(count, k) / 2**count
        if 2 * next_within > 1 - confidence:
            break
        within, k = next_within, k + 1
    middle = count // 2
    median = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Interval(ordered[max(k, 1) - 1], median, ordered[count - max(k, 1)])


def _depends(placed: Placed, tail: str, head: str) -> bool:
    """Whether a result at ``head`` depends on ``tail``; true also where no byte must travel, as in a barrier."""
    return placed.do == BARRIER or placed.must_move(tail, head) > 0


def _sum(dist: Mapping[str, Mapping[str, float]], tail: str, fiber: Fiber, head: str) -> float:
    """Return the least delay from ``tail`` to ``head`` over this fiber."""
    before = dist.get(tail, {}).get(fiber.tail, math.inf)
    after = dist.get(fiber.head, {}).get(head, math.inf)
    return before + fiber.delay_s + after


def _fill(volume: float, pipes: Sequence[tuple[float, float]]) -> float:
    """Return the least T at which pipes of (rate, delay) carried ``volume`` bytes: sum rate * max(0, T - delay)."""
    if volume <= 0:
        return 0.0
    open_rate, opened = 0.0, 0.0
    usable = sorted((pipe for pipe in pipes if pipe[0] > 0 and math.isfinite(pipe[1])), key=lambda pipe: pipe[1])
    for place, (rate, delay_s) in enumerate(usable):
        open_rate += rate
        opened += rate * delay_s
        time_s = (volume + opened) / open_rate
        if place + 1 == len(usable) or time_s <= usable[place + 1][1]:
            return time_s
    return math.inf


@lru_cache(maxsize=4)
def _cuts(every: tuple[Fiber, ...], members: tuple[str, ...]) -> tuple[tuple[frozenset[str], tuple[Fiber, ...]], ...]:
    """Sets of sites that are one side of a cut, with members on both sides; each with the fibers out of it."""
    sites = sorted({site for fiber in every for site in (fiber.tail, fiber.head)} | set(members))
    chosen: Iterable[Sequence[str]]
    if len(sites) <= MOST_CUTS:
        chosen = itertools.chain.from_iterable(itertools.combinations(sites, size) for size in range(1, len(sites)))
    else:
        distances_s = distances(every)
        near = (sorted(sites, key=lambda site: distances_s.get(origin, {}).get(site, math.inf)) for origin in sites)
        chosen = (order[:size] for order in near for size in range(1, len(sites)))
    sets = dict.fromkeys(frozenset(members_inside) for members_inside in chosen)
    return tuple(
        (inside, tuple(crossed for crossed in every if crossed.tail in inside and crossed.head not in inside))
        for inside in sets
        if 0 < sum(site in inside for site in members) < len(members)
    )


def median_uncertainty_s(times_s: Sequence[float], uncertain_s: Sequence[float]) -> float:
    """Return the uncertainty of the median of ``times_s``, if each time is uncertain by its ``uncertain_s``."""
    middle_s = statistics.median(times_s)
    low_s = statistics.median(time_s - by_s for time_s, by_s in zip(times_s, uncertain_s, strict=True))
    high_s = statistics.median(time_s + by_s for time_s, by_s in zip(times_s, uncertain_s, strict=True))
    return max(0.0, middle_s - low_s, high_s - middle_s)
