"""Fibers between sites, as bounds and byte counts need them: the capacity of each direction and the paths of traffic.

Everything else on the path (fabrics, gateways, the hosts' own stack) counts as free of delay and of limits: leaving it
out can only make a bound lower, never too high.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.topology.direction import Direction
from testbed.core.topology.graph import ShortestPaths
from testbed.core.topology.model import Topology

__all__ = ["FiberDirection", "distances", "fibers", "in_use", "routes"]


@dataclass(frozen=True)
class FiberDirection:
    """One direction that is up, from the site ``tail`` to the site ``head``. ``rate`` is payload, in byte/s;
    ``delay_s`` is one way."""

    direction: str
    tail: str
    head: str
    delay_s: float
    rate: float


def fibers(
    topology: Topology, certified: Mapping[str, Mapping[str, float]], down: Collection[str] = ()
) -> tuple[FiberDirection, ...]:
    """Return the directions of ``topology`` that are ``certified`` (direction to delay_s and rate, as in
    ``Validation.links``).

    Links named in ``down``, and directions without certified values, are left out.
    """
    measured = []
    for link in topology.links:
        for direction in link.directions:
            if link.name not in down and direction in certified:
                values = certified[direction]
                measured.append(
                    FiberDirection(direction, direction.tail, direction.head, values["delay_s"], values["rate"])
                )
    return tuple(measured)


def routes(topology: Topology, down: Collection[str] = ()) -> dict[tuple[str, str], tuple[Direction, ...]]:
    """Return the directions that traffic between each two sites takes in sequence, following the gateways' routes.

    This is the shortest path that is up, by metres of fiber. A pair without a path is left out. With ``routing:
    multipath`` a pair may have several paths, and the result is empty.
    """
    if topology.routing == "multipath":
        return {}
    edges: dict[str, list[tuple[str, float, Direction]]] = {site.name: [] for site in topology.sites}
    for link in topology.links:
        if link.name not in down:
            for direction in link.directions:
                edges[direction.tail].append((direction.head, link.length_m, direction))
    paths = {tail: ShortestPaths(tail, edges) for tail in edges}
    return {(tail, head): paths[tail].path(head) or () for tail in edges for head in paths[tail] if head != tail}


def in_use(
    topology: Topology, sites: Iterable[str], every: Sequence[FiberDirection], down: Collection[str] = ()
) -> tuple[FiberDirection, ...]:
    """Return those of ``every`` fiber that traffic among ``sites`` takes; all of them where flows are spread."""
    if topology.routing == "multipath":
        return tuple(every)
    taken = routes(topology, down)
    ends = list(dict.fromkeys(sites))
    directions = {direction for tail in ends for head in ends for direction in taken.get((tail, head), ())}
    return tuple(fiber for fiber in every if fiber.direction in directions)


def distances(every: Sequence[FiberDirection]) -> dict[str, dict[str, float]]:
    """Return the least one-way delay between sites that these fibers connect, in seconds; 0 from a site to itself."""
    edges: dict[str, list[tuple[str, float, str]]] = {}
    for fiber in every:
        edges.setdefault(fiber.tail, []).append((fiber.head, fiber.delay_s, fiber.direction))
        edges.setdefault(fiber.head, [])
    paths = {tail: ShortestPaths(tail, edges) for tail in edges}
    return {tail: {head: paths[tail].length(head) for head in paths[tail]} for tail in edges}
