"""What came around the fibers is told by the fibers that a probe was seen to enter, for every pair of sites."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from testbed.core.certification.bypass import (
    ADDRESSED,
    MANAGEMENT,
    NEARBY,
    BypassProbe,
    Pair,
    pairs,
    silent_pairs,
    strays,
    why_bypassed,
)
from testbed.core.topology.model import Topology
from testbed.host.files import catalog

RING = """
scale: 1000
sites: {a: {nodes: 3}, b: {nodes: 1}, c: {nodes: 2}, d: {nodes: 1}}
links:
  ab: {between: [a, b], km: 20}
  bc: {between: [b, c], km: 20}
  cd: {between: [c, d], km: 30}
  da: {between: [d, a], km: 30}
"""


@pytest.fixture
def ring(tmp_path: Path) -> Topology:
    (tmp_path / "ring.yaml").write_text(RING)
    return catalog.load_topology(str(tmp_path / "ring.yaml"))


def probe(*entered: str, sender: str = "a-0", receiver: str = "c-0", sort: str = ADDRESSED) -> BypassProbe:
    return BypassProbe(sort, "IPv6", sender, receiver, frozenset(entered), "fabric0")


@pytest.mark.parametrize("topology", ["ring", "metro-40km", "metro-triangle", "ring-64"])
def test_every_ordered_pair_of_sites_is_probed_in_both_families(ring: Topology, topology: str) -> None:
    shape = ring if topology == "ring" else catalog.load_topology(topology)
    site = {node: each.name for each in shape.sites for node in each.node_names}
    names = [each.name for each in shape.sites]
    found = pairs(shape)
    assert len(set(found)) == len(found) <= 10_000
    assert {(site[it.sender], site[it.receiver], it.family) for it in found} == {
        (a, b, family) for a, b in itertools.permutations(names, 2) for family in ("IPv4", "IPv6")
    }
    assert {it.sender for it in found} == set(shape.node_names) == {it.receiver for it in found}


@pytest.mark.parametrize(
    "entered",
    [("ab:b", "bc:c"), ("da:d", "cd:c"), ("ab:b", "bc:c", "da:d"), ("ab:b", "ab:a", "da:d", "cd:c")],
    ids=["one way", "the other", "with a copy elsewhere", "back and forth"],
)
def test_fibers_that_lead_there_are_no_bypass(ring: Topology, entered: tuple[str, ...]) -> None:
    assert strays(ring, [probe(*entered)]) == ()


@pytest.mark.parametrize(
    "entered",
    [(), ("ab:b",), ("bc:c",), ("ab:a", "bc:b"), ("ab:b", "cd:c")],
    ids=["none", "half of the path", "the other half", "the wrong way", "enough fibers, but a gap from b to d"],
)
def test_fibers_with_a_gap_are_a_bypass(ring: Topology, entered: tuple[str, ...]) -> None:
    stray = probe(*entered)
    assert strays(ring, [probe("ab:b", "bc:c"), stray]) == (stray,)


def test_within_a_site_no_fiber_is_needed_and_the_management_network_reaches_nobody(ring: Topology) -> None:
    inside = probe(sender="a-0", receiver="a-2", sort=NEARBY)
    managed = probe("ab:b", "bc:c", sort=MANAGEMENT)
    assert strays(ring, [inside, probe(sender="a-0", receiver="a-gw", sort=NEARBY), managed]) == (managed,)


def test_both_directions_and_families_of_two_silent_nodes_are_one_sentence() -> None:
    sent = [Pair(a, b, family) for a, b in (("a-0", "c-0"), ("c-0", "a-0")) for family in ("IPv4", "IPv6")]
    assert silent_pairs(sent, []) == tuple(sent)
    assert why_bypassed([], sent) == "no packet from a-0 reaches c-0: cannot rule out a bypass path"
    one = silent_pairs(sent, [BypassProbe(ADDRESSED, "IPv4", it.sender, it.receiver, frozenset()) for it in sent])
    assert why_bypassed([], one) == "no packet from a-0 reaches c-0 over IPv6: cannot rule out a bypass path"
    assert why_bypassed([], []) == ""


def test_a_probe_to_everybody_nearby_answers_for_no_pair() -> None:
    assert silent_pairs([Pair("a-0", "c-0", "IPv6")], [probe(sort=NEARBY)])


def test_the_usual_path_is_named_first_and_the_sentence_stays_short() -> None:
    said = why_bypassed([probe(sort=NEARBY), *(probe(receiver=f"c-{it}") for it in range(5))], [])
    assert said.startswith("a-0 reaches c-0 over IPv6, a-0 reaches c-1 over IPv6, a-0 reaches c-2 over IPv6 and 3 more")
    assert said.endswith("without crossing every fiber of the path")
