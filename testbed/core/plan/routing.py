"""Routing: shortest path over the fibers, with detours while links are down. Pure.

Every gateway has plain metric routes to every other site, the shortest path first and loop-free alternates behind it:
the kernel itself moves traffic within milliseconds when a link *of its own* loses the carrier. A gateway has no carrier
of remote links, so the keeper adds :func:`detours` where the shortest path over the links still up is another one.

Nothing replaces a link with protection ``none``: its route has no alternates, and the keeper adds no detour when it is
down. Traffic that would use it waits for the heal. Only flows spread over several links (``routing: multipath``)
continue over the others, by the kernel itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from testbed.core.plan.addressing import LAB_V4, LAB_V6, Addressing
from testbed.core.plan.resources import Route
from testbed.core.topology.direction import Direction
from testbed.core.topology.graph import ShortestPaths
from testbed.core.topology.model import Link, Site, Topology

LAST_RESORT_METRIC = 4_294_967_295
FIRST_METRIC = 10
"""The metric of the best route; alternates have multiples of it."""
DETOUR_METRIC = 5
"""Smaller than the metric of any route of a healthy lab."""


def routes(topology: Topology) -> Iterator[Route]:
    """Yield all routes of all gateways of a healthy lab."""
    plan = _at_rest(topology)
    for site in topology.sites:
        for prefix in (LAB_V4, LAB_V6):
            # During a cut packets must end at a blackhole, never at a default route.
            yield Route(site.gateway, str(prefix), (), LAST_RESORT_METRIC)
        for remote in topology.sites:
            if remote.name != site.name:
                yield from _healthy(plan, site, remote, topology.routing == "multipath")


def detours(topology: Topology, dark: frozenset[str]) -> tuple[Route, ...]:
    """Return the additional routes that gateways need while the links named in ``dark`` are down.

    They exist only where the kernels' own choice among the healthy routes is not the shortest path left, or leads
    nowhere: two gateways that are each other's alternate to a third site would form a loop.
    """
    gone = dark
    dark -= {link.name for link in topology.links if link.protection == "none"}
    if not dark:
        return ()
    # `lit` is the map for routing: links with protection `none` count as up even if they are down.
    plan, lit = _at_rest(topology), _Map(topology, dark)
    routed: list[tuple[str, float, list[Route]]] = []
    for site in topology.sites:
        for remote in topology.sites:
            if remote.name == site.name:
                continue
            ways = plan.ways[site.name, remote.name]
            if ways and lit.still_shortest(site.name, remote.name, ways[0], dark):
                continue
            by_itself, wanted = ways, lit.downhill(site.name, remote.name)
            if topology.routing != "multipath":
                by_itself, wanted = [link for link in ways if link.name not in gone][:1], wanted[:1]
            # A kernel skips a route whose link is down for one that may loop: never install such a route.
            by_itself, wanted = ([link for link in some if link.name not in gone] for some in (by_itself, wanted))
            if wanted != by_itself:
                distance = lit.distance(site.name, remote.name)
                routed.append((remote.name, distance, list(plan.route(site, remote, wanted, DETOUR_METRIC))))
    # One destination after the other, and for each the nearest gateways first: then no route leads to a gateway that
    # still routes back (the order of RFC 6976), and no destination waits for all others. Undo runs in reverse.
    return tuple(route for _, _, some in sorted(routed, key=lambda route_of: route_of[:2]) for route in some)


def path(topology: Topology, here: str, there: str) -> tuple[frozenset[Direction], ...] | None:
    """Return the directions (``link:site``) that flows from one site to another take in a healthy lab, hop by hop.

    A hop is several directions where flows are spread over links between the same two sites. None if there is no path,
    or if flows may take paths over different sites.
    """
    hops: list[frozenset[Direction]] = []
    for onward in _hops(_at_rest(topology), topology, here, there):
        if len({direction.head for direction in onward}) != 1:
            return None
        hops.append(onward)
    arrives = here == there or (hops and all(direction.head == there for direction in hops[-1]))
    return tuple(hops) if arrives else None


def paths(topology: Topology) -> dict[tuple[str, str], tuple[frozenset[Direction], ...]]:
    """Return :func:`path` of each two sites; where flows may take paths over different sites, the shortest one."""
    plan, names = _at_rest(topology), [site.name for site in topology.sites]
    pairs = itertools.permutations(names, 2)
    return {(here, there): tuple(_hops(plan, topology, here, there)) for here, there in pairs}


def _hops(plan: _AtRest, topology: Topology, here: str, there: str) -> Iterator[frozenset[Direction]]:
    """Yield the directions of each hop, and go on over those of the first one."""
    site = here
    while site != there and (ways := plan.ways[site, there]):
        after = ways[0].other_end(site)
        onward = ways if topology.routing == "multipath" else ways[:1]
        yield frozenset(link.from_site(site) for link in onward)
        site = after


class _AtRest:
    """Routing data of the healthy topology, computed once because detours must be fast."""

    def __init__(self, topology: Topology) -> None:
        net, healthy = Addressing(topology), _Map(topology, frozenset())
        names = [site.name for site in topology.sites]
        self.ways = {
            (here, there): _as_protected(healthy.ways(here, there), topology)
            for here in names
            for there in names
            if here != there
        }
        self._networks = {name: tuple(str(network) for network in net.site_networks(name)) for name in names}
        self._hops = {
            (link.name, site): tuple(
                (str(address), topology.interfaces.of_link(link.name))
                for address in net.link_end(link, link.other_end(site))
            )
            for link in topology.links
            for site in link.between
        }

    def route(self, site: Site, remote: Site, ways: list[Link], metric: int) -> Iterator[Route]:
        """Yield the same route for IPv4 and IPv6; without next hops a blackhole."""
        for family, network in enumerate(self._networks[remote.name]):
            hops = tuple(self._hops[link.name, site.name][family] for link in ways)
            yield Route(site.gateway, network, hops, metric)


def prepare(topology: Topology) -> None:
    """Precompute the healthy routing for :func:`detours`: 35 ms with 64 sites, too long during a cut."""
    _at_rest(topology)


@lru_cache(maxsize=1)
def _at_rest(topology: Topology) -> _AtRest:
    return _AtRest(topology)


def _healthy(plan: _AtRest, site: Site, remote: Site, multipath: bool) -> Iterator[Route]:
    ways = plan.ways[site.name, remote.name]
    if multipath:
        yield from plan.route(site, remote, ways, FIRST_METRIC)
    else:
        for place, link in enumerate(ways, 1):
            yield from plan.route(site, remote, [link], FIRST_METRIC * place)


def _as_protected(ways: list[Link], topology: Topology) -> list[Link]:
    """Drop the alternates behind the first link with protection ``none``."""
    last = next((place for place, link in enumerate(ways) if link.protection == "none"), len(ways))
    return ways if topology.routing == "multipath" else ways[: last + 1]


class _Map:
    """The links of a topology that are up, and the shortest distances over them, in metres."""

    def __init__(self, topology: Topology, dark: frozenset[str]) -> None:
        self.multipath = topology.routing == "multipath"
        self._links: dict[str, list[Link]] = {site.name: [] for site in topology.sites}
        for link in topology.links:
            if link.name not in dark:
                for site in link.between:
                    self._links[site].append(link)
        edges = {
            site: [(link.other_end(site), link.length_m, link) for link in links] for site, links in self._links.items()
        }
        self._paths = {site: ShortestPaths(site, edges) for site in self._links}

    def distance(self, site: str, remote: str) -> float:
        """Return the distance in metres; infinite if unreachable."""
        return self._paths[site].length(remote)

    def still_shortest(self, site: str, remote: str, link: Link, dark: frozenset[str]) -> bool:
        """Return whether the best link of the healthy lab is certainly still the best; False if in doubt."""
        if self.multipath or link.name in dark:
            return False
        distance = self.distance(site, remote)
        return distance < math.inf and link.length_m + self.distance(link.other_end(site), remote) == distance

    def ways(self, site: str, remote: str) -> list[Link]:
        """Return the links of ``site`` that its gateway may use toward ``remote``, best first.

        For multipath only links to neighbours nearer to ``remote``, which excludes loops. For one route at a time also
        alternates whose own shortest path does not come back through ``site``: distance(neighbour, remote) <
        distance(neighbour, site) + distance(site, remote), the loop-free condition of RFC 5286, inequality 1.
        """
        if self.multipath:
            return self.downhill(site, remote)
        here = self.distance(site, remote)
        return self._ranked(site, remote, lambda onward, back: onward < back + here)

    def downhill(self, site: str, remote: str) -> list[Link]:
        """Return the links of ``site`` to neighbours nearer to ``remote``, best first; empty if unreachable."""
        here = self.distance(site, remote)
        return self._ranked(site, remote, lambda onward, back: onward < here)

    def _ranked(self, site: str, remote: str, fit: Callable[[float, float], bool]) -> list[Link]:
        """Return links whose neighbour's distances (to ``remote``, back to ``site``) satisfy ``fit``, best first."""
        ranked: list[tuple[float, Link]] = []
        for link in self._links[site]:
            neighbor = link.other_end(site)
            onward = self.distance(neighbor, remote)
            if fit(onward, self.distance(neighbor, site)):
                ranked.append((link.length_m + onward, link))
        return [link for _, link in sorted(ranked, key=lambda way: way[0])]  # stable: file order among equals
