"""Faults compile to Steps or say what is wrong with them, before anything is touched."""

from __future__ import annotations

import pytest

from testbed.core.faults.fault import compile_fault, registry, target_links
from testbed.core.plan.step import Carrier, Setting, Shape
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName, UserError
from testbed.host import catalog


@pytest.fixture(scope="module")
def metro() -> Topology:
    return catalog.load_topology("metro-40km", None)


@pytest.fixture(scope="module")
def ring() -> Topology:
    return catalog.load_topology("regional-ring", None)


def darkened(steps: tuple[Setting, ...]) -> set[str]:
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
        ("", "there is"),
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


def test_a_cut_of_one_direction_says_what_to_do_instead(metro: Topology) -> None:
    with pytest.raises(UserError, match="inject impair north:west loss=100%"):
        compile_fault(metro, "cut", "north:west", {})
    (shape,) = compile_fault(metro, "impair", "north:west", {"loss": "100%"}).steps
    assert isinstance(shape, Shape)
    assert shape.impairment.loss == 1.0


def test_unknown_faults_and_parameters_offer_what_there_is(metro: Topology) -> None:
    with pytest.raises(UnknownName, match="did you mean cut"):
        compile_fault(metro, "cutt", "north", {})
    with pytest.raises(UnknownName, match="did you mean loss"):
        compile_fault(metro, "impair", "north", {"los": "1%"})
    with pytest.raises(UnknownName, match="there is none"):
        compile_fault(metro, "cut", "north", {"loss": "1%"})


# ---- impair


def test_what_is_not_named_keeps_the_links_own_value(metro: Topology) -> None:
    own = metro.link("north").impairment(metro.link("north").directions[0])
    steps = compile_fault(metro, "impair", "north", {"loss": "1%"}).steps
    assert {it.direction for it in steps if isinstance(it, Shape)} == {"north:west", "north:east"}
    for step in steps:
        assert isinstance(step, Shape)
        assert step.impairment.loss == 0.01
        assert (step.impairment.delay_s, step.impairment.rate_bps, step.impairment.queue_bytes) == (
            own.delay_s,
            own.rate_bps,
            own.queue_bytes,
        )


def test_all_parameters_in_si_units(metro: Topology) -> None:
    written = {"delay": "5ms", "rate": "100M", "queue": "64 KiB", "loss": "0.1%"}
    (step,) = compile_fault(metro, "impair", "south:east", written).steps
    assert isinstance(step, Shape)
    assert step.direction == "south:east"
    it = step.impairment
    assert (it.delay_s, it.rate_bps, it.queue_bytes, it.loss) == (0.005, 100e6, 65536, 0.001)


def test_a_duct_is_impaired_both_ways_in_every_link(ring: Topology) -> None:
    compiled = compile_fault(ring, "impair", "river-bridge", {"loss": "1%"})
    directions = {it.direction for it in compiled.steps if isinstance(it, Shape)}
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
