"""The shared-risk audit of a topology: paths that only look diverse, and the effect of each single failure. Pure.

A *shared-risk group* is a set of links that one dig cuts: those in a duct (RFC 4202, 2.3, SRLG). The audit fails every
duct, link, gateway and power domain by itself, and ducts also two at a time, and compares the result with the healthy
topology. It covers all pairs of up to :data:`MOST_SITES_FOR_ALL_PAIRS` sites, above that adjacent pairs only.
Separation is always reported for all pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from testbed.core.shared_risk.connectivity import Disjoint, Failure, Fibers, Way
from testbed.core.topology.model import Link, Topology

__all__ = [
    "Audit",
    "Detour",
    "DoubleCut",
    "DuctCut",
    "PairRisk",
    "SharedRisk",
    "SinglePoint",
    "audit",
    "ducts_of",
]

MOST_SITES_FOR_ALL_PAIRS: Final = 16
MOST_DOUBLE_CUTS: Final = 5000
"""Maximum number of pairs of ducts to try: all pairs of up to 100 ducts."""

_HEALTHY: Final = Failure()


@dataclass(frozen=True)
class SharedRisk:
    """A duct with more than one link. ``separates``: whether its cut separates sites."""

    duct: str
    length_m: float
    links: tuple[str, ...]
    separates: bool


@dataclass(frozen=True)
class SinglePoint:
    """A single point of failure: its failure alone separates surviving sites.

    ``kind`` is duct, link, gateway or power. ``islands`` are the remaining groups of sites, the largest first;
    ``pairs`` counts the pairs of sites that cannot reach each other any more.
    """

    kind: str
    name: str
    islands: tuple[tuple[str, ...], ...]
    pairs: int


@dataclass(frozen=True)
class DoubleCut:
    """Two ducts that separate sites when both are cut, but not alone."""

    ducts: tuple[str, str]
    islands: tuple[tuple[str, ...], ...]
    pairs: int


@dataclass(frozen=True)
class Detour:
    """The path between two sites after the cut of a duct; ``rtt_after_s`` is None without one. Round trips in s."""

    between: tuple[str, str]
    rtt_before_s: float
    rtt_after_s: float | None
    via: tuple[str, ...]


@dataclass(frozen=True)
class DuctCut:
    """The effect of cutting one duct. ``lost`` links are down, ``switched`` ones use their second path.

    ``detours`` are those of all pairs of sites whose path or round trip changes, the worst first. ``capacity_left`` is
    the remaining share of capacity between the ends of its links, for the worst pair; 1 if it carries no link.
    """

    duct: str
    lost: tuple[str, ...]
    switched: tuple[str, ...]
    separated_pairs: int
    detours: tuple[Detour, ...]
    capacity_left: float


@dataclass(frozen=True)
class PairRisk:
    """A pair of sites: its disjoint paths, and the worst effect of cutting one duct.

    ``worst_rtt_s`` is None if the cut of ``worst_duct`` separates them. Capacities are in bit/s at the lab's scale, one
    way, over all fibers together; ``worst_capacity_bps`` is that after the cut of ``narrowest_duct``.
    """

    between: tuple[str, str]
    via: tuple[str, ...]
    link_disjoint: int
    duct_disjoint: Disjoint
    rtt_s: float
    worst_rtt_s: float | None
    worst_duct: str
    capacity_bps: float
    worst_capacity_bps: float
    narrowest_duct: str


@dataclass(frozen=True)
class Audit:
    """The result of an audit. ``power`` maps each domain that feeds several sites to them.

    ``double_cuts_tried`` of ``double_cuts_possible`` pairs of ducts were tried, in the order of the file.
    """

    topology: str
    all_pairs: bool
    shared: tuple[SharedRisk, ...]
    single_points: tuple[SinglePoint, ...]
    double_cuts: tuple[DoubleCut, ...]
    double_cuts_tried: int
    double_cuts_possible: int
    power: dict[str, tuple[str, ...]]
    ducts: tuple[DuctCut, ...]
    pairs: tuple[PairRisk, ...]


def audit(topology: Topology) -> Audit:
    """Audit ``topology`` for single failures and pairs of duct cuts."""
    fibers, pairs, used = Fibers(topology), _pairs(topology), ducts_of(topology)
    healthy = {pair: way for pair, way in fibers.ways(_HEALTHY, pairs).items() if way is not None}
    singles = tuple(_single_points(topology, fibers, used))
    cuts = tuple(_duct_cut(topology, fibers, duct, healthy) for duct in used)
    separating = frozenset(single.name for single in singles if single.kind == "duct")
    candidates = [duct for duct in used if duct not in separating]
    tried = list(itertools.islice(itertools.combinations(candidates, 2), MOST_DOUBLE_CUTS))
    return Audit(
        topology=topology.name,
        all_pairs=len(topology.sites) <= MOST_SITES_FOR_ALL_PAIRS,
        shared=tuple(_shared(topology, separating)),
        single_points=singles,
        double_cuts=tuple(_double_cuts(fibers, tried)),
        double_cuts_tried=len(tried),
        double_cuts_possible=len(candidates) * (len(candidates) - 1) // 2,
        power={domain: sites for domain, sites in _power(topology).items() if len(sites) > 1},
        ducts=cuts,
        pairs=tuple(_pair(fibers, pair, healthy[pair], cuts) for pair in pairs if pair in healthy),
    )


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    names = [site.name for site in topology.sites]
    if len(names) <= MOST_SITES_FOR_ALL_PAIRS:
        return list(itertools.combinations(names, 2))
    joined = {link.between for link in topology.links} | {link.between[::-1] for link in topology.links}
    return [pair for pair in itertools.combinations(names, 2) if pair in joined]


def ducts_of(topology: Topology) -> list[str]:
    """Return the ducts used by the working or second path of any link, in the order of the links."""
    return list(dict.fromkeys(duct for link in topology.links for duct in _of_link(link)))


def _of_link(link: Link) -> tuple[str, ...]:
    return link.via + (() if link.second_path is None else link.second_path.via)


def _power(topology: Topology) -> dict[str, tuple[str, ...]]:
    domains: dict[str, tuple[str, ...]] = {}
    for site in topology.sites:
        domains[site.power] = (*domains.get(site.power, ()), site.name)
    return domains


def _shared(topology: Topology, separating: frozenset[str]) -> Iterator[SharedRisk]:
    for duct in topology.ducts:
        links = tuple(link.name for link in topology.links if duct.name in _of_link(link))
        if len(links) > 1:
            yield SharedRisk(duct.name, duct.length_m, links, duct.name in separating)


def _single_points(topology: Topology, fibers: Fibers, used: list[str]) -> Iterator[SinglePoint]:
    ducts = {name: Failure(ducts=frozenset({name})) for name in used}
    # The cut of a private duct covers the failure of its link, unless the link has a second path.
    alone = {link.name for link in topology.links if link.via == (link.name,) and link.second_path is None}
    links = {link.name: Failure(links=frozenset({link.name})) for link in topology.links if link.name not in alone}
    gateways = {site.gateway: Failure(sites=frozenset({site.name})) for site in topology.sites}
    power = {name: Failure(sites=frozenset(sites)) for name, sites in _power(topology).items() if len(sites) > 1}
    for kind, failures in (("duct", ducts), ("link", links), ("gateway", gateways), ("power", power)):
        for name, failure in failures.items():
            islands = _islands(fibers, failure)
            if len(islands) > 1:
                yield SinglePoint(kind, name, islands, _separated(islands))


def _double_cuts(fibers: Fibers, tried: list[tuple[str, str]]) -> Iterator[DoubleCut]:
    for ducts in tried:
        islands = _islands(fibers, Failure(ducts=frozenset(ducts)))
        if len(islands) > 1:
            yield DoubleCut(ducts, islands, _separated(islands))


def _islands(fibers: Fibers, failure: Failure) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sorted(island)) for island in fibers.islands(failure))


def _separated(islands: tuple[tuple[str, ...], ...]) -> int:
    """Return the number of pairs of sites on different islands."""
    return sum(len(one) * len(other) for one, other in itertools.combinations(islands, 2))


def _duct_cut(topology: Topology, fibers: Fibers, duct: str, healthy: dict[tuple[str, str], Way]) -> DuctCut:
    failure = Failure(ducts=frozenset({duct}))
    lost, switched = fibers.lost(failure), fibers.switched(failure)
    touched = {*lost, *switched}
    affected = [pair for pair, way in healthy.items() if touched & {*way.links}]
    detours = [
        Detour(pair, healthy[pair].rtt_s, None if way is None else way.rtt_s, () if way is None else way.links)
        for pair, way in fibers.ways(failure, affected).items()
    ]
    ends = {link.between for link in topology.links if link.name in lost}
    left = [fibers.capacity_bps(failure, *pair) / fibers.capacity_bps(_HEALTHY, *pair) for pair in sorted(ends)]
    return DuctCut(
        duct=duct,
        lost=lost,
        switched=switched,
        separated_pairs=_separated(_islands(fibers, failure)),
        detours=tuple(sorted(detours, key=_badness)),
        capacity_left=min(left, default=1.0),
    )


def _badness(detour: Detour) -> tuple[float, tuple[str, str]]:
    """Sort key: separated pairs first, then by increase of the round trip."""
    longer = float("inf") if detour.rtt_after_s is None else detour.rtt_after_s - detour.rtt_before_s
    return -longer, detour.between


def _pair(fibers: Fibers, pair: tuple[str, str], way: Way, cuts: tuple[DuctCut, ...]) -> PairRisk:
    mine = [(cut.duct, detour) for cut in cuts for detour in cut.detours if detour.between == pair]
    worst_duct, worst = min(mine, key=lambda pair_of_cut: _badness(pair_of_cut[1]))
    capacity_bps = fibers.capacity_bps(_HEALTHY, *pair)
    narrowest_duct, narrowest_bps = "", capacity_bps
    for cut in sorted(cuts, key=lambda duct_cut: -_carried_bps(fibers, duct_cut)):
        if capacity_bps - _carried_bps(fibers, cut) >= narrowest_bps:
            break  # a cut removes at most the rate of its links: no later one can be worse
        left_bps = fibers.capacity_bps(Failure(ducts=frozenset({cut.duct})), *pair)
        if left_bps < narrowest_bps:
            narrowest_duct, narrowest_bps = cut.duct, left_bps
    return PairRisk(
        between=pair,
        via=way.links,
        link_disjoint=fibers.link_disjoint(*pair),
        duct_disjoint=fibers.duct_disjoint(*pair),
        rtt_s=way.rtt_s,
        worst_rtt_s=worst.rtt_after_s,
        worst_duct=worst_duct,
        capacity_bps=capacity_bps,
        worst_capacity_bps=narrowest_bps,
        narrowest_duct=narrowest_duct,
    )


def _carried_bps(fibers: Fibers, cut: DuctCut) -> float:
    return sum(fibers.rate_bps(link) for link in cut.lost)
