"""Protection of a link: when it switches, what is written, which paths a cut takes, what an end-to-end plan is."""

from __future__ import annotations

import pytest
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.faults.fault_registry import compile_fault
from testbed.core.physics.protection_selector import Path, PathCut, SecondPath, Selector
from testbed.core.plan.properties import Carrier
from testbed.core.topology.model import Topology, topology_from_dict, topology_to_dict
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

SECOND = SecondPath(("coast",), 120e3, switch_s=0.05, hold_off_s=0.01, wait_to_restore_s=2.0)
RESTORATION = SecondPath(("coast",), 120e3, switch_s=3.0, wait_to_restore_s=1.0, carrier_kept=False)
CUTS: dict[str, frozenset[Path]] = {
    "none": frozenset(),
    "working": frozenset({"working"}),
    "protection": frozenset({"protection"}),
    "both": frozenset({"working", "protection"}),
}
TEXT = """
defaults: {link: {optics: OpenZR+}}
sites: {east: {}, west: {}}
ducts: {bridge: 3 km, motorway: 37 km, coast: 117 km}
links:
  north: {between: [east, west], via: [bridge, motorway], protection: {type: 1+1, via: [bridge, coast]}}
  south: {between: [east, west], via: [coast]}
"""


def changes(second: SecondPath, cuts: str, until_s: float) -> str:
    """Return the state at each change; ``!``: without carrier. ``cuts``: which paths are cut from which time on."""
    selector, states = Selector(second), [(0.0, "working")]

    def record(t: float) -> None:
        state = selector.state + "!" * (not selector.carrier)
        if state != states[-1][1]:
            states.append((round(t, 6), state))

    for moment in [*filter(None, cuts.split(", ")), f"{until_s} end"]:
        time, paths = moment.split()
        while selector.due_t is not None and selector.due_t <= float(time):
            due_t = selector.due_t
            selector.advance(due_t)
            record(due_t)
        if paths != "end":
            selector.learn(float(time), CUTS[paths])
            record(float(time))
    return ", ".join(f"{t:g} {state}" for t, state in states)


@table(
    "second, cuts, until_s, expected",
    {
        "a cut is held off, then switched, and reverted after the wait": (
            SECOND,
            "1 working, 5 none",
            10.0,
            "0 working, 1 switching, 1.06 protection, 7 switching, 7.05 working",
        ),
        "a cut shorter than the switch moves nothing": (
            SECOND,
            "1 working, 1.02 none",
            9.0,
            "0 working, 1 switching, 1.02 working",
        ),
        "a fiber that comes and goes is not followed": (
            SECOND,
            ", ".join(f"{t} {'working' if t % 2 else 'none'}" for t in range(1, 12)),
            12.0,
            "0 working, 1 switching, 1.06 protection",
        ),
        "both paths cut are dark, and the second may return first": (
            SECOND,
            "1 working, 2 both, 3 working, 4 none",
            9.0,
            "0 working, 1 switching, 1.06 protection, 2 dark!, 3 protection, 6 switching, 6.05 working",
        ),
        "from darkness the path that is lit first is taken without hold-off": (
            SECOND,
            "1 both, 2 working",
            3.0,
            "0 working, 1 dark!, 2 switching, 2.05 protection",
        ),
        "restoration takes seconds and the carrier": (
            RESTORATION,
            "1 working, 10 none",
            20.0,
            "0 working, 1 switching!, 4 protection, 11 switching, 11.05 working",
        ),
    },
)
def test_the_selector_changes_its_state(second: SecondPath, cuts: str, until_s: float, expected: str) -> None:
    assert changes(second, cuts, until_s) == expected


def test_a_scheme_that_does_not_revert_goes_back_when_told() -> None:
    selector = Selector(SecondPath(("coast",), 120e3, 0.05, revertive=False))
    selector.learn(0.0, CUTS["working"])
    selector.advance(0.05)
    selector.learn(1.0, CUTS["none"])
    assert (selector.state, selector.due_t) == ("protection", None)
    selector.restore(2.0)
    assert selector.state == "switching"
    selector.advance(2.05)
    assert selector.state == "working"


def test_a_manual_switch_does_not_go_to_a_path_that_is_cut() -> None:
    selector = Selector(SECOND)
    selector.learn(0.0, CUTS["working"])
    selector.restore(1.0)
    assert (selector.state, selector.due_t) == ("protection", None)


@given(
    st.lists(st.tuples(st.floats(0.001, 4.0), st.sampled_from([*CUTS.values()])), max_size=12),
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
    selector.learn(t, CUTS["none"])
    selector.advance(t + 10.0)
    assert selector.state == ("working" if revertive else selector.on)
    assert selector.carrier


# ---- as written


def load(text: str = TEXT) -> Topology:
    return load_text(text.encode(), "x.yaml")


def test_defaults_of_what_is_written() -> None:
    assert load().link("north").second_path == SecondPath(("bridge", "coast"), 120e3, 0.05, 0.0, 5.0, True, True)


def test_all_that_can_be_written() -> None:
    written = (
        "{type: restoration, via: coast, switch: 2s, hold_off: 100ms, wait_to_restore: 1min,"
        " revertive: false, carrier: kept}"
    )
    link = load(TEXT.replace("{type: 1+1, via: [bridge, coast]}", written)).link("north")
    assert link.protection == "restoration"
    assert link.second_path == SecondPath(("coast",), 117e3, 2.0, 0.1, 60.0, False, True)


def test_only_the_length_differs_on_the_second_path() -> None:
    link = load().link("north")
    own, switched = link.impairment("north:west"), link.switched("north:west")
    assert (own.delay_s, switched.delay_s) == (pytest.approx(200e-6), pytest.approx(600e-6))
    assert (own.rate_bps, own.queue_bytes) == (switched.rate_bps, switched.queue_bytes)


def test_a_protected_topology_survives_being_written_to_a_dictionary() -> None:
    assert topology_from_dict(topology_to_dict(load())) == load()


# ---- faults


@pytest.mark.parametrize(
    ("target", "path", "cuts", "dark"),
    [
        ("motorway", "", "working", ""),
        ("coast", "", "protection", "south-a south-b"),
        ("bridge", "", "working protection", ""),
        ("north", "", "working", ""),
        ("north:west", "", "working", ""),
        ("north", "protection", "protection", ""),
        ("north", "both", "working protection", ""),
        ("south", "", "", "south-a south-b"),
    ],
)
def test_the_paths_that_a_cut_takes(target: str, path: str, cuts: str, dark: str) -> None:
    """All cuts are of link north; ``dark``: the interfaces of other links that lose their carrier."""
    compiled = compile_fault(load(), "cut", target, {"path": path} if path else {})
    phase = compiled.phases[0]
    assert {(cut.link, cut.path) for cut in phase.cuts} == {("north", path) for path in cuts.split()}
    assert {step.interface for step in phase.steps if isinstance(step, Carrier)} == set(dark.split())
    assert set(compiled.links) == ({"north"} if cuts else set()) | {end.rpartition("-")[0] for end in dark.split()}


def test_a_flap_cuts_the_path_and_gives_it_back() -> None:
    phases = compile_fault(load(), "flap", "motorway", {}).phases
    assert [phase.cuts for phase in phases] == [(PathCut("north", "working"),), ()]


@pytest.mark.parametrize(
    ("target", "path", "error"),
    [
        ("south", "both", "path="),
        ("coast", "both", "path="),
        ("north", "second", "path="),
        ("north:wets", "", r"^unknown link end "),
    ],
)
def test_a_path_or_an_end_that_a_link_does_not_have(target: str, path: str, error: str) -> None:
    with pytest.raises(UserError, match=error):
        compile_fault(load(), "cut", target, {"path": path} if path else {})
