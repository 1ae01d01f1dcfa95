"""Which way packets go: shortest fiber first, and what changes when fibers are dark. Pure.

Every gateway has plain metric routes to every other site, the shortest way first and loop-free detours behind it:
the kernel itself moves traffic within milliseconds when a link *of its own* loses the carrier. Carrier says nothing
of links elsewhere, so the keeper adds :func:`detours` where the shortest way over what is still lit is another one.

Nothing takes the place of a link whose protection is ``none``: no route stands behind the one over it, and none is
added when it is dark. What would have taken it waits for the heal. Only flows that are spread over several links
(``routing: multipath``) go on over the others: the kernel sees to that by itself.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from testbed.core.plan.addressing import LAB_V4, LAB_V6, Addressing
from testbed.core.plan.resources import Route
from testbed.core.topology.model import Link, Site, Topology

LAST_RESORT_METRIC = 4_294_967_295
FIRST_METRIC = 10
"""The metric of the best route; the next ones have multiples of it."""
DETOUR_METRIC = 5
"""Smaller than that of any route that a healthy lab has."""


def routes(topology: Topology) -> Iterator[Route]:
    """All routes of all gateways of a healthy lab."""
    plan = _at_rest(topology)
    for site in topology.sites:
        for prefix in (LAB_V4, LAB_V6):
            # A cut must end at a blackhole, never fall through to some default route of the host's.
            yield Route(site.gateway, str(prefix), (), LAST_RESORT_METRIC)
        for remote in topology.sites:
            if remote.name != site.name:
                yield from _healthy(plan, site, remote, topology.routing == "multipath")


def detours(topology: Topology, dark: frozenset[str]) -> tuple[Route, ...]:
    """Routes that gateways need on top while the links named in ``dark`` carry nothing.

    Only where the kernels' own choice among the healthy routes is not the shortest lit way, or leads nowhere: two
    gateways that each see the other as their detour to a third site would send packets round in a circle.
    """
    gone = dark
    dark -= {link.name for link in topology.links if link.protection == "none"}
    if not dark:
        return ()
    # `lit` is what routing believes: it does not know of links that nothing takes the place of.
    plan, lit = _at_rest(topology), _Map(topology, dark)
    found: list[tuple[str, float, list[Route]]] = []
    for site in topology.sites:
        for remote in topology.sites:
            if remote.name == site.name:
                continue
            ways = plan.ways[site.name, remote.name]
            if ways and lit.still_shortest(site.name, remote.name, ways[0], dark):
                continue
            by_itself, wanted = ways, lit.downhill(site.name, remote.name)
            if topology.routing != "multipath":
                by_itself, wanted = [it for it in ways if it.name not in gone][:1], wanted[:1]
            # A kernel passes over a route that is dark, to one that may lead back: none of those is ever wanted.
            by_itself, wanted = ([it for it in some if it.name not in gone] for some in (by_itself, wanted))
            if wanted != by_itself:
                distance = lit.distance(site.name, remote.name)
                found.append((remote.name, distance, list(plan.route(site, remote, wanted, DETOUR_METRIC))))
    # One destination after the other, and of each the nearest gateways first: then none ever leads to one that still
    # leads back (RFC 6976's order), and a destination need not wait for all others. Undone backwards, as plans are.
    return tuple(route for _, _, some in sorted(found, key=lambda it: it[:2]) for route in some)


def fewest_links(topology: Topology, origin: str) -> dict[str, int]:
    """How many links a packet of the site ``origin`` crosses at least, by site that it can reach; none to itself."""
    found, edge = {origin: 0}, [origin]
    while edge:
        beyond = []
        for link in topology.links:
            for here, there in (link.between, link.between[::-1]):
                if here in edge and there not in found:
                    found[there] = found[here] + 1
                    beyond.append(there)
        edge = beyond
    return found


class _AtRest:
    """What of a topology does not change while fibers go and come: reckoned once, for detours must be quick."""

    def __init__(self, topology: Topology) -> None:
        net, healthy = Addressing(topology), _Map(topology, frozenset())
        names = [site.name for site in topology.sites]
        self.ways = {
            (here, there): _as_protected(healthy.ways(here, there), topology)
            for here in names
            for there in names
            if here != there
        }
        self._networks = {name: tuple(str(it) for it in net.site_networks(name)) for name in names}
        self._hops = {
            (link.name, site): tuple((str(it), link.name) for it in net.link_end(link, _other(link, site)))
            for link in topology.links
            for site in link.between
        }

    def route(self, site: Site, remote: Site, ways: list[Link], metric: int) -> Iterator[Route]:
        """The same route for IPv4 and IPv6; no ways make a blackhole."""
        for family, network in enumerate(self._networks[remote.name]):
            hops = tuple(self._hops[link.name, site.name][family] for link in ways)
            yield Route(site.gateway, network, hops, metric)


def prepare(topology: Topology) -> None:
    """Reckon ahead of time what :func:`detours` needs of a healthy lab: 35 ms with 64 sites, too long at a cut."""
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
    """Without those behind the first one that nothing takes the place of."""
    last = next((place for place, link in enumerate(ways) if link.protection == "none"), len(ways))
    return ways if topology.routing == "multipath" else ways[: last + 1]


class _Map:
    """The lit fibers of a topology and the shortest distances over them, in metres."""

    def __init__(self, topology: Topology, dark: frozenset[str]) -> None:
        self.multipath = topology.routing == "multipath"
        self._links: dict[str, list[Link]] = {site.name: [] for site in topology.sites}
        for link in topology.links:
            if link.name not in dark:
                for site in link.between:
                    self._links[site].append(link)
        self._distance = {site: self._from(site) for site in self._links}

    def distance(self, site: str, remote: str) -> float:
        """In metres; infinite where nothing leads there."""
        return self._distance[site].get(remote, math.inf)

    def still_shortest(self, site: str, remote: str, link: Link, dark: frozenset[str]) -> bool:
        """Whether the best link of health is the best one still; False where it takes a closer look."""
        if self.multipath or link.name in dark:
            return False
        onward = self._distance[_other(link, site)].get(remote, math.inf)
        return link.length_m + onward == self._distance[site].get(remote)

    def ways(self, site: str, remote: str) -> list[Link]:
        """Links of ``site`` that its gateway may use toward ``remote``, best first.

        For flows that are spread over all of them only links that lead nearer: if every gateway follows that, no
        packet ever comes back. For one route at a time also a detour whose own shortest way does not come back
        through here: distance(neighbour, remote) < distance(neighbour, site) + distance(site, remote), the loop-free
        condition of RFC 5286, inequality 1.
        """
        if self.multipath:
            return self.downhill(site, remote)
        here = self._distance[site].get(remote, math.inf)
        return self._ranked(site, remote, lambda onward, back: onward < back + here)

    def downhill(self, site: str, remote: str) -> list[Link]:
        """Links of ``site`` to neighbours that are nearer to ``remote``, best first; none if it cannot be reached."""
        here = self._distance[site].get(remote, -math.inf)
        return self._ranked(site, remote, lambda onward, back: onward < here)

    def _ranked(self, site: str, remote: str, fit: Callable[[float, float], bool]) -> list[Link]:
        """Links whose neighbour fits by its distances (onward to ``remote``, back to ``site``), nearest first."""
        found: list[tuple[float, Link]] = []
        for link in self._links[site]:
            distance = self._distance[_other(link, site)]
            onward = distance.get(remote, math.inf)
            if fit(onward, distance[site]):
                found.append((link.length_m + onward, link))
        return [link for _, link in sorted(found, key=lambda way: way[0])]  # stable: as written where equally long

    def _from(self, origin: str) -> dict[str, float]:
        """Dijkstra; what cannot be reached is left out."""
        found: dict[str, float] = {}
        waiting = [(0.0, origin)]
        while waiting:
            metres, site = heapq.heappop(waiting)
            if site in found:
                continue
            found[site] = metres
            for link in self._links[site]:
                heapq.heappush(waiting, (metres + link.length_m, _other(link, site)))
        return found


def _other(link: Link, site: str) -> str:
    return link.between[1 - link.between.index(site)]
