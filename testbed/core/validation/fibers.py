"""Fibers between sites, as bounds and byte counts need them: the capacity of each direction and the paths of traffic.

Everything else on the path (fabrics, gateways, the hosts' own stack) counts as free of delay and of limits: leaving it
out can only make a bound lower, never too high.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from testbed.core.topology.model import Topology

__all__ = ["Fiber", "distances", "fibers", "in_use", "routes"]


@dataclass(frozen=True)
class Fiber:
    """One direction that is up, from the site ``tail`` to the site ``head``. ``rate`` is payload, in byte/s;
    ``delay_s`` is one way."""

    direction: str
    tail: str
    head: str
    delay_s: float
    rate: float


def fibers(
    topology: Topology, certified: Mapping[str, Mapping[str, float]], down: Collection[str] = ()
) -> tuple[Fiber, ...]:
    """Return the directions of ``topology`` that are ``certified`` (direction to delay_s and rate, as in
    ``Validation.links``).

    Links named in ``down``, and directions without certified values, are left out.
    """
    measured = []
    for link in topology.links:
        first, second = link.between
        for direction, tail, head in zip(link.directions, (first, second), (second, first), strict=True):
            if link.name not in down and direction in certified:
                values = certified[direction]
                measured.append(Fiber(direction, tail, head, values["delay_s"], values["rate"]))
    return tuple(measured)


def routes(topology: Topology, down: Collection[str] = ()) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the directions that traffic between each two sites takes in sequence, following the gateways' routes.

    This is the shortest path that is up, by metres of fiber. A pair without a path is left out. With ``routing:
    multipath`` a pair may have several paths, and the result is empty.
    """
    if topology.routing == "multipath":
        return {}
    graph = nx.DiGraph()
    graph.add_nodes_from(site.name for site in topology.sites)
    for link in topology.links:
        if link.name in down:
            continue
        first, second = link.between
        for direction, tail, head in zip(link.directions, (first, second), (second, first), strict=True):
            best = graph.get_edge_data(tail, head)
            if best is None or link.length_m < best["metres"]:  # ties: the first, as in the gateways' routes
                graph.add_edge(tail, head, metres=link.length_m, direction=direction)
    directions_by_pair: dict[tuple[str, str], tuple[str, ...]] = {}
    for tail, paths in nx.all_pairs_dijkstra_path(graph, weight="metres"):
        for head, path in paths.items():
            if tail != head:
                hops = itertools.pairwise(path)
                directions_by_pair[tail, head] = tuple(graph.edges[hop]["direction"] for hop in hops)
    return directions_by_pair


def in_use(
    topology: Topology, sites: Iterable[str], every: Sequence[Fiber], down: Collection[str] = ()
) -> tuple[Fiber, ...]:
    """Return those of ``every`` fiber that traffic among ``sites`` takes; all of them where flows are spread."""
    if topology.routing == "multipath":
        return tuple(every)
    taken = routes(topology, down)
    ends = list(dict.fromkeys(sites))
    directions = {direction for tail in ends for head in ends for direction in taken.get((tail, head), ())}
    return tuple(fiber for fiber in every if fiber.direction in directions)


def distances(every: Sequence[Fiber]) -> dict[str, dict[str, float]]:
    """Return the least one-way delay between sites that these fibers connect, in seconds; 0 from a site to itself."""
    graph = nx.DiGraph()
    for fiber in every:
        edge = graph.get_edge_data(fiber.tail, fiber.head)
        if edge is None or fiber.delay_s < edge["delay_s"]:
            graph.add_edge(fiber.tail, fiber.head, delay_s=fiber.delay_s)
    return {tail: dict(distances_s) for tail, distances_s in nx.all_pairs_dijkstra_path_length(graph, weight="delay_s")}
