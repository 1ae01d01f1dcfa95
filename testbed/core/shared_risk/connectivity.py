"""Connectivity of a topology under failures: reachability, paths, capacity, disjoint paths. Pure.

A link has one *path* of ducts, or two if a second path protects it (1+1, restoration): it is lost when all of its paths
are cut. Traffic between two sites takes the shortest path over the remaining links, as in routing
(``core/plan/routing.py``); a switched link keeps its metric in routing and has the latency of the second path.
Failures at its ends (port, transponder) take down a link with both paths.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import networkx

from testbed.core.topology.graph import ShortestPaths, reachable
from testbed.core.topology.model import Link, Topology

__all__ = ["MOST_PATHS", "Disjoint", "Failure", "Fibers", "Way"]

MOST_PATHS: Final = 200
"""Maximum number of paths between two sites to search for a duct-disjoint set, the shortest first: the problem is
NP-complete (Hu, "Diverse routing in optical mesh networks", IEEE Trans. Commun. 51, 2003)."""


@dataclass(frozen=True)
class Failure:
    """Simultaneous failures: names of ducts, links and sites."""

    ducts: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    sites: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Way:
    """The route between two sites: its links in order, their length as routing counts it, the round trip."""

    links: tuple[str, ...]
    length_m: float
    rtt_s: float


@dataclass(frozen=True)
class Disjoint:
    """The number of mutually disjoint paths; ``exact`` is False if there may be more."""

    count: int
    exact: bool


@dataclass(frozen=True)
class _Path:
    """One of the paths of a link."""

    link: Link
    ducts: frozenset[str]
    rtt_s: float


_Hop = tuple[Link, _Path | None]
"""A link on a route, and its path of ducts; None if it is lost and routing keeps using it (``protection: none``)."""


class Fibers:
    """The fibers of a topology, queried under different failures."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._paths = {link.name: tuple(_paths(link)) for link in topology.links}
        ducts = [duct for paths in self._paths.values() for path in paths for duct in path.ducts]
        shared = [duct for duct, times in Counter(ducts).items() if times > 1]
        self._after_shared = [self.islands(Failure(ducts=frozenset({duct}))) for duct in shared]

    def lost(self, failure: Failure) -> tuple[str, ...]:
        """Return the names of the links that are down."""
        return tuple(link.name for link in self._topology.links if self._path(link, failure) is None)

    def switched(self, failure: Failure) -> tuple[str, ...]:
        """Return the names of the links on their second path."""
        paths = ((link, self._path(link, failure)) for link in self._topology.links)
        return tuple(link.name for link, path in paths if path not in (None, self._paths[link.name][0]))

    def islands(self, failure: Failure) -> tuple[frozenset[str], ...]:
        """Return the groups of connected sites, the largest first, without failed sites."""
        lit = [link.between for link in self._topology.links if self._path(link, failure) is not None]
        islands: list[frozenset[str]] = []
        for site in self._topology.sites:
            if site.name not in failure.sites and not any(site.name in island for island in islands):
                islands.append(frozenset(reachable(site.name, lit)))
        return tuple(sorted(islands, key=lambda sites: (-len(sites), min(sites))))

    def ways(self, failure: Failure, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], Way | None]:
        """Return the route between the sites of each pair.

        None if nothing arrives: no path exists, or routing keeps using a lost link (``protection: none``).
        """
        edges = self._routed(failure)
        paths = {origin: ShortestPaths(origin, edges) for origin in {origin for origin, _ in pairs}}
        return {(origin, other): _way(paths[origin].path(other)) for origin, other in pairs}

    def capacity_bps(self, failure: Failure, one: str, other: str) -> float:
        """Return the one-way capacity of all fibers together between two sites (max-flow), regardless of routing."""
        graph = self._graph(failure)
        if one not in graph or other not in graph:
            return 0.0
        return float(networkx.maximum_flow_value(graph, one, other, capacity="rate_bps"))

    def rate_bps(self, link: str) -> float:
        """Return the rate of the slower direction."""
        first_link = self._paths[link][0].link
        return min(first_link.impairment(direction).rate_bps for direction in first_link.directions)

    def link_disjoint(self, one: str, other: str) -> int:
        """Return the number of link-disjoint paths (Menger)."""
        return int(networkx.maximum_flow_value(self._graph(Failure()), one, other, capacity="links"))

    def duct_disjoint(self, one: str, other: str) -> Disjoint:
        """Return the number of duct-disjoint paths; the two paths of a protected link count separately."""
        most = self._most_by_paths(one, other)
        if not self._after_shared:
            return Disjoint(most, True)
        for islands in self._after_shared:
            if not any({one, other} <= island for island in islands):
                return Disjoint(1 if most else 0, True)
        risks: list[frozenset[str]] = []
        best = 0
        for looked_at, ducts in enumerate(self.routes(one, other)):
            if looked_at == MOST_PATHS:
                return Disjoint(best, False)
            # A path whose ducts include all of another path's is never the better choice.
            if any(route <= ducts for route in risks):
                continue
            risks = [*(route for route in risks if not ducts <= route), ducts]
            # Only a set with the new path can be larger than the best so far.
            best = max(best, 1 + _most_disjoint([route for route in risks[:-1] if not route & ducts], best))
            if best == most:
                break
        return Disjoint(best, True)

    def routes(self, one: str, other: str) -> Iterator[frozenset[str]]:
        """Yield the ducts of each simple path between two sites, the shortest first."""
        # Each path of a link is a vertex of its own, because shortest_simple_paths does not support parallel edges.
        graph = networkx.Graph()
        graph.add_nodes_from((one, other))
        for link in self._topology.links:
            for number, path in enumerate(self._paths[link.name]):
                for site in link.between:
                    graph.add_edge(site, (link.name, number), weight=link.length_m / 2, ducts=path.ducts)
        try:
            for nodes in networkx.shortest_simple_paths(graph, one, other, weight="weight"):
                yield frozenset().union(*(graph.edges[edge]["ducts"] for edge in itertools.pairwise(nodes)))
        except networkx.NetworkXNoPath:
            return

    def _most_by_paths(self, one: str, other: str) -> int:
        """Return an upper bound on duct-disjoint paths: the number of those that share no path of a link."""
        graph = networkx.Graph()
        graph.add_nodes_from((one, other))
        for link in self._topology.links:
            _widen(graph, *link.between, paths=len(self._paths[link.name]))
        return int(networkx.maximum_flow_value(graph, one, other, capacity="paths"))

    def _path(self, link: Link, failure: Failure) -> _Path | None:
        if link.name in failure.links or failure.sites & {*link.between}:
            return None
        return next((path for path in self._paths[link.name] if not path.ducts & failure.ducts), None)

    def _routed(self, failure: Failure) -> Mapping[str, Sequence[tuple[str, float, _Hop]]]:
        """Return, by surviving site, the links that routing considers up, each with its path; None if it is lost."""
        edges: dict[str, list[tuple[str, float, _Hop]]] = {}
        for link in self._topology.links:
            path = self._path(link, failure)
            if not failure.sites & {*link.between} and (path is not None or link.protection == "none"):
                for site in link.between:
                    edges.setdefault(site, []).append((link.other_end(site), link.length_m, (link, path)))
        return edges

    def _graph(self, failure: Failure) -> networkx.Graph:
        """Return the surviving sites with an edge per adjacent pair: its number of links and their total rate."""
        graph = networkx.Graph()
        graph.add_nodes_from(site.name for site in self._topology.sites if site.name not in failure.sites)
        for link in self._topology.links:
            if self._path(link, failure) is not None:
                _widen(graph, *link.between, rate_bps=self.rate_bps(link.name), links=1)
        return graph


def _paths(link: Link) -> Iterator[_Path]:
    yield _Path(link, frozenset(link.via), link.rtt_s)
    if link.second_path is not None:
        yield _Path(link, frozenset(link.second_path.via), link.switched_rtt_s)


def _widen(graph: networkx.Graph, one: str, other: str, **weights: float) -> None:
    """Add to the values of the edge between two sites, creating it if missing."""
    graph.add_edge(one, other)
    edge = graph.edges[one, other]
    for key, value in weights.items():
        edge[key] = edge.get(key, 0) + value


def _way(hops: Sequence[_Hop] | None) -> Way | None:
    if hops is None:
        return None
    rtts_s = [path.rtt_s for _, path in hops if path is not None]
    if len(rtts_s) < len(hops):
        return None
    return Way(tuple(link.name for link, _ in hops), sum(link.length_m for link, _ in hops), sum(rtts_s))


def _most_disjoint(risks: list[frozenset[str]], enough: int) -> int:
    """Return the size of the largest family of pairwise disjoint sets if at least ``enough``, else a smaller number.

    Branch and bound.
    """
    best = 0

    def choose(left: list[frozenset[str]], taken: int) -> None:
        nonlocal best
        best = max(best, taken)
        for place, ducts in enumerate(left):
            if taken + len(left) - place <= max(best, enough - 1):
                return
            choose([route for route in left[place + 1 :] if not route & ducts], taken + 1)

    choose(risks, 0)
    return best
