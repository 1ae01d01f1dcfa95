"""Facts derived from a topology: distances, round trips, properties of its links, rings across it. Pure.

Between two sites traffic takes the shortest path over the fibers, as in a healthy lab (``core/plan/routing.py``).
"Real" rates and sizes are those before scale; latency is never scaled.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.core.physics import validity
from testbed.core.physics.facts import bandwidth_delay_bytes, radius_class
from testbed.core.physics.optics import OPTICS
from testbed.core.topology.direction import Direction
from testbed.core.topology.graph import ShortestPaths
from testbed.core.topology.model import Link, Topology

__all__ = ["LinkFacts", "PairFacts", "Rings", "Survey", "rings_of", "survey", "validity_of"]


@dataclass(frozen=True)
class LinkFacts:
    """Facts of one link: lengths in m, times in s, rates in bit/s, sizes in bytes.

    ``margin_m`` is the reach of its optics beyond its length. ``spans`` is the number of sections between amplifiers,
    so the route has ``spans - 1`` huts, whether or not the topology counts their delay (``huts``).
    ``bandwidth_delay_bytes`` is rate x RTT: the unacknowledged bytes of a sender that fills the link.
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
    """Facts of a pair of sites: the links of the shortest path, in order, and its minimum round trip."""

    between: tuple[str, str]
    via: tuple[str, ...]
    length_m: float
    rtt_floor_s: float


@dataclass(frozen=True)
class Survey:
    """All facts; ``radius_class`` is that of the two sites farthest apart, None for a single site."""

    radius_class: str | None
    links: tuple[LinkFacts, ...]
    pairs: tuple[PairFacts, ...]


@dataclass(frozen=True)
class Rings:
    """The rings across the fibers of a topology, at its real rates: sites in order, the last connected to the first.

    ``hop_s`` is the one-way delay of the longest hop from a site to the next, in seconds. ``byte_s`` is the time of the
    busiest direction of a fiber per byte that every site sends to the next, in seconds per byte. ``fibers_m`` are the
    lengths of the fibers of all hops, in metres; one that several hops cross counts for each.
    """

    sites: int
    ranks: int
    hop_s: float
    byte_s: float
    fibers_m: tuple[float, ...] = ()


def survey(topology: Topology) -> Survey:
    """Return all facts of ``topology``."""
    paths = {site.name: _shortest(topology, site.name) for site in topology.sites}
    pairs = tuple(
        _pair(one.name, other.name, paths[one.name][other.name])
        for one, other in itertools.combinations(topology.sites, 2)
    )
    return Survey(
        radius_class=radius_class(max(pair.length_m for pair in pairs)).name if pairs else None,
        links=tuple(_link(link, topology.scale) for link in topology.links),
        pairs=pairs,
    )


def rings_of(topology: Topology) -> Rings | None:
    """Return the rings of a topology; None if they cross no fiber."""
    names = [site.name for site in topology.sites]
    if len(names) < 2:
        return None
    paths = {name: _shortest(topology, name) for name in names}
    hops = list(zip(names, names[1:] + names[:1], strict=True))
    routes = [list(_directions(here, paths[here][there])) for here, there in hops]
    crossings = Counter(direction for route in routes for direction in route)
    fibers = {name: link.impairment(name) for link in topology.links for name in link.directions}
    return Rings(
        sites=len(names),
        ranks=len(topology.node_names),
        hop_s=max(sum(fibers[name].delay_s for name in route) for route in routes),
        byte_s=max(8 * times / (fibers[name].rate_bps * topology.scale) for name, times in crossings.items()),
        fibers_m=tuple(link.length_m for here, there in hops for link in paths[here][there]),
    )


def validity_of(topology: Topology, exchange: validity.Exchange | None = None) -> tuple[validity.Finding, ...]:
    """Return how far the scale model is valid, per link, for ``exchange`` (default: the agents' model).

    A link whose directions differ has findings for each.
    """
    ranks = len(topology.node_names)
    fibers = [fiber for link in topology.links for fiber in _fibers(link)]
    return validity.check(fibers, topology.scale, exchange or validity.Exchange(ranks))


def _fibers(link: Link) -> Iterator[validity.Fiber]:
    towards = [link.impairment(direction) for direction in link.directions]
    alike = towards[0] == towards[1]
    for name, impairment in zip(link.directions, towards[:1] if alike else towards, strict=False):
        yield validity.Fiber(
            link.name if alike else name,
            impairment.delay_s,
            link.rtt_s,
            impairment.rate_bps,
            link.mtu,
            impairment.mean_loss,
        )


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


def _directions(here: str, path: tuple[Link, ...]) -> Iterator[Direction]:
    """Yield the direction of each link of ``path`` from ``here``."""
    for link in path:
        direction = link.from_site(here)
        yield direction
        here = direction.head


def _shortest(topology: Topology, origin: str) -> dict[str, tuple[Link, ...]]:
    """Return the links from ``origin`` to every site, the shortest path by length."""
    edges: dict[str, list[tuple[str, float, Link]]] = {site.name: [] for site in topology.sites}
    for link in topology.links:
        for site in link.between:
            edges[site].append((link.other_end(site), link.length_m, link))
    paths = ShortestPaths(origin, edges)
    return {site: paths.path(site) or () for site in paths}
