"""Placement: dimensions from operations, their paths over fibers, and the bytes of aggregation against a ring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from builders.inputs import by_input
from builders.topologies import topology
from builders.twins import twin

from testbed.core.training import placement
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.placement import dimension_of, place
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

CHAIN = topology(
    """
scale: 1000
defaults: {site: {nodes: 2, fabric: {rate: 400G, oversubscription: 2}}}
sites: {left: {}, midway: {}, right: {nodes: 2}}
links:
  one: {between: [left, midway], km: 40}
  two: {between: [midway, right], km: 40}
"""
)
SITES = ("left", "left", "midway", "midway", "right", "right")
LAYOUT = twin("ddp", " ".join(SITES)).layout
N = LAYOUT.payload_bytes
ALL = {"one:left", "one:midway", "two:midway", "two:right"}


def _strategy(words: str) -> Twin:
    return twin(words, " ".join(SITES))


def _placed(strategy: Twin) -> dict[str, Any]:
    return {dimension.name: dimension for dimension in place(strategy, CHAIN).dimensions}


def _data(words: str) -> Any:
    return _placed(_strategy(words))["data"]


def test_a_ring_of_three_sites_crosses_both_fibers_where_a_site_in_the_middle_adds_once() -> None:
    ring, star = _data("hierarchical"), _data("hierarchical:aggregate_at=midway")
    # The hop from one end of the chain to the other crosses both fibers: 2 (S - 1) / S n on each direction.
    assert ring.directions == pytest.approx(dict.fromkeys(ALL, 4 / 3 * N))
    assert star.directions == pytest.approx(dict.fromkeys(ALL, N))
    assert ("left", "right") in ring.between and star.between == (("left", "midway"), ("midway", "right"))
    every = _data("diloco:every=10,aggregate_at=midway")
    assert every.directions == pytest.approx(dict.fromkeys(ALL, N / 10))
    at_the_end = {"one:left": 2 * N, "one:midway": 2 * N, "two:midway": N, "two:right": N}
    assert _data("hierarchical:aggregate_at=left").directions == pytest.approx(at_the_end)


PATHS = {
    "left midway": ["one:midway"],
    "midway right": ["two:right"],
    "left right": ["one:midway", "two:right"],
    "midway left": ["one:left"],
    "right midway": ["two:midway"],
    "right left": ["two:midway", "one:left"],
}
"""The directions that lead from one site to another."""


@pytest.mark.parametrize("name", ["ddp", "hierarchical"])
def test_bytes_between_sites_are_those_of_the_hops(name: str) -> None:
    strategy = _strategy(name)
    expected: dict[str, float] = defaultdict(float)
    for pair, byte_count in site_bytes(strategy.operations(1), SITES).items():
        for direction in PATHS[" ".join(pair)] if byte_count else ():
            expected[direction] += byte_count
    assert place(strategy, CHAIN).directions == pytest.approx(dict(expected))


@by_input(
    "exchanges, dimension",
    {
        "all_reduce gradients, all_gather parameters": "data",
        "send pseudo-gradients": "data",
        "send activations, send gradients": "pipeline",
        "all_reduce activations, all_gather tokens": "tensor",
        "all_to_all activations": "expert",
    },
)
def test_dimension_of_what_a_group_exchanges(exchanges: str, dimension: str) -> None:
    pairs = (words.split() for words in exchanges.split(", "))
    operations = [Operation(kind, (0, 1), 1.0, what) for kind, what in pairs]  # type: ignore[arg-type]
    assert dimension_of(operations) == dimension


class _Parts(Twin):
    """Experts inside each site, and a pipeline from left to right."""

    name = "parts"
    summary = "for this test"

    def operations(self, step: int) -> Sequence[Operation]:
        inside = [Operation("all_to_all", ranks, 100.0, "activations", f"e:{ranks[0]}") for ranks in ((0, 1), (4, 5))]
        return (*inside, Operation("send", (0, 4), 50.0, "activations", "pipe")) if step % 2 else ()

    def equal(self, step: int) -> Sequence[Equal]:
        return ()


def test_a_dimension_inside_a_site_crosses_no_fiber() -> None:
    parts = _Parts({}, LAYOUT)
    placed = _placed(parts)
    assert list(placed) == ["pipeline", "expert"]
    assert placed["expert"].directions == {} and placed["expert"].inside == ("left", "right")
    assert placed["expert"].inside_bytes == pytest.approx({"left": 50.0, "right": 50.0})
    assert placed["pipeline"].directions == pytest.approx({"one:midway": 25.0, "two:right": 25.0})
    pipeline, expert = placement.describe(parts, CHAIN)[:2]
    assert pipeline.startswith("pipeline: 1 group of 2 ranks, between left - right; a step on one:midway 25 B")
    assert expert == "expert: 2 groups of 2 ranks, inside left, right; crosses no fiber"


def test_placement_words_tell_aggregation_against_the_ring_and_three_tiers() -> None:
    *_, last = placement.describe(_strategy("hierarchical:aggregate_at=midway"), CHAIN)
    assert last == "sums at midway: 1.91 MB a step on the busiest direction, 2.55 MB without aggregate_at"
    assert placement.describe_tiers(CHAIN) == (
        "tier node: 400 Gb/s at left, midway, right, each way",
        "tier site: left 400 Gb/s (2 nodes, 2:1), midway 400 Gb/s (2 nodes, 2:1), right 400 Gb/s (2 nodes, 2:1)",
        "tier fiber: one 800 Gb/s, two 800 Gb/s",
    )
