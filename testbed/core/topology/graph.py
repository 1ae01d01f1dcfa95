"""Shortest paths and reachability in a graph of sites. Pure.

networkx has both; importing it takes longer than ``up`` spends on routing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

E = TypeVar("E")

__all__ = ["ShortestPaths", "reachable"]


class ShortestPaths(Generic[E]):
    """The shortest paths from ``origin`` to every site it reaches (Dijkstra); among equally long paths the first found.

    Args:
        origin: the site where all paths begin.
        edges: by site, the edges that leave it: the neighbor, the length (0 or more), and the label of the edge.
    """

    def __init__(self, origin: str, edges: Mapping[str, Sequence[tuple[str, float, E]]]) -> None:
        self._lengths: dict[str, float] = {}
        self._last_edges: dict[str, tuple[str, E]] = {}
        order = itertools.count()
        frontier: list[tuple[float, int, str, tuple[str, E] | None]] = [(0.0, next(order), origin, None)]
        while frontier:
            length, _, site, last_edge = heapq.heappop(frontier)
            if site in self._lengths:
                continue
            self._lengths[site] = length
            if last_edge is not None:
                self._last_edges[site] = last_edge
            for neighbor, further, label in edges.get(site, ()):
                if neighbor not in self._lengths:
                    heapq.heappush(frontier, (length + further, next(order), neighbor, (site, label)))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the sites reached, the nearest first; the origin is one of them."""
        return iter(self._lengths)

    def length(self, site: str) -> float:
        """Return the length of the path to ``site``; infinite if it is unreachable."""
        return self._lengths.get(site, math.inf)

    def path(self, site: str) -> tuple[E, ...] | None:
        """Return the labels of the edges on the path to ``site``, in order; None if it is unreachable."""
        if site not in self._lengths:
            return None
        labels = []
        while site in self._last_edges:
            site, label = self._last_edges[site]
            labels.append(label)
        return tuple(reversed(labels))


def reachable(origin: str, links: Iterable[tuple[str, str]]) -> set[str]:
    """Return the sites that ``links``, pairs of connected sites, connect to ``origin``, including ``origin`` itself."""
    neighbors: dict[str, set[str]] = {}
    for one, other in links:
        neighbors.setdefault(one, set()).add(other)
        neighbors.setdefault(other, set()).add(one)
    reached, frontier = {origin}, [origin]
    while frontier:
        new = neighbors.get(frontier.pop(), set()) - reached
        reached |= new
        frontier.extend(new)
    return reached
