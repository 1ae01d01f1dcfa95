"""Placement: dimensions from operations, their paths over fibers, and the bytes of aggregation against a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from testbed.core.topology import resolve
from testbed.core.training import placement_words, strategies_built
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.placement import dimension_of, place
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

CHAIN = resolve.load_text(
    b"""
scale: 1000
defaults: {site: {nodes: 2, fabric: {rate: 400G, oversubscription: 2}}}
sites: {left: {}, midway: {}, right: {nodes: 2}}
links:
  one: {between: [left, midway], km: 40}
  two: {between: [midway, right], km: 40}
""",
    "chain.yaml",
)
SITES = ("left", "left", "midway", "midway", "right", "right")
LAYOUT = Layout(SITES, gpt_tensors(), steps=100)
N = LAYOUT.payload_bytes
ALL = {"one:left", "one:midway", "two:midway", "two:right"}


def _place(name: str, **options: Any) -> dict[str, Any]:
    twin = strategies_built.make(name, options, LAYOUT)
    return {it.name: it for it in place(twin, CHAIN).dimensions}


def test_a_ring_of_three_sites_crosses_both_fibers_where_a_site_in_the_middle_adds_once() -> None:
    ring, star = _place("hierarchical")["data"], _place("hierarchical", aggregate_at="midway")["data"]
    # The hop from one end of the chain to the other crosses both fibers: 2 (S - 1) / S n on each direction.
    assert ring.directions == pytest.approx(dict.fromkeys(ALL, 4 / 3 * N))
    assert star.directions == pytest.approx(dict.fromkeys(ALL, N))
    assert ("left", "right") in ring.between and star.between == (("left", "midway"), ("midway", "right"))
    every = _place("diloco", every=10, aggregate_at="midway")["data"]
    assert every.directions == pytest.approx(dict.fromkeys(ALL, N / 10))
    at_the_end = _place("hierarchical", aggregate_at="left")["data"]
    assert at_the_end.directions == pytest.approx({**dict.fromkeys(("one:left", "one:midway"), 2 * N),
                                                   **dict.fromkeys(("two:midway", "two:right"), N)})  # fmt: skip


def test_bytes_between_sites_are_those_of_the_hops() -> None:
    for name in ("ddp", "hierarchical"):
        twin = strategies_built.make(name, {}, LAYOUT)
        between = site_bytes(twin.operations(1), SITES)
        expected = dict.fromkeys(ALL, 0.0)
        for (here, there), byte_count in between.items():
            path = {("left", "midway"): ["one:midway"], ("midway", "right"): ["two:right"],
                    ("left", "right"): ["one:midway", "two:right"], ("midway", "left"): ["one:left"],
                    ("right", "midway"): ["two:midway"], ("right", "left"): ["two:midway", "one:left"]}  # fmt: skip
            for direction in path[here, there]:
                expected[direction] += byte_count
        found = place(twin, CHAIN).directions
        assert found == pytest.approx({key: it for key, it in expected.items() if it}), name


def test_dimensions_follow_from_what_a_group_exchanges() -> None:
    def each(kind: str, what: str) -> Operation:
        return Operation(kind, (0, 1), 1.0, what)  # type: ignore[arg-type]

    assert dimension_of([each("all_reduce", "gradients"), each("all_gather", "parameters")]) == "data"
    assert dimension_of([each("send", "pseudo-gradients")]) == "data"
    assert dimension_of([each("send", "activations"), each("send", "gradients")]) == "pipeline"
    assert dimension_of([each("all_reduce", "activations"), each("all_gather", "tokens")]) == "tensor"
    assert dimension_of([each("all_to_all", "activations")]) == "expert"


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
    found = {it.name: it for it in place(_Parts({}, LAYOUT), CHAIN).dimensions}
    assert list(found) == ["pipeline", "expert"]
    assert found["expert"].directions == {} and found["expert"].inside == ("left", "right")
    assert found["expert"].inside_bytes == pytest.approx({"left": 50.0, "right": 50.0})
    assert found["pipeline"].directions == pytest.approx({"one:midway": 25.0, "two:right": 25.0})
    said = placement_words.lines(_Parts({}, LAYOUT), CHAIN)
    assert said[0].startswith("pipeline: 1 group of 2 ranks, between left - right; a step on one:midway 25 B")
    assert said[1] == "expert: 2 groups of 2 ranks, inside left, right; crosses no fiber"


def test_words_tell_aggregation_against_the_ring_and_three_tiers() -> None:
    twin = strategies_built.make("hierarchical", {"aggregate_at": "midway"}, LAYOUT)
    *_, last = placement_words.lines(twin, CHAIN)
    assert last == "sums at midway: 1.91 MB a step on the busiest direction, 2.55 MB without aggregate_at"
    assert placement_words.tiers(CHAIN) == (
        "tier node: 400 Gb/s at left, midway, right, each way",
        "tier site: left 400 Gb/s (2 nodes, 2:1), midway 400 Gb/s (2 nodes, 2:1), right 400 Gb/s (2 nodes, 2:1)",
        "tier fiber: one 800 Gb/s, two 800 Gb/s",
    )
