"""The fibers between the sites as bounds and bytes need them: what each direction carries, and which way traffic takes.

Everything else on the way (fabrics, gateways, the hosts' own stack) counts as without delay and without limit: what is
left out can only make a bound lower, never too high.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from testbed.core.topology.model import Topology

__all__ = ["Fiber", "distances", "fibers", "in_use", "ways"]


@dataclass(frozen=True)
class Fiber:
    """One lit direction: from the site ``tail`` to the site ``head``. ``rate`` is payload, in byte/s; ``delay_s`` one
    way."""

    direction: str
    tail: str
    head: str
    delay_s: float
    rate: float


def fibers(
    topology: Topology, certified: Mapping[str, Mapping[str, float]], dark: Collection[str] = ()
) -> tuple[Fiber, ...]:
    """The directions of ``topology`` that are ``certified`` (direction to delay_s and rate, as ``Validation.links``).

    Links named in ``dark`` are left out, and so is a direction that nothing is known of.
    """
    found = []
    for link in topology.links:
        first, second = link.between
        for direction, tail, head in zip(link.directions, (first, second), (second, first), strict=True):
            if link.name not in dark and direction in certified:
                values = certified[direction]
                found.append(Fiber(direction, tail, head, values["delay_s"], values["rate"]))
    return tuple(found)


def ways(topology: Topology, dark: Collection[str] = ()) -> dict[tuple[str, str], tuple[str, ...]]:
    """The directions that traffic between each two sites takes one after the other, as the gateways' routes lead.

    The shortest lit way, by metres of fiber. With ``routing: multipath`` there may be several, and none is named here
    of any pair; so is a pair that nothing leads between.
    """
    if topology.routing == "multipath":
        return {}
    graph = nx.DiGraph()
    graph.add_nodes_from(site.name for site in topology.sites)
    for link in topology.links:
        if link.name in dark:
            continue
        first, second = link.between
        for direction, tail, head in zip(link.directions, (first, second), (second, first), strict=True):
            best = graph.get_edge_data(tail, head)
            if best is None or link.length_m < best["metres"]:  # of equal ones the first, as the gateways have it
                graph.add_edge(tail, head, metres=link.length_m, direction=direction)
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for tail, paths in nx.all_pairs_dijkstra_path(graph, weight="metres"):
        for head, path in paths.items():
            if tail != head:
                hops = itertools.pairwise(path)
                found[tail, head] = tuple(graph.edges[hop]["direction"] for hop in hops)
    return found


def in_use(
    topology: Topology, sites: Iterable[str], every: Sequence[Fiber], dark: Collection[str] = ()
) -> tuple[Fiber, ...]:
    """Those of ``every`` fiber that traffic among ``sites`` takes; all of them where flows are spread."""
    if topology.routing == "multipath":
        return tuple(every)
    taken = ways(topology, dark)
    ends = list(dict.fromkeys(sites))
    directions = {it for tail in ends for head in ends for it in taken.get((tail, head), ())}
    return tuple(fiber for fiber in every if fiber.direction in directions)


def distances(every: Sequence[Fiber]) -> dict[str, dict[str, float]]:
    """The least one-way delay from each site to each that it reaches over these fibers, in seconds; 0 to itself."""
    graph = nx.DiGraph()
    for fiber in every:
        known = graph.get_edge_data(fiber.tail, fiber.head)
        if known is None or fiber.delay_s < known["delay_s"]:
            graph.add_edge(fiber.tail, fiber.head, delay_s=fiber.delay_s)
    return {tail: dict(found) for tail, found in nx.all_pairs_dijkstra_path_length(graph, weight="delay_s")}
