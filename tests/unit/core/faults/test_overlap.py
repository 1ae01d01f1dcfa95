"""What a fault states, what it may not state, and what is refused beside another fault."""

from __future__ import annotations

import pytest
from oracles.fault_values import shapes

from testbed.core.faults.fault_registry import compile_fault
from testbed.core.faults.overlap import Begun, refuse_overlap, stated_by
from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

TEXT = b"""
scale: 1
sites: {a: {nodes: 1}, b: {nodes: 1}}
links:
  plain: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M}}
  lossy: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M, loss: 10%, duplicate: 1%}}
  bursty: {between: [a, b], km: 10, impair: {delay: 5ms, rate: 100M, loss: 1%, burst: 8}}
"""


@pytest.fixture(scope="module")
def topology() -> Topology:
    return load_text(TEXT, "x.yaml")


def begun(topology: Topology, name: str, target: str, words: str) -> Begun:
    kind, *parameters = words.split()
    compiled = compile_fault(topology, kind, target, dict(it.split("=") for it in parameters))
    return Begun(f"{name} ({kind} {target})", stated_by(compiled))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("impair duplicate=1%", "impair loss=1% burst=8", "duplication beside burst loss"),
        ("impair duplicate=1%", "impair p=1% r=10%", "duplication beside burst loss"),
        ("impair duplicate=30%", "impair loss=50%", "duplication of 0.3 beside a loss of 0.5"),
        ("impair duplicate=30%", "brown-out loss=50% over=10s", "duplication of 0.3 beside a loss of 0.5"),
        ("impair duplicate=30%", "corruption share=50%", "duplication of 0.3 beside a loss of 0.5"),
        ("jitter amount=10us", "impair reorder=1% reorder_by=1ms", "jitter would restore the order"),
        ("jitter amount=1ms", "latency-step delay=2ms", "arrive before they were sent"),
        ("latency-step extra=31s", "latency-step extra=30s", "0 to 60 s"),
        ("latency-step extra=31s", "latency-step delay=30s gap=10ms", "0 to 60 s"),
        ("impair queue=1538", "impair overhead=100", "cannot hold a full packet"),
    ],
)
def test_what_cannot_be_side_by_side_is_refused_whichever_came_first(
    topology: Topology, one: str, other: str, said: str
) -> None:
    first, second = begun(topology, "f1", "plain:b", one), begun(topology, "f2", "plain", other)
    for active, wanted in ((first, second), (second, first)):
        with pytest.raises(UserError, match=rf"plain:b beside {active.name[:2]} .*{said}.*; heal"):
            refuse_overlap(topology, [active], wanted)
        # Another fault that masks the conflict for now may be healed first.
        mask = begun(topology, "f3", "plain", "impair jitter=1us jitter_reorders=true")
        if "jitter" not in said and "reorder" not in other:
            with pytest.raises(UserError):
                refuse_overlap(topology, [active, mask], wanted)


@pytest.mark.parametrize("words", ["latency-step extra=25s", "latency-step delay=40s", "brown-out loss=10% over=1s"])
def test_what_adds_up_over_three_is_refused_at_its_most(topology: Topology, words: str) -> None:
    """Each pair is possible."""
    rest = "impair duplicate=28%" if "loss" in words else "latency-step extra=15s"
    faults = [begun(topology, "f1", "plain", words), begun(topology, "f2", "plain", rest)]
    third = begun(topology, "f3", "plain", "impair loss=10%" if "loss" in words else "latency-step extra=21s")
    refuse_overlap(topology, faults[:1], faults[1])
    for it in faults:
        if words != "latency-step delay=40s":
            refuse_overlap(topology, [it], third)
    with pytest.raises(UserError, match=r"; heal (f1 first|one of them first)"):
        refuse_overlap(topology, faults, third)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("impair duplicate=1%", "impair loss=1%"),
        ("impair loss=1% burst=8", "impair loss=5%"),
        ("impair loss=1% burst=8", "impair p=1% r=10% h=5%"),
        ("impair jitter=10us jitter_reorders=true", "impair reorder=1% reorder_by=1ms"),
        ("jitter amount=100us", "latency-step delay=20ms"),
        ("cut carrier=silent", "impair duplicate=90%"),
        ("impair loss=100%", "impair duplicate=90%"),
    ],
)
def test_what_one_qdisc_holds_is_not_refused(topology: Topology, one: str, other: str) -> None:
    first, second = begun(topology, "f1", "plain", one), begun(topology, "f2", "plain", other)
    refuse_overlap(topology, [first], second)
    refuse_overlap(topology, [second], first)


def test_faults_of_different_directions_are_not_side_by_side(topology: Topology) -> None:
    jitter = begun(topology, "f1", "plain:a", "jitter amount=10us")
    refuse_overlap(topology, [jitter], begun(topology, "f2", "plain:b", "impair reorder=1% reorder_by=1ms"))
    refuse_overlap(topology, [jitter], begun(topology, "f2", "lossy", "impair reorder=1% reorder_by=1ms"))


@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        ("plain", "impair rate=101M", "rate=101M: the rate of plain:b is 100 Mb/s, and a fault cannot raise it"),
        ("lossy", "impair loss=0", "loss=0: expected more than 0: a fault adds to the link's own"),
        ("lossy", "impair duplicate=0 corrupt=0", "corrupt=0: .*duplicate=0: |duplicate=0: .*corrupt=0: "),
        ("lossy", "impair burst=8", "burst: needs a loss|burst=8: needs a loss"),
        ("plain", "impair largest=0", "largest=0: expected a size"),
        ("bursty", "impair duplicate=1%", "duplicate=1%: one netem cannot hold duplication beside burst loss"),
        ("lossy", "impair loss=1% burst=8", "duplication beside burst loss"),
        ("plain", "impair loss=1% burst=8 duplicate=1%", "duplication beside burst loss"),
    ],
)
def test_what_the_link_cannot_have_is_refused(topology: Topology, target: str, words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        begun(topology, "f1", target, words)


@pytest.mark.parametrize(
    ("target", "words", "loss"),
    [
        ("lossy", "impair loss=50%", 0.55),
        ("bursty", "impair loss=50%", 0.505),
        ("bursty", "impair loss=2% burst=4", 0.02),
        ("lossy", "brown-out loss=50% over=10s", 0.1),
    ],
)
def test_loss_is_added_to_the_links_own(topology: Topology, target: str, words: str, loss: float) -> None:
    kind, *parameters = words.split()
    compiled = compile_fault(topology, kind, target, dict(it.split("=") for it in parameters))
    for it in shapes(topology, compiled.steps).values():
        assert it.mean_loss == pytest.approx(loss)
        assert not list(it.findings())
