"""Faults compile to Steps, or report their mistakes before anything on the host changes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.fault_values import shapes

from testbed.core.faults.brownout import FLOOR, MOST_PHASES, margin_ramp, ramp
from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault, registry
from testbed.core.faults.fault_target import target_links
from testbed.core.physics.margin import frame_loss
from testbed.core.plan.properties import Carrier
from testbed.core.plan.step import Property
from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import load_text
from testbed.errors import UnknownName, UserError
from testbed.host.files import catalog


@pytest.fixture(scope="module")
def metro() -> Topology:
    return catalog.load_topology("metro-40km", None)


@pytest.fixture(scope="module")
def ring() -> Topology:
    return catalog.load_topology("regional-ring", None)


def darkened(steps: tuple[Property, ...]) -> set[str]:
    assert all(isinstance(step, Carrier) and step.namespace == "plant" and not step.up for step in steps)
    return {step.interface for step in steps if isinstance(step, Carrier)}


# ---- targets


def test_a_cut_takes_both_ends_of_a_link(metro: Topology) -> None:
    compiled = compile_fault(metro, "cut", "north", {})
    assert darkened(compiled.steps) == {"north-a", "north-b"}
    assert compiled.links == ("north",)


def test_a_dig_cuts_every_link_in_the_duct(ring: Topology) -> None:
    compiled = compile_fault(ring, "cut", "river-bridge", {})
    assert compiled.links == ("alba-brava", "costa-alba")
    assert darkened(compiled.steps) == {"alba-brava-a", "alba-brava-b", "costa-alba-a", "costa-alba-b"}
    assert compile_fault(ring, "cut", "valley", {}).links == ("brava-costa",)


@pytest.mark.parametrize(
    ("target", "links", "toward"),
    [("north", ("north",), ""), ("north:west", ("north",), "west"), ("south:east", ("south",), "east")],
)
def test_what_a_target_names(metro: Topology, target: str, links: tuple[str, ...], toward: str) -> None:
    assert target_links(metro, target) == (links, toward)


@pytest.mark.parametrize(
    ("target", "offered"),
    [
        ("nort", "did you mean north"),
        ("north:wets", "did you mean west"),
        ("", "available: "),
        ("north:north", "east, west"),
    ],
)
@pytest.mark.parametrize("fault", ["cut", "impair"])
def test_an_unknown_target_offers_the_nearest(metro: Topology, fault: str, target: str, offered: str) -> None:
    parameters = {"loss": "1%"} if fault == "impair" else {}
    with pytest.raises(UnknownName, match=offered):
        compile_fault(metro, fault, target, parameters)


def test_ducts_are_offered_too_and_have_no_directions(ring: Topology) -> None:
    with pytest.raises(UnknownName, match="did you mean river-bridge"):
        compile_fault(ring, "cut", "river-brige", {})
    with pytest.raises(UnknownName, match="river-bridge:alba"):
        compile_fault(ring, "impair", "river-bridge:alba", {"loss": "1"})


def test_unknown_faults_and_parameters_offer_what_there_is(metro: Topology) -> None:
    with pytest.raises(UnknownName, match="did you mean cut"):
        compile_fault(metro, "cutt", "north", {})
    with pytest.raises(UnknownName, match="did you mean loss"):
        compile_fault(metro, "impair", "north", {"los": "1%"})
    with pytest.raises(UnknownName, match="available: carrier"):
        compile_fault(metro, "cut", "north", {"loss": "1%"})


# ---- cuts of one direction, and silent ones


@pytest.mark.parametrize(
    ("target", "carrier", "down"),
    [
        ("north:west", None, {"north-b"}),  # -b faces west, whose port receives nothing any more
        ("north:east", None, {"north-a"}),
        ("north:west", "receiver", {"north-b"}),
        ("north:west", "both", {"north-a", "north-b"}),
        ("north", "receiver", {"north-a", "north-b"}),
        ("north", "both", {"north-a", "north-b"}),
    ],
)
def test_whose_port_loses_its_carrier(metro: Topology, target: str, carrier: str | None, down: set[str]) -> None:
    compiled = compile_fault(metro, "cut", target, {"carrier": carrier} if carrier else {})
    assert darkened(compiled.steps) == down
    assert compiled.links == ("north",)
    assert len(compiled.phases) == 1


def test_a_silent_cut_takes_the_light_and_no_carrier(metro: Topology, ring: Topology) -> None:
    assert shapes(metro, compile_fault(metro, "cut", "north:west", {"carrier": "silent"}).steps).keys() == {
        "north:west"
    }
    both = shapes(metro, compile_fault(metro, "cut", "north", {"carrier": "silent"}).steps)
    assert both.keys() == {"north:west", "north:east"}
    assert all(it.loss == 1.0 for it in both.values())
    dug = shapes(ring, compile_fault(ring, "cut", "river-bridge", {"carrier": "silent"}).steps)
    assert dug.keys() == {"alba-brava:alba", "alba-brava:brava", "costa-alba:costa", "costa-alba:alba"}


def test_nothing_comes_through_a_silent_cut_whatever_the_link_does() -> None:
    """Neither a double nor what bursts and chains would let pass; and emulators take it."""
    text = b"""
sites: {east: , west: }
links:
  north: {between: [east, west], km: 40, impair: {duplicate: 10%, loss: 1%, burst: 8, reorder: 1%, reorder_by: 1ms}}
  south: {between: [east, west], km: 47, impair: {p: 1%, r: 10%, corrupt: 1%, corrupt_survives: true}}
"""
    topology = load_text(text, "lab.yaml")
    for link in ("north", "south"):
        for shape in shapes(topology, compile_fault(topology, "cut", link, {"carrier": "silent"}).steps).values():
            assert shape.mean_loss == 1.0
            assert shape.duplicate == 0.0
            assert not list(shape.findings())


# ---- faults that take time


def test_a_flap_is_dark_and_lit_in_turn(metro: Topology) -> None:
    compiled = compile_fault(metro, "flap", "north", {"down": "100ms", "up": "300ms"})
    found = list(itertools.islice(compiled.timeline(), 6))
    assert [round(it.at_s, 9) for it in found] == [0, 0.1, 0.4, 0.5, 0.8, 0.9]
    assert [darkened(it.steps) for it in found] == [{"north-a", "north-b"}, set()] * 3
    assert [it.name for it in found[:2]] == ["dark", "lit"]
    assert compiled.lasts_s is None, "until it is healed"


def test_a_flap_of_one_direction_takes_its_receivers_carrier(metro: Topology) -> None:
    assert darkened(compile_fault(metro, "flap", "north:west", {}).steps) == {"north-b"}
    assert (
        shapes(metro, compile_fault(metro, "flap", "north:west", {"carrier": "silent"}).steps)["north:west"].loss == 1
    )


@settings(deadline=None)
@given(down=st.integers(20, 10_000), up=st.integers(20, 10_000), times=st.integers(1, 50))
def test_a_flap_is_dark_as_often_as_was_asked_and_ends_lit(down: int, up: int, times: int) -> None:
    metro = catalog.load_topology("metro-40km", None)
    compiled = compile_fault(metro, "flap", "north", {"down": f"{down}ms", "up": f"{up}ms", "times": str(times)})
    found = list(compiled.timeline())
    assert sum(bool(it.steps) for it in found) == times
    assert found[-1].steps, "it ends out of the dark: that is what its being over means"
    assert compiled.lasts_s == pytest.approx((times * down + (times - 1) * up) / 1000)
    gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(found)]
    assert gaps == pytest.approx(([down / 1000, up / 1000] * times)[: len(gaps)])


@settings(deadline=None)
@given(
    begin=st.floats(FLOOR, 0.5),
    rise=st.floats(1.001, 1e6),
    over_s=st.floats(0.02, 7 * 24 * 3600),
)
def test_a_ramp_is_monotone_bounded_geometric_and_ends_where_it_must(begin: float, rise: float, over_s: float) -> None:
    end = min(1.0, begin * rise)
    found = ramp(begin, end, over_s)
    times, losses = zip(*found, strict=True)
    assert (times[0], times[-1]) == (0.0, over_s)
    assert (losses[0], losses[-1]) == (pytest.approx(begin), end)
    assert list(times) == sorted(set(times))
    assert list(losses) == sorted(losses)
    assert len(found) <= MOST_PHASES + 1
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= 0.1 * (1 + 1e-9) or len(found) == MOST_PHASES + 1
    assert min(gaps) >= 0.01
    # The logarithm is a straight line.
    for t, loss in found:
        assert math.log(loss) == pytest.approx(math.log(begin) + math.log(end / begin) * t / over_s, abs=1e-6)


@settings(deadline=None)
@given(begin=st.floats(FLOOR, 1e-3), margin=st.floats(-2, -0.6), over_s=st.floats(0.02, 1000))
def test_a_ramp_by_its_margin_is_monotone_and_ends_where_it_must(begin: float, margin: float, over_s: float) -> None:
    times, losses = zip(*margin_ramp(begin, margin, over_s), strict=True)
    assert (times[0], times[-1]) == (0.0, over_s)
    assert (losses[0], losses[-1]) == (pytest.approx(begin, rel=1e-6), frame_loss(margin))
    assert list(losses) == sorted(losses)
    assert len(losses) <= MOST_PHASES + 1


def test_a_brown_out_by_its_margin(metro: Topology) -> None:
    compiled = compile_fault(metro, "brown-out", "north", {"margin": "-0.7dB", "over": "10s"})
    losses = [shapes(metro, it.steps)["north:west"].loss for it in compiled.phases]
    assert losses[0] == pytest.approx(FLOOR, rel=1e-6)
    assert losses[-1] == pytest.approx(0.0172, rel=0.01)
    # Evenly in dB is about evenly in the logarithm: nowhere farther than a factor of three from the geometric ramp.
    straight = [loss for _, loss in ramp(FLOOR, losses[-1], 10.0)]
    assert all(1 / 3 < curved / even < 3 for curved, even in zip(losses, straight, strict=True))


def test_a_brown_out_keeps_all_else(metro: Topology) -> None:
    compiled = compile_fault(metro, "brown-out", "north:west", {"loss": "5%", "over": "10s"})
    own = metro.link("north").impairment("north:west")
    for phase in compiled.phases:
        ((name, it),) = shapes(metro, phase.steps).items()
        assert name == "north:west"
        assert (it.delay_s, it.rate_bps, it.queue_bytes) == (own.delay_s, own.rate_bps, own.queue_bytes)
    losses = [shapes(metro, phase.steps)["north:west"].loss for phase in compiled.phases]
    assert (losses[0], losses[-1], len(losses)) == (FLOOR, 0.05, 101)
    assert compiled.lasts_s is None
    held = compile_fault(metro, "brown-out", "north", {"loss": "5%", "over": "10s", "hold": "5s", "from": "1%"})
    assert held.lasts_s == 15
    assert shapes(metro, held.steps)["north:east"].loss == 0.01


def test_a_brown_out_never_makes_a_link_better_than_it_is() -> None:
    text = b"""sites: {a: {}, b: {}}
links: {ab: {between: [a, b], km: 40, loss: 1%, toward: {b: {p: 1%, r: 9%}}}}
"""
    topology = load_text(text, "x.yaml")
    compiled = compile_fault(topology, "brown-out", "ab", {"loss": "50%", "over": "1s"})
    first, last = shapes(topology, compiled.steps), shapes(topology, compiled.phases[-1].steps)
    assert first["ab:a"].mean_loss == pytest.approx(0.01)
    assert first["ab:b"].mean_loss == pytest.approx(0.1)
    assert (last["ab:a"].loss, compiled.phases[0].name) == (0.5, "loss 10%")
    assert last["ab:b"].mean_loss == pytest.approx(0.5)
    for written in ({"loss": "5%"}, {"margin": "-0.7dB"}, {"loss": "5%", "from": "0.1%"}):
        with pytest.raises(UserError, match="10%"):
            compile_fault(topology, "brown-out", "ab", {**written, "over": "1s"})


def test_a_brown_out_of_a_link_with_bursts_leaves_them_where_they_can_be() -> None:
    text = b"sites: {a: , b: }\nlinks: {ab: {between: [a, b], km: 9, loss: 0.1%, impair: {burst: 2}}}"
    topology = load_text(text, "lab.yaml")
    found = [
        shapes(topology, it.steps)["ab:a"]
        for it in compile_fault(topology, "brown-out", "ab:a", {"loss": "90%", "over": "1s"}).phases
    ]
    assert (found[0].burst, found[-1].burst) == (2, 0), "nine of ten lost are runs of nine at least"
    assert not [finding for it in found for finding in it.findings()]


@pytest.mark.parametrize(
    ("written", "delay_s"),
    [({"extra": "1ms"}, 1.2e-3), ({"km": "120"}, 0.6e-3), ({"delay": "2ms"}, 2e-3), ({"km": "20"}, 0.1e-3)],
)
def test_a_latency_step_leads_to_another_delay(metro: Topology, written: dict[str, str], delay_s: float) -> None:
    compiled = compile_fault(metro, "latency-step", "north", written)
    (phase,) = compiled.phases
    assert [it.delay_s for it in shapes(metro, phase.steps).values()] == [pytest.approx(delay_s)] * 2
    assert shapes(metro, phase.steps)["north:west"].queue_bytes == metro.link("north").queue_bytes


def test_a_latency_step_may_be_dark_before(metro: Topology) -> None:
    dark, moved = compile_fault(metro, "latency-step", "north:west", {"extra": "1ms", "gap": "50ms"}).phases
    assert (dark.at_s, moved.at_s) == (0, 0.05)
    assert shapes(metro, dark.steps)["north:west"].loss == 1
    assert shapes(metro, moved.steps)["north:west"].loss == 0
    assert "north:east" not in {**shapes(metro, dark.steps), **shapes(metro, moved.steps)}


@pytest.mark.parametrize(
    ("fault", "written", "said"),
    [
        ("cut", {"carrier": "bouth"}, "carrier=bouth: .*did you mean both"),
        ("flap", {"down": "1ms"}, "down=1ms: .*out of range; expected at least 20 ms"),
        ("flap", {"down": "-1s", "up": "soon", "times": "1.5"}, "down=-1s: .*up=soon: .*times=1.5: .*whole number"),
        ("flap", {"times": "0"}, "times=0: .*expected 1 to"),
        ("latency-step", {}, "one of extra=1ms, km=120 and delay=2ms, got none"),
        ("latency-step", {"extra": "1ms", "km": "3"}, "got extra and km"),
        ("latency-step", {"extra": "1km"}, "extra=1km: .*unknown unit"),
        ("latency-step", {"km": "1e5"}, "km=1e5: .*out of range"),
        ("latency-step", {"delay": "59s", "gap": "2h"}, "gap=2h: .*out of range"),
        ("latency-step", {"extra": "60s"}, "extra=60s: delay: "),
        ("brown-out", {"loss": "5%"}, "missing over.*add over=10s"),
        ("brown-out", {"over": "10s"}, "one of loss=5% and margin=-0.7dB, got neither"),
        ("brown-out", {"loss": "5%", "margin": "-1dB", "over": "10s"}, "got both"),
        ("brown-out", {"margin": "-1km", "over": "10s"}, "margin=-1km: .*expected a margin in dB"),
        ("brown-out", {"margin": "-9dB", "over": "10s"}, "margin=-9dB: .*out of range"),
        ("brown-out", {"margin": "0dB", "over": "10s"}, "margin=0dB: the ramp starts at 0.0001%, or -0.33 dB"),
        ("brown-out", {"loss": "130%", "over": "10s"}, "loss=130%: .*expected 0 to 1"),
        ("brown-out", {"loss": "1%", "from": "2%", "over": "10s"}, "loss=1%: the ramp starts at 2%"),
        ("brown-out", {"loss": "0", "over": "10s"}, "loss=0: the ramp starts at 0.0001%"),
        ("brown-out", {"loss": "5%", "over": "1ms"}, "over=1ms: .*at least 20 ms for a ramp"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_touched(
    metro: Topology, fault: str, written: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        compile_fault(metro, fault, "north", written)


@pytest.mark.parametrize("fault", ["flap", "latency-step", "brown-out"])
def test_every_fault_takes_links_directions_and_ducts(ring: Topology, fault: str) -> None:
    written = {"flap": {}, "latency-step": {"extra": "1ms"}, "brown-out": {"loss": "5%", "over": "1s"}}[fault]
    dug: Compiled = compile_fault(ring, fault, "river-bridge", written)
    assert dug.links == ("alba-brava", "costa-alba")
    assert len(dug.phases[-1].steps or dug.steps) == 4
    assert compile_fault(ring, fault, "alba-brava:alba", written).links == ("alba-brava",)
    with pytest.raises(UnknownName, match="river-bridge:alba"):
        compile_fault(ring, fault, "river-bridge:alba", written)


# ---- impair


def test_what_is_not_named_keeps_the_links_own_value(metro: Topology) -> None:
    own = metro.link("north").impairment(metro.link("north").directions[0])
    steps = compile_fault(metro, "impair", "north", {"loss": "1%"}).steps
    found = shapes(metro, steps)
    assert found.keys() == {"north:west", "north:east"}
    for it in found.values():
        assert it.loss == 0.01
        assert (it.delay_s, it.rate_bps, it.queue_bytes) == (own.delay_s, own.rate_bps, own.queue_bytes)


def test_all_parameters_in_si_units(metro: Topology) -> None:
    written = {"delay": "5ms", "rate": "100M", "queue": "64 KiB", "loss": "0.1%"}
    ((direction, it),) = shapes(metro, compile_fault(metro, "impair", "south:east", written).steps).items()
    assert direction == "south:east"
    assert (it.delay_s, it.rate_bps, it.queue_bytes, it.loss) == (0.005, 100e6, 65536, 0.001)


def test_a_duct_is_impaired_both_ways_in_every_link(ring: Topology) -> None:
    compiled = compile_fault(ring, "impair", "river-bridge", {"loss": "1%"})
    directions = set(shapes(ring, compiled.steps))
    assert directions == {"alba-brava:alba", "alba-brava:brava", "costa-alba:costa", "costa-alba:alba"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("loss", "101%"), ("loss", "-0.1"), ("loss", "much"), ("loss", "nan"), ("loss", ""),
        ("delay", "-5ms"), ("delay", "inf"), ("delay", "5 furlongs"), ("delay", "1h"),
        ("rate", "0"), ("rate", "-1G"), ("rate", "fast"),
        ("queue", "-1"), ("queue", "a lot"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(metro: Topology, key: str, text: str) -> None:
    with pytest.raises(UserError, match=key):
        compile_fault(metro, "impair", "north", {key: text})


def test_impair_without_a_parameter_says_which_there_are(metro: Topology) -> None:
    with pytest.raises(UserError, match="delay=…, jitter=…"):
        compile_fault(metro, "impair", "north", {})


def test_every_fault_says_what_it_is_and_what_it_takes() -> None:
    for name, kind in registry().items():
        assert kind.name == name
        assert kind.summary
        assert kind.targets
        assert all(kind.parameters.values())
        assert kind.ending <= kind.parameters.keys()
