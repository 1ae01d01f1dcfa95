"""Which way packets go: shortest fiber first, and what changes when fibers are dark. Pure.

Every gateway has plain metric routes to every other site, the shortest way first and loop-free detours behind it:
the kernel itself moves traffic within milliseconds when a link *of its own* loses the carrier. Carrier says nothing
of links elsewhere, so the keeper adds :func:`detours` where the shortest way over what is still lit is another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from testbed.core.plan.addressing import LAB_V4, LAB_V6, Addressing
from testbed.core.plan.step import Route
from testbed.core.topology.model import Link, Site, Topology

LAST_RESORT_METRIC = 4_294_967_295
FIRST_METRIC = 10
"""The metric of the best route; the next ones have multiples of it."""
DETOUR_METRIC = 5
"""Smaller than that of any route that a healthy lab has."""

_Distances = dict[str, dict[str, float]]


def routes(topology: Topology) -> Iterator[Route]:
    """All routes of all gateways of a healthy lab."""
    net, distance = Addressing(topology), _shortest(topology, frozenset())
    for site in topology.sites:
        for prefix in (LAB_V4, LAB_V6):
            # A cut must end at a blackhole, never fall through to some default route of the host's.
            yield Route(site.gateway, str(prefix), (), LAST_RESORT_METRIC)
        for remote in topology.sites:
            if remote.name != site.name:
                yield from _healthy(topology, net, site, remote, distance)


def detours(topology: Topology, dark: frozenset[str]) -> tuple[Route, ...]:
    """Routes that gateways need on top while the links named in ``dark`` carry nothing.

    Only where the kernels' own choice among the healthy routes is not the shortest lit way, or leads nowhere: two
    gateways that each see the other as their detour to a third site would send packets round in a circle.
    """
    if not dark:
        return ()
    net = Addressing(topology)
    healthy, lit = _shortest(topology, frozenset()), _shortest(topology, dark)
    found: list[Route] = []
    for site in topology.sites:
        for remote in topology.sites:
            if remote.name == site.name:
                continue
            left = [it for it in _ways(topology, healthy, site.name, remote.name) if it.name not in dark]
            by_itself = left if topology.routing == "multipath" else left[:1]
            best = [it for it in _downhill(topology, lit, site.name, remote.name) if it.name not in dark]
            wanted = best if topology.routing == "multipath" else best[:1]
            if wanted != by_itself:
                found += _one_route(net, site, remote, wanted, DETOUR_METRIC)
    return tuple(found)


def _healthy(topology: Topology, net: Addressing, site: Site, remote: Site, distance: _Distances) -> Iterator[Route]:
    ways = _ways(topology, distance, site.name, remote.name)
    if topology.routing == "multipath":
        yield from _one_route(net, site, remote, ways, FIRST_METRIC)
    else:
        for place, link in enumerate(ways, 1):
            yield from _one_route(net, site, remote, [link], FIRST_METRIC * place)


def _one_route(net: Addressing, site: Site, remote: Site, ways: list[Link], metric: int) -> Iterator[Route]:
    """The same route for IPv4 and IPv6; no ways make a blackhole."""
    for family, network in enumerate(net.site_networks(remote.name)):
        hops = tuple((str(net.link_end(link, _other(link, site.name))[family]), link.name) for link in ways)
        yield Route(site.gateway, str(network), hops, metric)


def _ways(topology: Topology, distance: _Distances, site: str, remote: str) -> list[Link]:
    """Links of ``site`` that a healthy gateway may use toward ``remote``, best first.

    For flows that are spread over all of them only links that lead nearer: if every gateway follows that, no packet
    ever comes back. For one route at a time also a detour whose own shortest way does not come back through here:
    distance(neighbour, remote) < distance(neighbour, site) + distance(site, remote), the loop-free condition of
    RFC 5286, inequality 1.
    """
    if topology.routing == "multipath":
        return _downhill(topology, distance, site, remote)
    return _ranked(
        topology,
        distance,
        site,
        remote,
        lambda neighbour: distance[neighbour][remote] < distance[neighbour][site] + distance[site][remote],
    )


def _downhill(topology: Topology, distance: _Distances, site: str, remote: str) -> list[Link]:
    """Links of ``site`` to neighbours that are nearer to ``remote``, best first; none if it cannot be reached."""
    if remote not in distance[site]:
        return []
    return _ranked(
        topology,
        distance,
        site,
        remote,
        lambda neighbour: remote in distance[neighbour] and distance[neighbour][remote] < distance[site][remote],
    )


def _ranked(topology: Topology, distance: _Distances, site: str, remote: str, fit: Callable[[str], bool]) -> list[Link]:
    ways = [
        (link.length_m + distance[_other(link, site)][remote], order, link)
        for order, link in enumerate(topology.links)
        if site in link.between and fit(_other(link, site))
    ]
    return [link for _, _, link in sorted(ways, key=lambda way: way[:2])]


def _other(link: Link, site: str) -> str:
    return link.between[1 - link.between.index(site)]


def _shortest(topology: Topology, dark: frozenset[str]) -> _Distances:
    """Shortest lit fiber between all sites, in metres (Dijkstra from each); what cannot be reached is left out."""
    neighbours: dict[str, list[tuple[str, float]]] = {site.name: [] for site in topology.sites}
    for link in topology.links:
        if link.name not in dark:
            for site in link.between:
                neighbours[site].append((_other(link, site), link.length_m))
    return {site: _distances_from(neighbours, site) for site in neighbours}


def _distances_from(neighbours: dict[str, list[tuple[str, float]]], origin: str) -> dict[str, float]:
    found: dict[str, float] = {}
    waiting = [(0.0, origin)]
    while waiting:
        metres, site = heapq.heappop(waiting)
        if site in found:
            continue
        found[site] = metres
        for neighbour, length_m in neighbours[site]:
            heapq.heappush(waiting, (metres + length_m, neighbour))
    return found
