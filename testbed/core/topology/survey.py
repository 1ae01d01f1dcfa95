"""What follows from a topology: distances and round trips, what its links are, which ways of training it allows. Pure.

Between two sites traffic takes the shortest fiber, as the gateways of a healthy lab do (``core/plan/routing.py``).
Rates and sizes called real are those before scale; latency has no scale.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from testbed.core.physics import training, validity
from testbed.core.physics.facts import bandwidth_delay_bytes, radius_class
from testbed.core.physics.optics import OPTICS
from testbed.core.topology.model import Link, Topology

__all__ = ["LinkFacts", "PairFacts", "Survey", "survey", "validity_of"]


@dataclass(frozen=True)
class LinkFacts:
    """Of one link: lengths in m, times in s, rates in bit/s, sizes in bytes.

    ``margin_m`` is what its optics reach beyond its length. ``spans`` are the sections between amplifiers, so
    ``spans - 1`` huts stand on the way, whether or not the topology counts their delay (``huts``).
    ``bandwidth_delay_bytes`` is rate x RTT: what a sender has unacknowledged when it fills the link.
    """

    link: str
    between: tuple[str, str]
    radius_class: str
    length_m: float
    optics: str
    reach_m: float
    margin_m: float
    spans: int
    regenerators: int
    huts: int
    rtt_s: float
    bandwidth_delay_bytes: float
    real_bandwidth_delay_bytes: float


@dataclass(frozen=True)
class PairFacts:
    """Of two sites: the links in between, in order, along the shortest fiber; and the least round trip over them."""

    between: tuple[str, str]
    via: tuple[str, ...]
    length_m: float
    rtt_floor_s: float


@dataclass(frozen=True)
class Survey:
    """``radius_class`` is that of the two sites that are farthest apart; None for a single site."""

    radius_class: str | None
    links: tuple[LinkFacts, ...]
    pairs: tuple[PairFacts, ...]
    gradient_bytes: float
    compute_s: float
    ways: tuple[training.Way, ...]


def survey(
    topology: Topology,
    gradient_bytes: float = training.GRADIENT_BYTES,
    compute_s: float = training.COMPUTE_S,
) -> Survey:
    """All facts of ``topology``; the last two are what a step exchanges, in bytes, and how long it computes."""
    paths = {site.name: _shortest(topology, site.name) for site in topology.sites}
    pairs = tuple(
        _pair(one.name, other.name, paths[one.name][other.name])
        for one, other in itertools.combinations(topology.sites, 2)
    )
    rings = _rings(topology, paths)
    return Survey(
        radius_class=radius_class(max(pair.length_m for pair in pairs)).name if pairs else None,
        links=tuple(_link(link, topology.scale) for link in topology.links),
        pairs=pairs,
        gradient_bytes=gradient_bytes,
        compute_s=compute_s,
        ways=training.ways(rings, gradient_bytes, compute_s) if rings else (),
    )


def validity_of(topology: Topology, workload: validity.Workload | None = None) -> tuple[validity.Finding, ...]:
    """Where the scale model can be believed, per link and workload; by default that of the agents' model.

    A link whose directions differ is judged by each of them.
    """
    ranks = len(topology.node_names)
    fibers = [fiber for link in topology.links for fiber in _fibers(link)]
    return validity.check(fibers, topology.scale, workload or validity.Workload(ranks))


def _fibers(link: Link) -> Iterator[validity.Fiber]:
    towards = [link.impairment(direction) for direction in link.directions]
    alike = towards[0] == towards[1]
    for name, it in zip(link.directions, towards[:1] if alike else towards, strict=False):
        yield validity.Fiber(link.name if alike else name, it.delay_s, link.rtt_s, it.rate_bps, link.mtu, it.mean_loss)


def _link(link: Link, scale: float) -> LinkFacts:
    optics = OPTICS[link.optics]
    product = bandwidth_delay_bytes(link.rate_bps, link.rtt_s)
    return LinkFacts(
        link=link.name,
        between=link.between,
        radius_class=radius_class(link.length_m).name,
        length_m=link.length_m,
        optics=link.optics,
        reach_m=optics.reach_m,
        margin_m=optics.reach_m - link.length_m,
        spans=optics.spans(link.length_m),
        regenerators=optics.regenerators(link.length_m),
        huts=link.huts,
        rtt_s=link.rtt_s,
        bandwidth_delay_bytes=product,
        real_bandwidth_delay_bytes=product * scale,
    )


def _pair(one: str, other: str, path: tuple[Link, ...]) -> PairFacts:
    return PairFacts(
        between=(one, other),
        via=tuple(link.name for link in path),
        length_m=sum(link.length_m for link in path),
        rtt_floor_s=sum(link.rtt_s for link in path),
    )


def _rings(topology: Topology, paths: Mapping[str, Mapping[str, tuple[Link, ...]]]) -> training.Rings | None:
    """The rings of a lab: sites in their order, the last one joined to the first; None if no fiber is crossed."""
    names = [site.name for site in topology.sites]
    if len(names) < 2:
        return None
    hops = list(zip(names, names[1:] + names[:1], strict=True))
    ways = [list(_directions(here, paths[here][there])) for here, there in hops]
    crossings = Counter(direction for way in ways for direction in way)
    fibers = {name: link.impairment(name) for link in topology.links for name in link.directions}
    return training.Rings(
        sites=len(names),
        ranks=len(topology.node_names),
        hop_s=max(sum(fibers[name].delay_s for name in way) for way in ways),
        byte_s=max(8 * times / (fibers[name].rate_bps * topology.scale) for name, times in crossings.items()),
    )


def _directions(here: str, path: tuple[Link, ...]) -> Iterator[str]:
    """The direction (``link:site``) of each fiber on the way from ``here``."""
    for link in path:
        here = link.between[1 - link.between.index(here)]
        yield f"{link.name}:{here}"


def _shortest(topology: Topology, origin: str) -> dict[str, tuple[Link, ...]]:
    """Dijkstra by length: the links from ``origin`` to every site; of ways as long the one first written."""
    lines: dict[str, list[Link]] = {site.name: [] for site in topology.sites}
    for link in topology.links:
        for site in link.between:
            lines[site].append(link)
    found: dict[str, tuple[Link, ...]] = {}
    order = itertools.count()
    waiting: list[tuple[float, int, str, tuple[Link, ...]]] = [(0.0, next(order), origin, ())]
    while waiting:
        metres, _, site, path = heapq.heappop(waiting)
        if site in found:
            continue
        found[site] = path
        for link in lines[site]:
            beyond = link.between[1 - link.between.index(site)]
            if beyond not in found:
                heapq.heappush(waiting, (metres + link.length_m, next(order), beyond, (*path, link)))
    return found
