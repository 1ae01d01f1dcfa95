"""Facts derived from a topology, compared with figures calculated by hand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from builders.inputs import by_input

from testbed.core.physics import facts
from testbed.core.physics.optics import OPTICS
from testbed.core.plan.build import build
from testbed.core.topology.resolve import load_text
from testbed.core.topology.survey import Rings, Survey, rings_of, survey
from testbed.errors import FileMistakes
from testbed.host.files import catalog

SHIPPED = sorted(path.stem for path in (Path(__file__).resolve().parents[4] / "topologies").glob("*.yaml"))


def survey_of(name: str) -> Survey:
    return survey(catalog.load_topology(name))


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
    assert {name: survey_of(name).radius_class for name in SHIPPED} == CLASSES
    assert {each.name for each in facts.RADIUS_CLASSES} == set(CLASSES.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_lab_has_a_plan_and_light_to_spare(name: str) -> None:
    topology = catalog.load_topology(name)
    assert len(build(topology)) > 50
    for link in survey(topology).links:
        assert link.margin_m >= 0
        # No amplifier carries light over more than 120 km of fiber: 26 dB at 0.22 dB/km.
        assert link.length_m / link.spans <= 120e3


def test_the_plan_of_64_sites_is_made_in_seconds() -> None:
    began = time.process_time()
    topology = catalog.load_topology("ring-64")
    plan = build(topology)
    found = survey(topology)
    assert time.process_time() - began < 3.0
    assert (len(topology.sites), len(topology.links)) == (64, 64)
    assert len(found.pairs) == 64 * 63 / 2
    assert len(plan) > 64 * 63 * 2, "a route of each family from every site to every other"
    assert max(pair.length_m for pair in found.pairs) == 32 * 12e3
    assert max(len(pair.via) for pair in found.pairs) == 32


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


def test_amplifiers_stand_between_spans() -> None:
    assert OPTICS["800ZR"].spans(120e3) == 1, "a single span, amplified at its ends"
    assert OPTICS["OpenZR+"].spans(80e3) == 1
    assert OPTICS["OpenZR+"].spans(81e3) == 2
    assert OPTICS["400G-LH"].spans(1000e3) == 13, "12 huts, 77 km apart"
    assert OPTICS["SLTE"].spans(9000e3) == 150, "149 repeaters, 60 km apart"
    assert OPTICS["OTN"].regenerators(4000e3) == 1
    assert OPTICS["OTN"].regenerators(4600e3) == 2
    assert OPTICS["SLTE"].regenerators(9000e3) == 0


@pytest.mark.parametrize(
    "km, optics, offered",
    [(130, "800ZR", "OpenZR\\+"), (481, "OpenZR+", "400G-LH"), (2001, "400G-LH", "OTN"), (12001, "SLTE", "OTN")],
)
def test_a_link_beyond_reach_is_refused_with_what_would_do(km: float, optics: str, offered: str) -> None:
    text = f"sites: {{a: , b: }}\nlinks: {{ab: {{between: [a, b], km: {km}, optics: {optics}}}}}\n"
    with pytest.raises(FileMistakes, match=f"use optics: {offered}"):
        load_text(text.encode(), "far.yaml")


def test_huts_on_the_way_add_no_delay_unless_the_file_counts_them() -> None:
    bare = survey_of("longhaul-1000km").links[0]
    assert (bare.spans, bare.huts, bare.rtt_s) == (13, 0, pytest.approx(10e-3))
    counted = survey(catalog.load_topology("longhaul-1000km", {"links.*.huts": 12})).links[0]
    assert counted.rtt_s == pytest.approx(10e-3 + 2 * 12 * 0.1e-6)


def test_rate_times_round_trip() -> None:
    north = survey_of("metro-40km").links[0]
    assert north.real_bandwidth_delay_bytes == pytest.approx(40e6)  # 800 Gb/s x 400 us / 8
    assert north.bandwidth_delay_bytes == pytest.approx(40e3)
    assert (north.margin_m, north.reach_m) == (80e3, 120e3)


# ---- pairs


def test_least_round_trips_go_over_the_shortest_fiber() -> None:
    pairs = {pair.between: pair for pair in survey_of("regional-ring").pairs}
    assert pairs["alba", "brava"].via == ("alba-brava",)
    assert pairs["alba", "brava"].rtt_floor_s == pytest.approx(0.9e-3)
    text = (
        "sites: {a: , b: , c: }\nlinks:\n"
        "  direct: {between: [a, c], km: 100}\n"
        "  ab: {between: [b, a], km: 30}\n"
        "  bc: {between: [b, c], km: 40}\n"
    )
    found = {pair.between: pair for pair in survey(load_text(text.encode(), "detour.yaml")).pairs}
    assert found["a", "c"].via == ("ab", "bc")
    assert found["a", "c"].length_m == 70e3
    assert found["a", "c"].rtt_floor_s == pytest.approx(700e-6)


# ---- rings


def test_a_chain_carries_the_ring_back_over_the_same_fibers() -> None:
    """a - b - c without c - a: the last hop is 2 links long, and no direction of a fiber has more than one hop."""
    text = "sites: {a: , b: , c: }\nlinks:\n  ab: {between: [a, b], km: 40}\n  bc: {between: [b, c], km: 60}\n"
    found = rings_of(load_text(text.encode(), "chain.yaml"))
    assert found == Rings(3, 3, pytest.approx(500e-6), pytest.approx(10e-12), (40e3, 60e3, 60e3, 40e3))


def test_the_slowest_fiber_on_the_way_sets_the_pace() -> None:
    """The ring a, b, hub over two spokes: a to b over both, b to hub, hub to a; each direction carries one hop."""
    text = (
        "sites: {a: , b: , hub: }\nlinks:\n"
        "  spoke-a: {between: [hub, a], km: 10, optics: 400ZR}\n"
        "  spoke-b: {between: [hub, b], km: 10, optics: 800ZR}\n"
    )
    found = rings_of(load_text(text.encode(), "star.yaml"))
    assert found == Rings(3, 3, pytest.approx(100e-6), pytest.approx(20e-12), (10e3,) * 4)


def test_hops_that_share_a_direction_share_its_rate() -> None:
    """A line a - c - b - d and the ring a, b, c, d: from c to b go a to b and c to d, back b to c and d to a."""
    text = "sites: {a: , b: , c: , d: }\nlinks:\n" + "".join(
        f"  line-{one}{two}: {{between: [{one}, {two}], km: 10}}\n" for one, two in ("ac", "cb", "bd")
    )
    # The longest hop is d to a, over all 30 km.
    found = rings_of(load_text(text.encode(), "line.yaml"))
    assert found == Rings(4, 4, pytest.approx(150e-6), pytest.approx(2 * 10e-12), (10e3,) * 8)


def test_one_site_crosses_nothing() -> None:
    alone = load_text(b"sites: {a: {nodes: 4}}\n", "alone.yaml")
    found = survey(alone)
    assert (found.radius_class, found.pairs, found.links, rings_of(alone)) == (None, (), (), None)


def test_rings_are_those_of_full_scale() -> None:
    assert rings_of(catalog.load_topology("metro-40km", {"scale": 1})) == rings_of(catalog.load_topology("metro-40km"))
