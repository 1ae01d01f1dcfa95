"""What came around the fibers is told by the fibers that a probe was seen to enter, for every pair of sites."""

from __future__ import annotations

import itertools

import pytest
from builders.tables import table
from builders.topologies import topology

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
from testbed.host.files import catalog

RING = topology("""
scale: 1000
sites: {a: {nodes: 3}, b: {nodes: 1}, c: {nodes: 2}, d: {nodes: 1}}
links:
  ab: {between: [a, b], km: 20}
  bc: {between: [b, c], km: 20}
  cd: {between: [c, d], km: 30}
  da: {between: [d, a], km: 30}
""")


def probe(*entered: str, sender: str = "a-0", receiver: str = "c-0", sort: str = ADDRESSED) -> BypassProbe:
    return BypassProbe(sort, "IPv6", sender, receiver, frozenset(entered), "fabric0")


@pytest.mark.parametrize("name", ["ring", "metro-40km", "metro-triangle", "ring-64"])
def test_pairs_of_sites_are_all_probed_in_both_directions_and_families(name: str) -> None:
    shape = RING if name == "ring" else catalog.load_topology(name)
    site = {node: site.name for site in shape.sites for node in site.node_names}
    probed = pairs(shape)
    assert len(set(probed)) == len(probed) <= 10_000
    assert {(site[pair.sender], site[pair.receiver], pair.family) for pair in probed} == {
        (*ends, family)
        for ends in itertools.permutations((site.name for site in shape.sites), 2)
        for family in ("IPv4", "IPv6")
    }
    assert {pair.sender for pair in probed} == set(shape.node_names) == {pair.receiver for pair in probed}


@table(
    "entered",
    {
        "one way": "ab:b bc:c",
        "the other": "da:d cd:c",
        "with a copy elsewhere": "ab:b bc:c da:d",
        "back and forth": "ab:b ab:a da:d cd:c",
    },
)
def test_strays_are_none_where_fibers_lead_there(entered: str) -> None:
    assert strays(RING, [probe(*entered.split())]) == ()


@table(
    "entered",
    {
        "none": "",
        "half of the path": "ab:b",
        "the other half": "bc:c",
        "the wrong way": "ab:a bc:b",
        "enough fibers, but a gap from b to d": "ab:b cd:c",
    },
)
def test_strays_over_fibers_with_a_gap(entered: str) -> None:
    stray = probe(*entered.split())
    assert strays(RING, [probe("ab:b", "bc:c"), stray]) == (stray,)


def test_strays_need_no_fiber_within_a_site_and_the_management_network_reaches_nobody() -> None:
    inside = [probe(receiver=receiver, sort=NEARBY) for receiver in ("a-2", "a-gw")]
    managed = probe("ab:b", "bc:c", sort=MANAGEMENT)
    assert strays(RING, [*inside, managed]) == (managed,)


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
