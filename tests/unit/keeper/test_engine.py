"""The engine with hands that only write down what they were asked to do."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.noop import NoHandler

from testbed.core.physics.change import Change
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.properties import Carrier, Changed, Shape
from testbed.core.plan.resources import Address, Agents, Fibers, Namespace, Redirect, Route, Veth
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, LabError, NameTaken, StorageError
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import Journal

UP_A, UP_B = Carrier("plant", "north-a", True), Carrier("plant", "north-b", True)
DOWN_A, DOWN_B = Carrier("plant", "north-a", False), Carrier("plant", "north-b", False)
CUT = (DOWN_A, DOWN_B)
PLANT, EAST, WEST = Namespace("plant"), Namespace("east-gw"), Namespace("west-gw")
FIBERS = Fibers("plant", ())


@dataclass
class Recorder(NoHandler):
    """``world`` is what stands, ``said`` the order of calls. What is in ``broken`` fails with the error there."""

    journal: Path
    said: list[str] = field(default_factory=list)
    world: list[Step] = field(default_factory=list)
    values: dict[tuple[str, ...], Property] = field(default_factory=dict)
    broken: dict[Step, Exception] = field(default_factory=dict)
    stuck: dict[Step, Exception] = field(default_factory=dict)
    intended: list[bool] = field(default_factory=list)
    facts_seen: dict[Step, Mapping[str, Any]] = field(default_factory=dict)

    __hash__ = object.__hash__  # the engine groups settings by hand

    def make(self, step: Step) -> dict[str, Any]:
        standing = Journal.read(self.journal).entries.values()
        self.intended.append(step in [it.step for it in standing])
        if step in self.broken:
            raise self.broken[step]
        self.said.append(f"make {step}")
        self.world.append(step)
        return {"inode": len(self.world)} if isinstance(step, Namespace) else {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        self.facts_seen[step] = dict(facts)
        if step in self.stuck:
            raise self.stuck[step]
        self.said.append(f"unmake {step}")
        if step in self.world:
            self.world.remove(step)

    def assign(self, settings: Sequence[Property]) -> None:
        for setting in settings:
            if setting in self.broken:
                raise self.broken[setting]
        self.said.append("assign " + ", ".join(str(it) for it in settings))
        self.values |= {it.key: it for it in settings}

    @property
    def lit(self) -> dict[str, bool]:
        return {key[2]: it.up for key, it in self.values.items() if isinstance(it, Carrier)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def hand(path: Path) -> Recorder:
    return Recorder(path)


def engine_on(journal: Journal, hand: Recorder) -> Engine:
    return Engine(
        journal,
        dict.fromkeys((Namespace, Veth, Address, Route, Redirect, Fibers, Agents, Carrier, Changed, Shape), hand),
    )


@pytest.fixture
def engine(path: Path, hand: Recorder) -> Engine:
    return engine_on(Journal.create(path, "lab", "boot", (1, 1)), hand)


@pytest.fixture
def lit(engine: Engine, hand: Recorder) -> Engine:
    """A lab whose fiber is lit."""
    engine.apply(LAB, (PLANT, UP_A, UP_B))
    hand.said.clear()
    return engine


# ---- apply


def test_every_intention_is_on_disk_before_its_step_is_made(engine: Engine, hand: Recorder) -> None:
    engine.apply(LAB, (PLANT, EAST, FIBERS))
    assert hand.intended == [True, True, True]


def test_steps_are_made_in_order_and_runs_of_settings_at_once(engine: Engine, hand: Recorder) -> None:
    engine.apply(LAB, (PLANT, FIBERS, UP_A, UP_B, Agents(())))
    assert hand.said == [f"make {PLANT}", f"make {FIBERS}", f"assign {UP_A}, {UP_B}", f"make {Agents(())}"]


def test_what_making_brought_to_light_is_there_for_the_undoing(engine: Engine, hand: Recorder, path: Path) -> None:
    engine.apply(LAB, (PLANT, EAST))
    engine_on(Journal.read(path), hand).undo(LAB)
    assert hand.facts_seen == {PLANT: {"inode": 1}, EAST: {"inode": 2}}


def test_kinds_are_announced_once_in_a_row(engine: Engine) -> None:
    heard: list[str] = []
    engine.apply(LAB, (PLANT, EAST, UP_A, WEST, FIBERS), heard.append)
    assert heard == ["Namespace", "Fibers"]


# ---- undo


def test_undo_goes_backwards(engine: Engine, hand: Recorder) -> None:
    engine.apply(LAB, (PLANT, EAST, FIBERS))
    hand.said.clear()
    engine.undo(LAB)
    assert hand.said == [f"unmake {FIBERS}", f"unmake {EAST}", f"unmake {PLANT}"]
    assert hand.world == []
    assert engine.journal.entries == {}


def test_what_lives_in_a_namespace_that_goes_is_not_undone_one_by_one(engine: Engine, hand: Recorder) -> None:
    inside = Address("plant", "north-a", "10.0.0.1/31")
    engine.apply(LAB, (PLANT, inside, UP_A))
    hand.said.clear()
    engine.undo(LAB)
    assert hand.said == [f"unmake {PLANT}"]
    assert engine.journal.entries == {}


def test_undo_touches_nothing_of_another_owner(lit: Engine, hand: Recorder) -> None:
    route = Route("east-gw", "10.2.0.0/16", (), 5)
    lit.apply("detours", (route,))
    lit.apply("f1", CUT)
    lit.undo("detours")
    assert hand.world == [PLANT]
    assert hand.lit == {"north-a": False, "north-b": False}
    assert [it.owner for it in lit.journal.entries.values()] == [LAB, LAB, LAB, "f1", "f1"]


def test_undo_of_nothing_does_nothing(lit: Engine, hand: Recorder) -> None:
    lit.undo("f7")
    assert hand.said == []


def test_a_make_that_fails_leaves_its_step_to_be_undone(engine: Engine, hand: Recorder, path: Path) -> None:
    hand.broken = {EAST: HostError("the kernel said no")}
    with pytest.raises(HostError, match="the kernel said no"):
        engine.apply(LAB, (PLANT, EAST, WEST))
    engine_on(Journal.read(path), hand).undo(LAB)
    # It may have got half way: it is undone too, though nothing is known of it.
    assert hand.said == [f"make {PLANT}", f"unmake {EAST}", f"unmake {PLANT}"]
    assert hand.facts_seen[EAST] == {}
    assert hand.world == []
    assert Journal.read(path).entries == {}


def test_what_was_never_begun_is_never_undone(engine: Engine, hand: Recorder, path: Path) -> None:
    """A namespace of that name may be there, and not be ours."""
    hand.broken = {EAST: HostError("the kernel said no")}
    with pytest.raises(HostError):
        engine.apply(LAB, (PLANT, EAST, WEST, UP_A))
    assert [it.step for it in Journal.read(path).entries.values()] == [PLANT, EAST]


def test_what_belongs_to_somebody_else_is_left_alone(engine: Engine, hand: Recorder, path: Path) -> None:
    hand.broken = {EAST: NameTaken("the network namespace tb.lab.east-gw exists already")}
    with pytest.raises(NameTaken):
        engine.apply(LAB, (PLANT, EAST, WEST))
    engine_on(Journal.read(path), hand).undo_all()
    assert hand.said == [f"make {PLANT}", f"unmake {PLANT}"]


def test_undo_goes_on_after_a_failure_then_raises_and_can_be_tried_again(engine: Engine, hand: Recorder) -> None:
    engine.apply(LAB, (PLANT, EAST, WEST))
    hand.stuck = {EAST: HostError("processes [7] do not end"), WEST: LabError("nor does this")}
    with pytest.raises(HostError, match=r"undo failed: nor does this; processes \[7\] do not end"):
        engine.undo(LAB)
    assert hand.world == [EAST, WEST]
    assert [it.step for it in engine.journal.entries.values()] == [EAST, WEST]
    hand.stuck = {}
    engine.undo(LAB)
    assert hand.world == []
    assert engine.journal.entries == {}


def test_undo_all_sets_no_value_on_what_goes_anyway(lit: Engine, hand: Recorder) -> None:
    lit.apply("f1", CUT)
    lit.apply("f2", (Shape("north:west", Impairment(loss=0.5)),))
    hand.said.clear()
    lit.undo_all()
    assert hand.said == [f"unmake {PLANT}"]
    assert lit.journal.entries == {}


# ---- settings


@pytest.mark.parametrize("order", list(itertools.permutations(["f1", "f2", "f3"])))
def test_overlapping_cuts_end_when_the_last_of_them_ends(lit: Engine, hand: Recorder, order: tuple[str, ...]) -> None:
    for owner in ("f1", "f2", "f3"):
        lit.apply(owner, CUT)
    for number, owner in enumerate(order, 1):
        lit.undo(owner)
        assert hand.lit == dict.fromkeys(("north-a", "north-b"), number == 3)


def test_the_latest_impairment_that_still_stands_wins(engine: Engine, hand: Recorder) -> None:
    own, mild, strong = (Shape("north:west", Impairment(loss=loss)) for loss in (0.0, 0.01, 0.5))
    engine.apply(LAB, (own,))
    engine.apply("f1", (mild,))
    engine.apply("f2", (strong,))
    assert hand.values[own.key] == strong
    engine.undo("f1")
    assert hand.values[own.key] == strong
    engine.undo("f2")
    assert hand.values[own.key] == own


def test_both_ends_of_a_fiber_change_in_one_call(lit: Engine, hand: Recorder) -> None:
    lit.apply("f1", CUT)
    lit.undo("f1")
    assert hand.said[0] == f"assign {DOWN_A}, {DOWN_B}"
    assert len(hand.said) == 2


def test_reconcile_ends_where_it_must_after_a_crash_in_the_middle(lit: Engine, hand: Recorder, path: Path) -> None:
    """The process died between writing a cut down and making it, and forgot another one without lighting the fiber."""
    other = Carrier("plant", "south-a", True)
    lit.apply(LAB, (other,))
    lit.journal.intend("f1", CUT)
    lit.apply("f2", (Carrier("plant", "south-a", False),))
    lit.journal.undone(lit.journal.owned("f2"))
    assert hand.lit == {"north-a": True, "north-b": True, "south-a": False}
    engine_on(Journal.read(path), hand).reconcile()
    assert hand.lit == {"north-a": False, "north-b": False, "south-a": True}


def test_a_setting_that_cannot_be_made_can_be_undone(lit: Engine, hand: Recorder) -> None:
    hand.broken = {DOWN_B: HostError("no interface north-b")}
    with pytest.raises(HostError):
        lit.apply("f1", CUT)
    lit.undo("f1")
    assert hand.lit == {"north-a": True, "north-b": True}
    assert lit.journal.owned("f1") == []


def test_what_could_not_be_set_back_is_set_by_the_next_reconcile(lit: Engine, hand: Recorder) -> None:
    """Also where the lab itself says nothing of it, as of a node's cable, and nothing stands for it any more."""
    cable = Carrier("a-gw", "a-0", False)
    lit.apply("f1", (cable,))
    hand.broken = {Carrier("a-gw", "a-0", True): HostError("not now")}
    with pytest.raises(HostError):
        lit.undo("f1")
    with pytest.raises(HostError):
        lit.settle()
    hand.broken = {}
    assert hand.lit["a-0"] is False
    lit.reconcile()
    assert hand.lit["a-0"] is True
    hand.said.clear()
    lit.settle()
    assert hand.said == []


# ---- replace


def test_replace_undoes_what_is_old_first_and_applies_what_is_new_only(engine: Engine, hand: Recorder) -> None:
    one, two, three = (Route("a-gw", f"10.{k}.0.0/16", (("10.255.0.1", "k1"),), 5) for k in (2, 3, 4))
    engine.replace("detours", (one, two))
    hand.said.clear()
    engine.replace("detours", (two, three))
    assert hand.said == [f"unmake {one}", f"make {three}"]
    hand.said.clear()
    engine.replace("detours", (two, three))
    assert hand.said == []
    engine.replace("detours", ())
    assert hand.world == []


def test_replace_leads_from_one_value_to_the_next_without_others_in_between(engine: Engine, hand: Recorder) -> None:
    own, mild, strong = (Shape("north:west", Impairment(loss=loss)) for loss in (0.0, 0.01, 0.5))
    engine.apply(LAB, (own,))
    engine.apply("f1", (mild,))
    hand.said.clear()
    engine.replace("f1", (strong,))
    assert hand.said == [f"assign {strong}"]
    engine.replace("f1", ())
    assert hand.said[1:] == [f"assign {own}"]
    engine.replace("f1", (mild,))
    assert hand.values[own.key] == mild
    engine.undo("f1")
    assert hand.values[own.key] == own


def test_a_phase_of_an_earlier_fault_has_no_say_over_a_later_one(engine: Engine, hand: Recorder, path: Path) -> None:
    own, mild, strong = (Shape("north:west", Impairment(loss=loss)) for loss in (0.0, 0.01, 0.5))
    engine.apply(LAB, (own,))
    engine.apply("f1", (mild,))
    engine.apply("f2", (strong,))
    for _ in range(3):
        engine.replace("f1", ())
        engine.replace("f1", (mild,))
        assert hand.values[own.key] == strong
    after_a_crash = engine_on(Journal.read(path), hand)
    after_a_crash.reconcile()
    assert hand.values[own.key] == strong
    after_a_crash.undo("f2")
    assert hand.values[own.key] == mild
    after_a_crash.undo("f1")
    assert hand.values[own.key] == own


def test_a_crash_between_two_phases_leaves_one_of_them(lit: Engine, hand: Recorder, path: Path) -> None:
    """Torn anywhere, the journal says that the old phase stands, or the new one, or both, and undo ends all."""
    lit.apply("f1", CUT)
    before = path.read_bytes()
    lit.replace("f1", (DOWN_A,))
    lit.replace("f1", (Carrier("plant", "south-a", False),))
    whole = path.read_bytes()
    for cut in range(len(before), len(whole) + 1):
        path.write_bytes(whole[:cut])
        torn = Journal.read(path)
        assert torn.owned("f1")
        engine_on(torn, hand).undo("f1")
        torn.close()
        assert hand.lit["north-a"] and hand.lit["north-b"]
        assert not Journal.read(path).owned("f1")


def test_a_phase_that_cannot_be_written_down_changes_nothing(lit: Engine, hand: Recorder) -> None:
    lit.apply("f1", CUT)
    lit.journal.close()
    lit.journal.path = lit.journal.path.parent / "gone" / "journal.jsonl"
    with pytest.raises(StorageError):
        lit.replace("f1", ())
    assert hand.lit == {"north-a": False, "north-b": False}
    assert len(lit.journal.owned("f1")) == 2


def test_what_takes_the_place_is_set_before_anything_is_made(lit: Engine, hand: Recorder) -> None:
    """A site whose power goes: the light at that moment, the processes after it."""
    redirect = Redirect("plant", "north-a", "south-a")
    lit.replace("f1", (redirect, DOWN_A))
    assert hand.said == [f"assign {DOWN_A}", f"make {redirect}"]


def test_a_journal_from_before_faults_composed_is_read_and_undone(hand: Recorder, path: Path) -> None:
    """Its faults have whole impairments; the newest is then what the link itself has."""
    impairment = dataclasses.asdict(Impairment(loss=0.25))
    own = {"step": "Shape", "direction": "north:west", "impairment": dataclasses.asdict(Impairment()), "flush": False}
    lines: list[dict[str, Any]] = [
        {"journal": 2, "lab": "lab", "boot": "boot", "keeper": [1, 1]},
        {"id": 1, "owner": "lab", "intend": own},
        {"id": 2, "owner": "f1", "intend": {**own, "impairment": impairment}},
        {"note": "fault", "id": "f1", "type": "impair", "target": "north", "links": ["north"]},
    ]
    path.write_text("".join(json.dumps(it) + "\n" for it in lines))
    engine = engine_on(Journal.read(path), hand)
    engine.reconcile()
    assert hand.values["shape", "north:west"] == Shape("north:west", Impairment(loss=0.25))
    engine.undo("f1")
    assert hand.values["shape", "north:west"] == Shape("north:west", Impairment())
    assert [it.owner for it in Journal.read(path).entries.values()] == ["lab"]


def test_a_crash_between_two_phases_counts_the_newer_one_only(engine: Engine, hand: Recorder, path: Path) -> None:
    """The new phase is written before the old one is forgotten: both of one fault must not add up."""
    engine.apply(LAB, (Shape("north:west", Impairment(loss=0.5)),))
    engine.apply("f1", (Changed("north:west", Change(loss=0.2)),))
    engine.journal.intend("f1", (Changed("north:west", Change(loss=0.6)),))
    engine_on(Journal.read(path), hand).reconcile()
    found = hand.values["shape", "north:west"]
    assert isinstance(found, Shape) and found.impairment.loss == pytest.approx(0.8)
