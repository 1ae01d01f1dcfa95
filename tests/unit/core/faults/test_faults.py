"""Faults compile to Steps, or report their mistakes before anything on the host changes."""

from __future__ import annotations

import itertools
import math

import pytest
from builders.faults import fault, shaped
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import METRO, RING
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.fault_values import shapes

from testbed.core.faults.brownout import FLOOR, MOST_PHASES, margin_ramp, ramp
from testbed.core.faults.fault_registry import registry
from testbed.core.faults.fault_target import target_links
from testbed.core.physics.margin import frame_loss
from testbed.core.plan.properties import Carrier
from testbed.core.plan.step import Plan
from testbed.core.topology.resolve import load_text
from testbed.errors import UnknownName, UserError

RIVER_BRIDGE = {"alba-brava:alba", "alba-brava:brava", "costa-alba:costa", "costa-alba:alba"}
"""The directions of all links in this duct of the ring."""


def darkened(steps: Plan) -> set[str]:
    assert all(isinstance(step, Carrier) and step.namespace == "plant" and not step.up for step in steps)
    return {step.interface for step in steps if isinstance(step, Carrier)}


# ---- targets


def test_a_dig_cuts_every_link_in_the_duct() -> None:
    dig = fault("cut river-bridge", RING)
    assert dig.links == ("alba-brava", "costa-alba")
    assert darkened(dig.steps) == {"alba-brava-a", "alba-brava-b", "costa-alba-a", "costa-alba-b"}
    assert fault("cut valley", RING).links == ("brava-costa",)


@by_input(
    "target, links",
    {"north": (("north",), ""), "north:west": (("north",), "west"), "south:east": (("south",), "east")},
)
def test_target_links_and_direction(target: str, links: tuple[tuple[str, ...], str]) -> None:
    assert target_links(METRO, target) == links


@by_input(
    "target, offered",
    {"nort": "did you mean north", "north:wets": "did you mean west", "''": "available: ", "north:north": "east, west"},
)
@pytest.mark.parametrize("line", ["cut {}", "impair {} loss=1%"])
def test_an_unknown_target_offers_the_nearest(line: str, target: str, offered: str) -> None:
    with pytest.raises(UnknownName, match=offered):
        fault(line.format(target))


@by_input(
    "line, offered",
    {
        "cut river-brige": "did you mean river-bridge",
        "impair river-bridge:alba loss=1": "river-bridge:alba",
        "flap river-bridge:alba": "river-bridge:alba",
        "latency-step river-bridge:alba extra=1ms": "river-bridge:alba",
        "brown-out river-bridge:alba loss=5% over=1s": "river-bridge:alba",
        "cutt alba-brava": "did you mean cut",
        "impair alba-brava los=1%": "did you mean loss",
        "cut alba-brava loss=1%": "available: carrier",
    },
)
def test_unknown_ducts_directions_of_ducts_faults_and_parameters(line: str, offered: str) -> None:
    with pytest.raises(UnknownName, match=offered):
        fault(line, RING)


# ---- cuts of one direction, and silent ones


@by_input(
    "words, down",
    {
        "north": "ab",
        "north:west": "b",  # -b faces west, whose port receives nothing any more
        "north:east": "a",
        "north:west carrier=receiver": "b",
        "north:west carrier=both": "ab",
        "north carrier=receiver": "ab",
        "north carrier=both": "ab",
    },
)
def test_ports_that_lose_their_carrier_in_a_cut(words: str, down: str) -> None:
    cut = fault(f"cut {words}")
    assert darkened(cut.steps) == {f"north-{side}" for side in down}
    assert cut.links == ("north",)
    assert len(cut.phases) == 1


def test_a_silent_cut_takes_the_light_and_no_carrier() -> None:
    assert shaped("cut north:west carrier=silent").keys() == {"north:west"}
    both = shaped("cut north carrier=silent")
    assert both.keys() == {"north:west", "north:east"}
    assert all(shape.loss == 1.0 for shape in both.values())
    assert shaped("cut river-bridge carrier=silent", RING).keys() == RIVER_BRIDGE


@pytest.mark.parametrize("link", ["north", "south"])
def test_nothing_comes_through_a_silent_cut_whatever_the_link_does(link: str) -> None:
    """Neither a double nor what bursts and chains would let pass; and emulators take it."""
    text = b"""
sites: {east: , west: }
links:
  north: {between: [east, west], km: 40, impair: {duplicate: 10%, loss: 1%, burst: 8, reorder: 1%, reorder_by: 1ms}}
  south: {between: [east, west], km: 47, impair: {p: 1%, r: 10%, corrupt: 1%, corrupt_survives: true}}
"""
    for shape in shaped(f"cut {link} carrier=silent", load_text(text, "lab.yaml")).values():
        assert (shape.mean_loss, shape.duplicate) == (1.0, 0.0)
        assert not list(shape.findings())


# ---- faults that take time


def test_a_flap_is_dark_and_lit_in_turn() -> None:
    flap = fault("flap north down=100ms up=300ms")
    phases = list(itertools.islice(flap.timeline(), 6))
    assert [round(phase.at_s, 9) for phase in phases] == [0, 0.1, 0.4, 0.5, 0.8, 0.9]
    assert [darkened(phase.steps) for phase in phases] == [{"north-a", "north-b"}, set()] * 3
    assert [phase.name for phase in phases[:2]] == ["dark", "lit"]
    assert flap.lasts_s is None, "until it is healed"


def test_a_flap_of_one_direction_takes_its_receivers_carrier() -> None:
    assert darkened(fault("flap north:west").steps) == {"north-b"}
    assert shaped("flap north:west carrier=silent")["north:west"].loss == 1


@settings(deadline=None)
@given(down=st.integers(20, 10_000), up=st.integers(20, 10_000), times=st.integers(1, 50))
def test_a_flap_is_dark_as_often_as_was_asked_and_ends_lit(down: int, up: int, times: int) -> None:
    flap = fault(f"flap north down={down}ms up={up}ms times={times}")
    phases = list(flap.timeline())
    assert sum(bool(phase.steps) for phase in phases) == times
    assert phases[-1].steps, "it ends out of the dark: that is what its being over means"
    assert flap.lasts_s == pytest.approx((times * down + (times - 1) * up) / 1000)
    gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(phases)]
    assert gaps == pytest.approx(([down / 1000, up / 1000] * times)[: len(gaps)])


@settings(deadline=None)
@given(begin=st.floats(FLOOR, 0.5), rise=st.floats(1.001, 1e6), over_s=st.floats(0.02, 7 * 24 * 3600))
def test_a_ramp_is_monotone_bounded_geometric_and_ends_where_it_must(begin: float, rise: float, over_s: float) -> None:
    end = min(1.0, begin * rise)
    points = ramp(begin, end, over_s)
    times, losses = zip(*points, strict=True)
    assert (times[0], times[-1]) == (0.0, over_s)
    assert (losses[0], losses[-1]) == (pytest.approx(begin), end)
    assert list(times) == sorted(set(times))
    assert list(losses) == sorted(losses)
    assert len(points) <= MOST_PHASES + 1
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= 0.1 * (1 + 1e-9) or len(points) == MOST_PHASES + 1
    assert min(gaps) >= 0.01
    # The logarithm is a straight line.
    for t, loss in points:
        assert math.log(loss) == pytest.approx(math.log(begin) + math.log(end / begin) * t / over_s, abs=1e-6)


@settings(deadline=None)
@given(begin=st.floats(FLOOR, 1e-3), margin=st.floats(-2, -0.6), over_s=st.floats(0.02, 1000))
def test_a_ramp_by_its_margin_is_monotone_and_ends_where_it_must(begin: float, margin: float, over_s: float) -> None:
    times, losses = zip(*margin_ramp(begin, margin, over_s), strict=True)
    assert (times[0], times[-1]) == (0.0, over_s)
    assert (losses[0], losses[-1]) == (pytest.approx(begin, rel=1e-6), frame_loss(margin))
    assert list(losses) == sorted(losses)
    assert len(losses) <= MOST_PHASES + 1


def test_a_brown_out_by_its_margin() -> None:
    phases = fault("brown-out north margin=-0.7dB over=10s").phases
    losses = [shapes(METRO, phase.steps)["north:west"].loss for phase in phases]
    assert losses[0] == pytest.approx(FLOOR, rel=1e-6)
    assert losses[-1] == pytest.approx(0.0172, rel=0.01)
    # Evenly in dB is about evenly in the logarithm: nowhere farther than a factor of three from the geometric ramp.
    straight = [loss for _, loss in ramp(FLOOR, losses[-1], 10.0)]
    assert all(1 / 3 < curved / even < 3 for curved, even in zip(losses, straight, strict=True))


def test_a_brown_out_keeps_all_else() -> None:
    brown_out = fault("brown-out north:west loss=5% over=10s")
    own, losses = METRO.link("north").impairment("north:west"), []
    for phase in brown_out.phases:
        ((direction, shape),) = shapes(METRO, phase.steps).items()
        assert direction == "north:west"
        assert (shape.delay_s, shape.rate_bps, shape.queue_bytes) == (own.delay_s, own.rate_bps, own.queue_bytes)
        losses.append(shape.loss)
    assert (losses[0], losses[-1], len(losses)) == (FLOOR, 0.05, 101)
    assert brown_out.lasts_s is None
    held = "brown-out north loss=5% over=10s hold=5s from=1%"
    assert fault(held).lasts_s == 15
    assert shaped(held)["north:east"].loss == 0.01


def test_a_brown_out_never_makes_a_link_better_than_it_is() -> None:
    text = b"""sites: {a: {}, b: {}}
links: {ab: {between: [a, b], km: 40, loss: 1%, toward: {b: {p: 1%, r: 9%}}}}
"""
    topology = load_text(text, "x.yaml")
    line = "brown-out ab loss=50% over=1s"
    first, last = shaped(line, topology), shaped(line, topology, -1)
    assert first["ab:a"].mean_loss == pytest.approx(0.01)
    assert first["ab:b"].mean_loss == pytest.approx(0.1)
    assert (last["ab:a"].loss, fault(line, topology).phases[0].name) == (0.5, "loss 10%")
    assert last["ab:b"].mean_loss == pytest.approx(0.5)
    for words in ("loss=5%", "margin=-0.7dB", "loss=5% from=0.1%"):
        with pytest.raises(UserError, match="10%"):
            fault(f"brown-out ab {words} over=1s", topology)


def test_a_brown_out_of_a_link_with_bursts_leaves_them_where_they_can_be() -> None:
    text = b"sites: {a: , b: }\nlinks: {ab: {between: [a, b], km: 9, loss: 0.1%, impair: {burst: 2}}}"
    topology = load_text(text, "lab.yaml")
    phases = fault("brown-out ab:a loss=90% over=1s", topology).phases
    ramped = [shapes(topology, phase.steps)["ab:a"] for phase in phases]
    assert (ramped[0].burst, ramped[-1].burst) == (2, 0), "nine of ten lost are runs of nine at least"
    assert not [finding for shape in ramped for finding in shape.findings()]


@by_input("word, delay_s", {"extra=1ms": 1.2e-3, "km=120": 0.6e-3, "delay=2ms": 2e-3, "km=20": 0.1e-3})
def test_a_latency_step_leads_to_another_delay(word: str, delay_s: float) -> None:
    (phase,) = fault(f"latency-step north {word}").phases
    moved = shapes(METRO, phase.steps)
    assert [shape.delay_s for shape in moved.values()] == [pytest.approx(delay_s)] * 2
    assert moved["north:west"].queue_bytes == METRO.link("north").queue_bytes


def test_a_latency_step_may_be_dark_before() -> None:
    phases = fault("latency-step north:west extra=1ms gap=50ms").phases
    assert [phase.at_s for phase in phases] == [0, 0.05]
    losses = [{direction: shape.loss for direction, shape in shapes(METRO, phase.steps).items()} for phase in phases]
    assert losses == [{"north:west": 1}, {"north:west": 0}]


@by_input(
    "line, said",
    {
        "cut north carrier=bouth": "carrier=bouth: .*did you mean both",
        "flap north down=1ms": "down=1ms: .*out of range; expected at least 20 ms",
        "flap north down=-1s up=soon times=1.5": "down=-1s: .*up=soon: .*times=1.5: .*whole number",
        "flap north times=0": "times=0: .*expected 1 to",
        "latency-step north": "one of extra=1ms, km=120 and delay=2ms, got none",
        "latency-step north extra=1ms km=3": "got extra and km",
        "latency-step north extra=1km": "extra=1km: .*unknown unit",
        "latency-step north km=1e5": "km=1e5: .*out of range",
        "latency-step north delay=59s gap=2h": "gap=2h: .*out of range",
        "latency-step north extra=60s": "extra=60s: delay: ",
        "brown-out north loss=5%": "missing over.*add over=10s",
        "brown-out north over=10s": "one of loss=5% and margin=-0.7dB, got none",
        "brown-out north loss=5% margin=-1dB over=10s": "got loss and margin",
        "brown-out north margin=-1km over=10s": "margin=-1km: .*expected a margin in dB",
        "brown-out north margin=-9dB over=10s": "margin=-9dB: .*out of range",
        "brown-out north margin=0dB over=10s": "margin=0dB: the ramp starts at 0.0001%, or -0.33 dB",
        "brown-out north loss=130% over=10s": "loss=130%: .*expected 0 to 1",
        "brown-out north loss=1% from=2% over=10s": "loss=1%: the ramp starts at 2%",
        "brown-out north loss=0 over=10s": "loss=0: the ramp starts at 0.0001%",
        "brown-out north loss=5% over=1ms": "over=1ms: .*at least 20 ms for a ramp",
        "impair north": "delay=…, jitter=…",
    },
)
def test_what_is_wrong_is_named_before_anything_is_touched(line: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fault(line)


@pytest.mark.parametrize("line", ["flap {}", "latency-step {} extra=1ms", "brown-out {} loss=5% over=1s"])
def test_every_fault_takes_links_directions_and_ducts(line: str) -> None:
    dug = fault(line.format("river-bridge"), RING)
    assert dug.links == ("alba-brava", "costa-alba")
    assert len(dug.phases[-1].steps or dug.steps) == 4
    assert fault(line.format("alba-brava:alba"), RING).links == ("alba-brava",)


# ---- impair


@table(
    "words, directions, changes",
    {
        "what is not named keeps the link's own value": ("north loss=1%", "north:west north:east", {"loss": 0.01}),
        "all parameters are in SI units": (
            "south:east delay=5ms rate=100M queue='64 KiB' loss=0.1%",
            "south:east",
            {"delay_s": 0.005, "rate_bps": 100e6, "queue_bytes": 65536, "loss": 0.001},
        ),
    },
)
def test_impair_changes_what_is_named(words: str, directions: str, changes: dict[str, float]) -> None:
    changed = shaped(f"impair {words}")
    assert changed.keys() == {*directions.split()}
    for direction, shape in changed.items():
        own = METRO.link(direction.partition(":")[0]).impairment(direction)
        for field in ("delay_s", "rate_bps", "queue_bytes", "loss"):
            assert getattr(shape, field) == changes.get(field, getattr(own, field))


def test_impair_of_a_duct_is_both_ways_in_every_link() -> None:
    assert shaped("impair river-bridge loss=1%", RING).keys() == RIVER_BRIDGE


@pytest.mark.parametrize(
    "word",
    [
        "loss=101%", "loss=-0.1", "loss=much", "loss=nan", "loss=",
        "delay=-5ms", "delay=inf", "delay='5 furlongs'", "delay=1h",
        "rate=0", "rate=-1G", "rate=fast", "queue=-1", "queue='a lot'",
    ],
)  # fmt: skip
def test_a_value_that_impair_refuses_is_named(word: str) -> None:
    with pytest.raises(UserError, match=word.partition("=")[0]):
        fault(f"impair north {word}")


def test_every_fault_says_what_it_is_and_what_it_takes() -> None:
    for name, kind in registry().items():
        assert kind.name == name
        assert kind.summary
        assert kind.targets
        assert all(kind.parameters.values())
        assert kind.ending <= kind.parameters.keys()
