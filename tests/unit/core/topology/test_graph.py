"""Shortest paths and reachability against networkx; directions as strings."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.topology.direction import Direction
from testbed.core.topology.graph import ShortestPaths, reachable

SITES = "abcdefg"
# The length of each link is another power of two, so that no two paths are equally long.
LINKS = st.lists(st.tuples(st.sampled_from(SITES), st.sampled_from(SITES)), max_size=14, unique=True)


@given(links=LINKS)
def test_shortest_paths_are_those_of_networkx(links: list[tuple[str, str]]) -> None:
    lengths = {link: float(2**place) for place, link in enumerate(links)}
    edges: dict[str, list[tuple[str, float, tuple[str, str]]]] = {}
    graph = networkx.DiGraph()
    graph.add_node("a")
    for tail, head in links:
        edges.setdefault(tail, []).append((head, lengths[tail, head], (tail, head)))
        graph.add_edge(tail, head, weight=lengths[tail, head])
    paths = ShortestPaths("a", edges)
    expected_lengths, expected_paths = networkx.single_source_dijkstra(graph, "a")
    assert list(paths) == sorted(expected_lengths, key=expected_lengths.__getitem__)
    for site in SITES:
        assert paths.length(site) == expected_lengths.get(site, math.inf)
        sites = expected_paths.get(site)
        assert paths.path(site) == (None if sites is None else tuple(itertools.pairwise(sites)))


def test_of_equally_long_paths_the_first_found_is_taken() -> None:
    edges = {"a": [("b", 1.0, "first"), ("b", 1.0, "second"), ("c", 0.5, "around")], "c": [("b", 0.5, "late")]}
    assert ShortestPaths("a", edges).path("b") == ("first",)


@given(links=LINKS)
def test_reachable_sites_are_the_component_of_networkx(links: list[tuple[str, str]]) -> None:
    graph = networkx.Graph(links)
    graph.add_node("a")
    assert reachable("a", links) == networkx.node_connected_component(graph, "a")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda direction: pickle.loads(pickle.dumps(direction))])
def test_a_direction_equals_its_name_and_keeps_its_sites_when_copied(copied: object) -> None:
    direction = copied(Direction("north", "east", "west"))  # type: ignore[operator]
    assert (direction.link, direction.tail, direction.head) == ("north", "east", "west")
    assert direction == "north:west"
    assert {"north:west": 1}[direction] == 1
    assert json.dumps({direction: direction}) == '{"north:west": "north:west"}'
