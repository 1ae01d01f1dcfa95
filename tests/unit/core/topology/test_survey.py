"""Facts derived from a topology, compared with figures calculated by hand."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from builders import ROOT
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import METRO, RING, topology

from testbed.core.physics import facts
from testbed.core.physics.optics import OPTICS
from testbed.core.plan.build import build
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import Rings, rings_of, survey
from testbed.errors import FileMistakes
from testbed.host.files import catalog

SHIPPED = sorted(file.stem for file in (ROOT / "topologies").glob("*.yaml"))


# ---- shipped labs

CLASSES = {
    "intra-metro-5km": "intra-metro",
    "bay-area": "regional",
    "metro-40km": "metro",
    "metro-80km": "metro",
    "metro-single": "metro",
    "metro-triangle": "metro",
    "regional-400km": "regional",
    "regional-ring": "regional",
    "regional-protected": "regional",
    "ring-64": "regional",
    "longhaul-1000km": "long-haul",
    "continental-4000km": "continental",
    "intercontinental-9000km": "intercontinental",
}


def test_a_lab_of_every_class_is_shipped() -> None:
    assert {name: survey(catalog.load_topology(name)).radius_class for name in SHIPPED} == CLASSES
    assert {radius_class.name for radius_class in facts.RADIUS_CLASSES} == {*CLASSES.values()}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_lab_has_a_plan_and_light_to_spare(name: str) -> None:
    lab = catalog.load_topology(name)
    assert len(build(lab)) > 50
    for link in survey(lab).links:
        assert link.margin_m >= 0
        # No amplifier carries light over more than 120 km of fiber: 26 dB at 0.22 dB/km.
        assert link.length_m / link.spans <= 120e3


def test_the_plan_of_64_sites_is_made_in_seconds() -> None:
    began = time.process_time()
    lab = catalog.load_topology("ring-64")
    plan, pairs = build(lab), survey(lab).pairs
    assert time.process_time() - began < 3.0
    assert (len(lab.sites), len(lab.links), len(pairs)) == (64, 64, 64 * 63 / 2)
    assert len(plan) > 64 * 63 * 2, "a route of each family from every site to every other"
    assert max(pair.length_m for pair in pairs) == 32 * 12e3
    assert max(len(pair.via) for pair in pairs) == 32


@pytest.mark.parametrize("name", SHIPPED)
def test_hollow_core_shortens_every_delay_by_30_percent(name: str) -> None:
    glass = catalog.load_topology(name)
    hollow = catalog.load_topology(name, {"links.*.fiber": "hollow-core"})
    for slow, fast in zip(glass.links, hollow.links, strict=True):
        assert fast.delay_s == pytest.approx(0.7 * slow.delay_s)
    for slow_pair, fast_pair in zip(survey(glass).pairs, survey(hollow).pairs, strict=True):
        assert fast_pair.rtt_floor_s == pytest.approx(0.7 * slow_pair.rtt_floor_s)


# ---- classes, optics


@by_input(
    "km, name",
    {
        0.5: "intra-metro",
        10: "intra-metro",
        10.1: "metro",
        120: "metro",
        121: "regional",
        600: "regional",
        601: "long-haul",
        2000: "long-haul",
        2001: "continental",
        6000: "continental",
        6001: "intercontinental",
        40000: "intercontinental",
    },
)
def test_classes(km: float, name: str) -> None:
    assert facts.radius_class(km * 1e3).name == name


@by_input(
    "line, spans",
    {
        "800ZR 120": 1,  # a single span, amplified at its ends
        "OpenZR+ 80": 1,
        "OpenZR+ 81": 2,
        "400G-LH 1000": 13,  # 12 huts, 77 km apart
        "SLTE 9000": 150,  # 149 repeaters, 60 km apart
    },
)
def test_spans_between_amplifiers(line: str, spans: int) -> None:
    optics, km = line.split()
    assert OPTICS[optics].spans(float(km) * 1e3) == spans


@by_input("line, regenerators", {"OTN 4000": 1, "OTN 4600": 2, "SLTE 9000": 0})
def test_regenerators(line: str, regenerators: int) -> None:
    optics, km = line.split()
    assert OPTICS[optics].regenerators(float(km) * 1e3) == regenerators


@by_input(
    "line, offered",
    {"800ZR 130": "OpenZR\\+", "OpenZR+ 481": "400G-LH", "400G-LH 2001": "OTN", "SLTE 12001": "OTN"},
)
def test_a_link_beyond_reach_is_refused_with_what_would_do(line: str, offered: str) -> None:
    optics, km = line.split()
    with pytest.raises(FileMistakes, match=f"use optics: {offered}"):
        lab(f"ab: {{between: [a, b], km: {km}, optics: {optics}}}")


def test_huts_on_the_way_add_no_delay_unless_the_file_counts_them() -> None:
    bare = survey(catalog.load_topology("longhaul-1000km")).links[0]
    assert (bare.spans, bare.huts, bare.rtt_s) == (13, 0, pytest.approx(10e-3))
    counted = survey(catalog.load_topology("longhaul-1000km", {"links.*.huts": 12})).links[0]
    assert counted.rtt_s == pytest.approx(10e-3 + 2 * 12 * 0.1e-6)


def test_rate_times_round_trip() -> None:
    north = survey(METRO).links[0]
    assert north.real_bandwidth_delay_bytes == pytest.approx(40e6)  # 800 Gb/s x 400 us / 8
    assert north.bandwidth_delay_bytes == pytest.approx(40e3)
    assert (north.margin_m, north.reach_m) == (80e3, 120e3)


# ---- pairs


def test_least_round_trips_go_over_the_shortest_fiber() -> None:
    ring = {pair.between: pair for pair in survey(RING).pairs}["alba", "brava"]
    assert (ring.via, ring.rtt_floor_s) == (("alba-brava",), pytest.approx(0.9e-3))
    detour = lab("direct: {between: [a, c], km: 100}", "ab: {between: [b, a], km: 30}", "bc: {between: [b, c], km: 40}")
    pair = {pair.between: pair for pair in survey(detour).pairs}["a", "c"]
    assert (pair.via, pair.length_m, pair.rtt_floor_s) == (("ab", "bc"), 70e3, pytest.approx(700e-6))


# ---- rings

approx: Any = pytest.approx


@table(
    "links, rings",
    {
        # a - b - c without c - a: the last hop is 2 links long; no direction of a fiber has more than one hop.
        "a chain carries the ring back over the same fibers": (
            ["ab: {between: [a, b], km: 40}", "bc: {between: [b, c], km: 60}"],
            Rings(3, 3, approx(500e-6), approx(10e-12), (40e3, 60e3, 60e3, 40e3)),
        ),
        # The ring a, b, hub over two spokes: a to b over both, b to hub, hub to a; each direction carries one hop.
        "the slowest fiber on the way sets the pace": (
            [
                "spoke-a: {between: [hub, a], km: 10, optics: 400ZR}",
                "spoke-b: {between: [hub, b], km: 10, optics: 800ZR}",
            ],
            Rings(3, 3, approx(100e-6), approx(20e-12), (10e3,) * 4),
        ),
        # A line a - c - b - d and the ring a, b, c, d: from c to b go a to b and c to d, back b to c and d to a.
        # The longest hop is d to a, over all 30 km.
        "hops that share a direction share its rate": (
            [f"line-{ends}: {{between: [{ends[0]}, {ends[1]}], km: 10}}" for ends in ("ac", "cb", "bd")],
            Rings(4, 4, approx(150e-6), approx(2 * 10e-12), (10e3,) * 8),
        ),
    },
)
def test_rings_of_a_lab(links: list[str], rings: Rings) -> None:
    assert rings_of(lab(*links)) == rings


def lab(*links: str) -> Topology:
    """Join the sites that links are between, in alphabetical order."""
    sites = sorted({site for link in links for site in re.search(r"\[(\w+), (\w+)\]", link).groups()})  # type: ignore[union-attr]
    return topology(f"sites: {{{': , '.join(sites)}: }}\nlinks: {{{', '.join(links)}}}\n")


def test_one_site_crosses_nothing() -> None:
    alone = topology("sites: {a: {nodes: 4}}\n")
    facts_of_one = survey(alone)
    assert (facts_of_one.radius_class, facts_of_one.pairs, facts_of_one.links, rings_of(alone)) == (None, (), (), None)


def test_rings_are_those_of_full_scale() -> None:
    assert rings_of(catalog.load_topology("metro-40km", {"scale": 1})) == rings_of(METRO)
