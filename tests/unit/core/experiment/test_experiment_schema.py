"""Experiment files: parsed, resolved against a topology, judged against measurements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from builders.experiments import load, replayed
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import topology
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.experiment import expect, fault_schedule
from testbed.core.experiment.experiment_schema import load_text
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.faults.fault_kind import Compiled, FaultKind
from testbed.core.units import Unreadable
from testbed.errors import FileMistakes

ROOT = Path(__file__).parents[4]
METRO = topology(
    "sites: {east: , west: }\nducts: {bridge: 3 km}\n"
    "links: {north: {between: [east, west], km: 40}, south: {between: [east, west], via: bridge}}\n"
)


def test_first_cut_as_shipped() -> None:
    experiment = load_text((ROOT / "experiments" / "first-cut.yaml").read_bytes(), "first-cut.yaml")
    assert (experiment.name, experiment.steps) == ("first-cut", 500)
    assert experiment.teaches
    assert fault_schedule.plan(experiment, METRO) == (Planned("cut", "north", 8.0, after_step=200, lasts_s=8.0),)
    assert [one.metric for one in experiment.expectations] == ["goodput", "recovery", "train_loss_drop"]


@by_input("written, strict", {"": False, "strict: true\n": True, "strict: false\n": False})
def test_strict(written: str, strict: bool) -> None:
    experiment = load(f"topology: metro-40km\n{written}")
    assert experiment.strict is replayed(experiment).strict is strict


def test_triggers_targets_and_shares() -> None:
    experiment = load(
        "schedule:\n"
        '  - {after: step 120, inject: cut, target: "link[1]", for: 10s}\n'
        '  - {at: 20s, inject: cut, target: "link[0]:west"}\n'
        "  - {after: step 12.5%, inject: cut, target: bridge, for: 1 min}\n"
        "  - {after: step 99.9%, inject: flap, target: north, with: {down: 100ms, times: 5, carrier: silent}}\n"
    )
    parameters = {"down": "100ms", "times": "5", "carrier": "silent"}
    lasts_s: Any = pytest.approx(4 * (0.1 + 0.8) + 0.1)
    assert fault_schedule.plan(experiment, METRO, steps=200) == (
        Planned("cut", "south", 10.0, after_step=120, lasts_s=10.0),
        Planned("cut", "north:west", None, at_s=20.0),
        Planned("cut", "bridge", 60.0, after_step=25, lasts_s=60.0),
        Planned("flap", "north", None, 199, parameters=parameters, lasts_s=lasts_s),
    )


def test_faults_that_later_versions_know() -> None:
    text = b"schedule: [{at: 1s, inject: earthquake, target: north}]\n"
    with pytest.raises(FileMistakes, match="earthquake"):
        load_text(text, "x.yaml")
    later = FaultKind("earthquake", "", "", lambda aim, given: Compiled((), ()))
    assert load_text(text, "x.yaml", faults={"earthquake": later}).schedule[0].inject == "earthquake"


@by_input(
    "text, expected",
    {
        "goodput >= 0.5": ("goodput", ">=", 0.5),
        "goodput>50%": ("goodput", ">", 0.5),
        "recovery <= 10s": ("recovery", "<=", 10.0),
        "recovery < 2 min": ("recovery", "<", 120.0),
        "train_loss_drop > 0": ("train_loss_drop", ">", 0.0),
        "steps_lost <= 3": ("steps_lost", "<=", 3.0),
    },
)
def test_parse_expectations(text: str, expected: tuple[str, str, float]) -> None:
    parsed = expect.parse(text)
    assert (parsed.metric, parsed.op, parsed.bound) == expected


@table(
    "text, value, verdict",
    {
        "at the bound": ("goodput >= 0.5", 0.5, True),
        "at a bound that must be exceeded": ("goodput > 0.5", 0.5, False),
        "below": ("goodput >= 0.5", 0.49, False),
        "never": ("recovery <= 10s", math.inf, False),
        "not measured": ("recovery <= 10s", None, None),
        "not a number": ("recovery <= 10s", math.nan, None),
    },
)
def test_judge_expectations(text: str, value: float | None, verdict: bool | None) -> None:
    assert expect.judge(expect.parse(text), {"goodput": value, "recovery": value}) is verdict


@given(st.sampled_from(["goodput >= 0", "recovery < 1 h", "steps_lost >= 0"]))
def test_what_is_missing_never_passes(text: str) -> None:
    assert expect.judge(expect.parse(text), {}) is None


@given(st.one_of(st.text(), st.integers(), st.none()))
def test_any_text_is_an_expectation_or_refused(value: object) -> None:
    try:
        assert expect.parse(value).metric in expect.METRICS
    except Unreadable as error:
        assert error.fix


@settings(max_examples=200, deadline=2000)
@given(st.one_of(st.binary(max_size=100), st.text("schedule:expct-{}[]atfor \n1", max_size=80).map(str.encode)))
def test_any_bytes_load_or_are_refused(text: bytes) -> None:
    try:
        load_text(text, "x.yaml")
    except FileMistakes as error:
        str(error).encode("utf-8")


def test_the_number_of_a_rank_needs_no_quotes() -> None:
    """YAML reads it as a number; what is no name and no number stays a mistake."""
    schedule = "schedule: [{at: 1s, inject: rank-kill, target: %s}]\n"
    for number in ("3", '"3"'):
        assert load(schedule % number).schedule[0].target == "3"
    for wrong in ("true", "1.5", "[1]"):
        with pytest.raises(FileMistakes, match="expected a line of text"):
            load(schedule % wrong)
