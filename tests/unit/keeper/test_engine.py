"""The engine with a handler that records its calls."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders.noop import NoHandler
from builders.tables import table

from testbed.core.physics.change import Change
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.properties import Carrier, Changed, Shape
from testbed.core.plan.resources import Address, Agents, Fibers, Namespace, Redirect, Route
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, LabError, NameTaken, StorageError
from testbed.keeper.engine import Engine
from testbed.keeper.journal import Journal

STEPS: dict[str, Step] = {
    "plant": Namespace("plant"),
    "east": Namespace("east-gw"),
    "west": Namespace("west-gw"),
    "fibers": Fibers("plant", ()),
    "agents": Agents(()),
    "address": Address("plant", "north-a", "10.0.0.1/31"),
    "redirect": Redirect("plant", "north-a", "south-a"),
    **{f"route{number}": Route("a-gw", f"10.{number}.0.0/16", (("10.255.0.1", "k1"),), 5) for number in (1, 2, 3)},
    **{f"{port}+": Carrier("plant", port, True) for port in ("north-a", "north-b", "south-a")},
    **{f"{port}-": Carrier("plant", port, False) for port in ("north-a", "north-b", "south-a")},
    "cable+": Carrier("a-gw", "a-0", True),
    "cable-": Carrier("a-gw", "a-0", False),
    **{f"loss{loss}": Shape("north:west", Impairment(loss=loss)) for loss in (0.0, 0.01, 0.5)},
    "+loss0.2": Changed("north:west", Change(loss=0.2)),
    "+loss0.6": Changed("north:west", Change(loss=0.6)),
}
NAMES = {step: name for name, step in STEPS.items()}
REFUSAL = HostError("the kernel said no")


class Recorder(NoHandler):
    """``made`` exists, ``calls`` are in order. Steps in ``broken`` or ``stuck`` fail with the error there."""

    __hash__ = object.__hash__  # the engine groups settings by handler

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.made: list[str] = []
        self.values: dict[tuple[str, ...], Property] = {}
        self.broken: dict[str, Exception] = {}
        self.stuck: dict[str, Exception] = {}
        self.intended: list[bool] = []
        self.facts: dict[str, Mapping[str, Any]] = {}

    def make(self, step: Step) -> dict[str, Any]:
        name = NAMES[step]
        self.intended.append(name in names(Journal.read(self.path)).split())
        if name in self.broken:
            raise self.broken[name]
        self.calls.append(f"make {name}")
        self.made.append(name)
        return {"inode": len(self.made)} if isinstance(step, Namespace) else {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        name = NAMES[step]
        self.facts[name] = dict(facts)
        if name in self.stuck:
            raise self.stuck[name]
        self.calls.append(f"unmake {name}")
        if name in self.made:
            self.made.remove(name)

    def assign(self, settings: Sequence[Property]) -> None:
        for setting in settings:
            if error := self.broken.get(NAMES.get(setting, "")):
                raise error
        self.calls.append(" ".join(["assign", *(NAMES.get(setting, "") for setting in settings)]))
        self.values |= {setting.key: setting for setting in settings}


class Lab:
    """An engine whose steps all go to ``hand``."""

    def __init__(self, path: Path) -> None:
        self.hand = Recorder(path)
        self.begin(Journal.create(path, "lab", "boot", (1, 1)))

    def begin(self, journal: Journal) -> None:
        self.journal, self.engine = journal, Engine(journal, dict.fromkeys(map(type, STEPS.values()), self.hand))

    def play(self, moves: str) -> str:
        """Play moves, such as ``apply f1 north-a-; undo f1``; return the calls of the handler during the last one.

        A move is a method of the engine, an owner, and a plan. ``crash``: another process goes on, with the journal
        on disk alone.
        """
        for move in moves.split("; "):
            verb, *words = move.split()
            self.hand.calls.clear()
            if verb == "crash":
                self.begin(Journal.read(self.hand.path))
            elif verb in ("apply", "replace"):
                getattr(self.engine, verb)(words[0], tuple(STEPS[name] for name in words[1:]))
            else:
                getattr(self.engine, verb)(*words)
        return ", ".join(self.hand.calls)

    @property
    def values(self) -> str:
        return " ".join(NAMES.get(value, str(value)) for value in self.hand.values.values())


def names(journal: Journal) -> str:
    return " ".join(NAMES[entry.step] for entry in journal.entries.values())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "journal.jsonl")


@pytest.fixture
def lit(lab: Lab) -> Lab:
    """A lab whose fiber is lit."""
    lab.play("apply lab plant north-a+ north-b+")
    return lab


UP = "apply lab plant north-a+ north-b+"
CUT = "apply f1 north-a- north-b-"


@table(
    "before, move, calls, left",
    {
        "steps are made in order and consecutive settings in one call": (
            "settle",
            "apply lab plant fibers north-a+ north-b+ agents",
            "make plant, make fibers, assign north-a+ north-b+, make agents",
            "plant fibers north-a+ north-b+ agents",
        ),
        "undo goes backwards": (
            "apply lab plant east fibers",
            "undo lab",
            "unmake fibers, unmake east, unmake plant",
            "",
        ),
        "contents of a namespace that is removed are not undone one by one": (
            "apply lab plant address north-a+",
            "undo lab",
            "unmake plant",
            "",
        ),
        "undo of nothing does nothing": (UP, "undo f7", "", "plant north-a+ north-b+"),
        "undo of everything sets nothing on what is removed anyway": (
            f"{UP}; {CUT}; apply f2 loss0.5",
            "undo_all",
            "unmake plant",
            "",
        ),
        "both ends of a fiber go down in one call": (
            UP,
            CUT,
            "assign north-a- north-b-",
            "plant north-a+ north-b+ north-a- north-b-",
        ),
        "both ends of a fiber go up in one call": (
            f"{UP}; {CUT}",
            "undo f1",
            "assign north-b+ north-a+",
            "plant north-a+ north-b+",
        ),
        "replace undoes first what is old and applies only what is new": (
            "apply detours route1 route2",
            "replace detours route2 route3",
            "unmake route1, make route3",
            "route2 route3",
        ),
        "replace by the same plan does nothing": (
            "apply detours route2 route3",
            "replace detours route2 route3",
            "",
            "route2 route3",
        ),
        "replace by nothing undoes everything": ("apply detours route1", "replace detours", "unmake route1", ""),
        "replace sets the next value without others in between": (
            "apply lab loss0.0; apply f1 loss0.01",
            "replace f1 loss0.5",
            "assign loss0.5",
            "loss0.0 loss0.5",
        ),
        "replace by nothing sets the lab's own value": (
            "apply lab loss0.0; apply f1 loss0.5",
            "replace f1",
            "assign loss0.0",
            "loss0.0",
        ),
        # A site that loses power: the light at that moment, the processes after it.
        "a replacement is set before anything is made": (
            UP,
            "replace f1 redirect north-a-",
            "assign north-a-, make redirect",
            "plant north-a+ north-b+ north-a- redirect",
        ),
    },
)
def test_calls_of_the_handler_and_the_steps_left(lab: Lab, before: str, move: str, calls: str, left: str) -> None:
    lab.play(before)
    assert lab.play(move) == calls
    assert names(lab.journal) == left


def test_each_step_has_a_text_of_its_own() -> None:
    assert len({str(step) for step in STEPS.values()}) == len(STEPS)


# ---- apply and undo


def test_each_intention_is_on_disk_before_its_step_is_made(lab: Lab) -> None:
    lab.play("apply lab plant east fibers")
    assert lab.hand.intended == [True] * 3


def test_facts_of_making_a_step_are_passed_to_its_undo(lab: Lab) -> None:
    lab.play("apply lab plant east; crash; undo lab")
    assert lab.hand.facts == {"plant": {"inode": 1}, "east": {"inode": 2}}
    assert lab.hand.made == []


def test_kinds_are_announced_once_in_a_row(lab: Lab) -> None:
    kinds: list[str] = []
    plan = tuple(STEPS[name] for name in ("plant", "east", "north-a+", "west", "fibers"))
    lab.engine.apply("lab", plan, kinds.append)
    assert kinds == ["Namespace", "Fibers"]


def test_undo_touches_nothing_of_another_owner(lit: Lab) -> None:
    lit.play(f"apply detours route1; {CUT}; undo detours")
    assert lit.hand.made == ["plant"]
    assert lit.values == "north-a- north-b-"
    assert [entry.owner for entry in lit.journal.entries.values()] == ["lab", "lab", "lab", "f1", "f1"]


def test_a_make_that_fails_is_undone_and_steps_after_it_are_not(lab: Lab) -> None:
    """It may be half made. A namespace with the name of a step that never began may be somebody else's."""
    lab.hand.broken = {"east": REFUSAL}
    with pytest.raises(HostError, match="the kernel said no"):
        lab.play("apply lab plant east west north-a+")
    assert lab.hand.calls == ["make plant"]
    lab.play("crash")
    assert names(lab.journal) == "plant east"
    assert lab.play("undo lab") == "unmake east, unmake plant"
    assert lab.hand.facts["east"] == {}
    assert lab.hand.made == []
    lab.play("crash")
    assert names(lab.journal) == ""


def test_what_belongs_to_somebody_else_is_left_alone(lab: Lab) -> None:
    lab.hand.broken = {"east": NameTaken("the network namespace tb.lab.east-gw exists already")}
    with pytest.raises(NameTaken):
        lab.play("apply lab plant east west")
    assert lab.hand.calls == ["make plant"]
    assert lab.play("crash; undo_all") == "unmake plant"


def test_undo_goes_on_after_a_failure_then_raises_and_can_be_tried_again(lab: Lab) -> None:
    lab.play("apply lab plant east west")
    lab.hand.stuck = {"east": HostError("processes [7] do not end"), "west": LabError("nor does this")}
    with pytest.raises(HostError, match=r"undo failed: nor does this; processes \[7\] do not end"):
        lab.play("undo lab")
    assert " ".join(lab.hand.made) == names(lab.journal) == "east west"
    lab.hand.stuck = {}
    lab.play("undo lab")
    assert " ".join(lab.hand.made) == names(lab.journal) == ""


# ---- settings


@pytest.mark.parametrize("order", list(itertools.permutations(["f1", "f2", "f3"])))
def test_overlapping_cuts_end_when_the_last_of_them_ends(lit: Lab, order: Sequence[str]) -> None:
    lit.play("; ".join(f"apply {owner} north-a- north-b-" for owner in sorted(order)))
    for number, owner in enumerate(order, 1):
        lit.play(f"undo {owner}")
        assert lit.values == ("north-a+ north-b+" if number == 3 else "north-a- north-b-")


PHASE = "replace f1: loss0.5, replace f1 loss0.01: loss0.5, "


@table(
    "moves",
    {
        "the latest impairment in force wins": (
            "apply f1 loss0.01: loss0.01, apply f2 loss0.5: loss0.5, undo f1: loss0.5, undo f2: loss0.0"
        ),
        "a phase of an earlier fault does not override a later fault": (
            f"apply f1 loss0.01: loss0.01, apply f2 loss0.5: loss0.5, {PHASE * 3}"
            "crash; reconcile: loss0.5, undo f2: loss0.01, undo f1: loss0.0"
        ),
        "a fault that had no value for a while has one again": (
            "apply f1 loss0.01: loss0.01, replace f1 loss0.5: loss0.5, replace f1: loss0.0, "
            "replace f1 loss0.01: loss0.01, undo f1: loss0.0"
        ),
    },
)
def test_the_value_in_force_after_each_move(lab: Lab, moves: str) -> None:
    lab.play("apply lab loss0.0")
    for move in moves.split(", "):
        played, value = move.split(": ")
        lab.play(played)
        assert lab.values == value, move


def test_a_setting_that_cannot_be_made_can_be_undone(lit: Lab) -> None:
    lit.hand.broken = {"north-b-": REFUSAL}
    with pytest.raises(HostError):
        lit.play(CUT)
    lit.play("undo f1")
    assert lit.values == "north-a+ north-b+"
    assert lit.journal.owned("f1") == []


def test_what_could_not_be_set_back_is_set_by_the_next_reconcile(lab: Lab) -> None:
    """Also where the lab itself has no value for it, such as a node's cable, and no owner is left."""
    lab.play("apply f1 cable-")
    lab.hand.broken = {"cable+": REFUSAL}
    for move in ("undo f1", "settle"):
        with pytest.raises(HostError):
            lab.play(move)
    lab.hand.broken = {}
    assert lab.values == "cable-"
    lab.play("reconcile")
    assert lab.values == "cable+"
    assert lab.play("settle") == ""


# ---- crashes


def test_reconcile_ends_where_it_must_after_a_crash_in_the_middle(lit: Lab) -> None:
    """The process died between recording a cut and making it, and forgot another one without lighting the fiber."""
    lit.play("apply lab south-a+")
    lit.journal.intend("f1", [STEPS["north-a-"], STEPS["north-b-"]])
    lit.play("apply f2 south-a-")
    lit.journal.undone(lit.journal.owned("f2"))
    assert lit.values == "north-a+ north-b+ south-a-"
    lit.play("crash; reconcile")
    assert lit.values == "north-a- north-b- south-a+"


def test_a_crash_between_two_phases_leaves_one_of_them(lit: Lab) -> None:
    """Torn anywhere, the journal has the old phase, or the new one, or both, and undo ends all."""
    path = lit.hand.path
    lit.play(CUT)
    before = path.stat().st_size
    lit.play("replace f1 north-a-; replace f1 south-a-")
    whole = path.read_bytes()
    for size in range(before, len(whole) + 1):
        path.write_bytes(whole[:size])
        lit.play("crash")
        assert lit.journal.owned("f1")
        lit.play("undo f1")
        lit.journal.close()
        assert lit.values.startswith("north-a+ north-b+")
        assert not Journal.read(path).owned("f1")


def test_a_phase_that_cannot_be_recorded_changes_nothing(lit: Lab) -> None:
    lit.play(CUT)
    lit.journal.close()
    lit.journal.path = lit.hand.path.parent / "gone" / "journal.jsonl"
    with pytest.raises(StorageError):
        lit.play("replace f1")
    assert lit.values == "north-a- north-b-"
    assert len(lit.journal.owned("f1")) == 2


def test_a_crash_between_two_phases_counts_the_newer_one_only(lab: Lab) -> None:
    """The new phase is written before the old one is forgotten: both of one fault must not add up."""
    lab.play("apply lab loss0.5; apply f1 +loss0.2")
    lab.journal.intend("f1", [STEPS["+loss0.6"]])
    lab.play("crash; reconcile")
    shape = lab.hand.values["shape", "north:west"]
    assert isinstance(shape, Shape) and shape.impairment.loss == pytest.approx(0.8)


def test_a_whole_impairment_of_another_owner_takes_the_place_of_the_links(lab: Lab) -> None:
    """A link on its protection path has one; the newest counts until it is undone."""
    own, strong = (dataclasses.asdict(Impairment(loss=loss)) for loss in (0.0, 0.5))
    shape = {"step": "Shape", "direction": "north:west", "impairment": own, "flush": False}
    lines: list[dict[str, Any]] = [
        {"journal": 3, "lab": "lab", "boot": "boot", "keeper": [1, 1]},
        {"id": 1, "owner": "lab", "intend": shape},
        {"id": 2, "owner": "f1", "intend": {**shape, "impairment": strong}},
        {"note": "fault", "id": "f1", "type": "impair", "target": "north", "links": ["north"]},
    ]
    lab.hand.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lab.play("crash; reconcile")
    assert lab.values == "loss0.5"
    lab.play("undo f1")
    assert lab.values == "loss0.0"
    lab.play("crash")
    assert [entry.owner for entry in lab.journal.entries.values()] == ["lab"]
