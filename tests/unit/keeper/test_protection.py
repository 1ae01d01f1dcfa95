"""Protection of a link: when it switches, what is written, which paths a cut takes, what an end-to-end plan is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.faults.fault_registry import compile_fault
from testbed.core.physics.protection_selector import Path, PathCut, SecondPath, Selector
from testbed.core.plan.properties import Carrier
from testbed.core.topology.model import Topology, topology_from_dict, topology_to_dict
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

SECOND = SecondPath(("coast",), 120e3, switch_s=0.05, hold_off_s=0.01, wait_to_restore_s=2.0)
WORKING, PROTECTION = frozenset[Path]({"working"}), frozenset[Path]({"protection"})
BOTH, NONE = WORKING | PROTECTION, frozenset[Path]()
TEXT = """
defaults: {link: {optics: OpenZR+}}
sites: {east: {}, west: {}}
ducts: {bridge: 3 km, motorway: 37 km, coast: 117 km}
links:
  north: {between: [east, west], via: [bridge, motorway], protection: {type: 1+1, via: [bridge, coast]}}
  south: {between: [east, west], via: [coast]}
"""


def states(
    second: SecondPath, *happenings: tuple[float, frozenset[Path]], until_s: float
) -> list[tuple[float, str, bool]]:
    """(time, state, carrier) at each change of either."""
    selector, found = Selector(second), [(0.0, "working", True)]
    learned = [*happenings, (until_s, None)]
    for t, cut in learned:
        while selector.due_t is not None and selector.due_t <= t:
            due_t = selector.due_t
            selector.advance(due_t)
            found.append((round(due_t, 6), selector.state, selector.carrier))
        if cut is not None:
            selector.learn(t, cut)
            found.append((t, selector.state, selector.carrier))
    return [it for before, it in zip([None, *found], found, strict=False) if before is None or before[1:] != it[1:]]


def test_a_cut_is_held_off_then_switched_and_reverted_after_the_wait() -> None:
    assert states(SECOND, (1.0, WORKING), (5.0, NONE), until_s=10.0) == [
        (0.0, "working", True),
        (1.0, "switching", True),
        (1.06, "protection", True),
        (7.0, "switching", True),
        (7.05, "working", True),
    ]


def test_a_cut_shorter_than_the_switch_moves_nothing() -> None:
    assert states(SECOND, (1.0, WORKING), (1.02, NONE), until_s=9.0) == [
        (0.0, "working", True),
        (1.0, "switching", True),
        (1.02, "working", True),
    ]


def test_a_fiber_that_comes_and_goes_is_not_followed() -> None:
    flapping = [(float(t), WORKING if t % 2 else NONE) for t in range(1, 12)]
    assert [it for it in states(SECOND, *flapping, until_s=12.0) if it[0] > 1.1] == []


def test_both_paths_cut_is_dark_and_the_second_may_come_back_first() -> None:
    assert states(SECOND, (1.0, WORKING), (2.0, BOTH), (3.0, WORKING), (4.0, NONE), until_s=9.0) == [
        (0.0, "working", True),
        (1.0, "switching", True),
        (1.06, "protection", True),
        (2.0, "dark", False),
        (3.0, "protection", True),
        (6.0, "switching", True),
        (6.05, "working", True),
    ]


def test_from_darkness_the_path_that_is_lit_first_is_taken_without_hold_off() -> None:
    assert states(SECOND, (1.0, BOTH), (2.0, WORKING), until_s=3.0) == [
        (0.0, "working", True),
        (1.0, "dark", False),
        (2.0, "switching", True),
        (2.05, "protection", True),
    ]


def test_restoration_takes_seconds_and_the_carrier() -> None:
    restored = SecondPath(("coast",), 120e3, switch_s=3.0, wait_to_restore_s=1.0, carrier_kept=False)
    assert states(restored, (1.0, WORKING), (10.0, NONE), until_s=20.0) == [
        (0.0, "working", True),
        (1.0, "switching", False),
        (4.0, "protection", True),
        (11.0, "switching", True),
        (11.05, "working", True),
    ]


def test_a_scheme_that_does_not_revert_goes_back_when_told() -> None:
    selector = Selector(SecondPath(("coast",), 120e3, 0.05, revertive=False))
    selector.learn(0.0, WORKING)
    selector.advance(0.05)
    selector.learn(1.0, NONE)
    assert (selector.state, selector.due_t) == ("protection", None)
    selector.restore(2.0)
    assert selector.state == "switching"
    selector.advance(2.05)
    assert selector.state == "working"


def test_a_manual_switch_does_not_go_to_a_path_that_is_cut() -> None:
    selector = Selector(SECOND)
    selector.learn(0.0, WORKING)
    selector.restore(1.0)
    assert (selector.state, selector.due_t) == ("protection", None)


@given(
    st.lists(st.tuples(st.floats(0.001, 4.0), st.sampled_from([NONE, WORKING, PROTECTION, BOTH])), max_size=12),
    st.booleans(),
)
def test_whatever_happens_it_ends_on_a_sound_path(steps: list[tuple[float, frozenset[Path]]], revertive: bool) -> None:
    """The reference is what protection is for: dark only if both paths are, else lit within a switch."""
    selector, t = Selector(SecondPath(("coast",), 120e3, 0.05, 0.01, 2.0, revertive)), 0.0
    for gap_s, cut in steps:
        t += gap_s
        selector.learn(t, cut)
        lit = [path for path in ("working", "protection") if path not in cut]
        if not lit:
            assert (selector.state, selector.carrier) == ("dark", False)
            continue
        # In the middle of the way back it may have to be switched once more: hold-off + switch after that.
        probe = t + 0.12
        selector.advance(probe)
        assert selector.state in lit or (selector.state == "switching" and not cut)
        t = probe
    selector.learn(t, NONE)
    selector.advance(t + 10.0)
    assert selector.state == ("working" if revertive else selector.on)
    assert selector.carrier


# ---- as written


def test_defaults_of_what_is_written() -> None:
    second = load_text(TEXT.encode(), "x.yaml").link("north").second_path
    assert second == SecondPath(("bridge", "coast"), 120e3, 0.05, 0.0, 5.0, True, True)


def test_all_that_can_be_written() -> None:
    written = (
        "{type: restoration, via: coast, switch: 2s, hold_off: 100ms, wait_to_restore: 1min,"
        " revertive: false, carrier: kept}"
    )
    text = TEXT.replace("{type: 1+1, via: [bridge, coast]}", written)
    link = load_text(text.encode(), "x.yaml").link("north")
    assert link.protection == "restoration"
    assert link.second_path == SecondPath(("coast",), 117e3, 2.0, 0.1, 60.0, False, True)


def test_only_the_length_differs_on_the_second_path() -> None:
    link = load_text(TEXT.encode(), "x.yaml").link("north")
    own, switched = link.impairment("north:west"), link.switched("north:west")
    assert (own.delay_s, switched.delay_s) == (pytest.approx(200e-6), pytest.approx(600e-6))
    assert (own.rate_bps, own.queue_bytes) == (switched.rate_bps, switched.queue_bytes)


def test_a_protected_topology_survives_being_written_down() -> None:
    topology = load_text(TEXT.encode(), "x.yaml")
    assert topology_from_dict(topology_to_dict(topology)) == topology


# ---- faults


@pytest.fixture
def topology() -> Topology:
    return load_text(TEXT.encode(), "x.yaml")


@pytest.mark.parametrize(
    ("target", "parameters", "cuts", "dark"),
    [
        ("motorway", {}, {("north", "working")}, set()),
        ("coast", {}, {("north", "protection")}, {"south-a", "south-b"}),
        ("bridge", {}, {("north", "working"), ("north", "protection")}, set()),
        ("north", {}, {("north", "working")}, set()),
        ("north:west", {}, {("north", "working")}, set()),
        ("north", {"path": "protection"}, {("north", "protection")}, set()),
        ("north", {"path": "both"}, {("north", "working"), ("north", "protection")}, set()),
        ("south", {}, set(), {"south-a", "south-b"}),
    ],
)
def test_which_paths_a_cut_takes(
    topology: Topology, target: str, parameters: dict[str, str], cuts: set[tuple[str, Path]], dark: set[str]
) -> None:
    compiled = compile_fault(topology, "cut", target, parameters)
    phase = compiled.phases[0]
    assert set(phase.cuts) == {PathCut(link, path) for link, path in cuts}
    assert {it.interface for it in phase.steps if isinstance(it, Carrier)} == dark
    assert set(compiled.links) == {link for link, _ in cuts} | {end.rpartition("-")[0] for end in dark}


def test_a_flap_cuts_the_path_and_gives_it_back(topology: Topology) -> None:
    phases = compile_fault(topology, "flap", "motorway", {}).phases
    assert [phase.cuts for phase in phases] == [(PathCut("north", "working"),), ()]


@pytest.mark.parametrize(("target", "path"), [("south", "both"), ("coast", "both"), ("north", "second")])
def test_a_path_that_cannot_be_chosen(topology: Topology, target: str, path: str) -> None:
    with pytest.raises(UserError, match="path="):
        compile_fault(topology, "cut", target, {"path": path})


def test_a_direction_that_a_protected_link_does_not_have(topology: Topology) -> None:
    with pytest.raises(UserError, match=r"^unknown link end "):
        compile_fault(topology, "cut", "north:wets", {})
