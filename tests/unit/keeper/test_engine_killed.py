"""The engine killed at every step of what it does: from the journal alone everything ends where it must.

Operations are played once, with a hand that takes a picture of world and journal at each of its movements. Each moment
at which a SIGKILL could have come is made of these: the world as it was, and the journal up to any of its lines. What
must come out is said by a model that knows nothing of journals: who began when, and what he wants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders.noop import NoHandler

from testbed.core.physics.change import Change
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.properties import Carrier, Changed, Paused, Shape, Slowed, Throttled
from testbed.core.plan.resources import Route
from testbed.core.plan.step import Plan, Property, Step
from testbed.errors import HostError, TestbedError
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import Journal

Key = tuple[str, ...]
Values = dict[Key, Property]

FIBER, LOSSLESS = Carrier("plant", "north-a", True), Shape("north:west", Impairment())
OWN = (FIBER, LOSSLESS)
"""What the lab itself says. Of all other keys nobody says anything, once the faults that do are over."""
SETTINGS: tuple[Property, ...] = (
    Carrier("plant", "north-a", False),
    Changed("north:west", Change(loss=0.1)),
    Changed("north:west", Change(loss=0.2, extra_s=0.25)),
    Changed("north:west", Change(delay_s=2.0)),
    Carrier("east-gw", "east-0", False),
    Throttled(0, "east-0", 0.3),
    Throttled(0, "east-0", 0.6),
    Paused(1, True),
    Slowed(2, 0.5),
)
AT_REST: Values = {
    it.key: it
    for it in (*OWN, Carrier("east-gw", "east-0", True), Throttled(0, "east-0", None), Paused(1, False), Slowed(2, 0.0))
}
KINDS = (Carrier, Shape, Changed, Throttled, Paused, Slowed, Route)


class Moment(NamedTuple):
    """The world, and the journal that a SIGKILL left there and then."""

    journal: bytes
    values: Values
    made: frozenset[Step]


class Handler(NoHandler):
    """Moves things one by one; ``refuses`` is the key that it cannot set. ``moments`` are after each movement."""

    def __init__(self, path: Path, values: Values, made: frozenset[Step] = frozenset()) -> None:
        self.path, self.values, self.made = path, dict(values), set(made)
        self.moments: list[Moment] = []
        self.refuses: Key = ()

    __hash__ = object.__hash__  # the engine groups settings by hand

    def moved(self) -> None:
        self.moments.append(Moment(self.path.read_bytes(), dict(self.values), frozenset(self.made)))

    def make(self, step: Step) -> dict[str, Any]:
        self.made.add(step)
        self.moved()
        return {"inode": 7}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        self.made.discard(step)
        self.moved()

    def assign(self, settings: Sequence[Property]) -> None:
        for it in settings:
            if it.key == self.refuses:
                raise HostError("the kernel said no")
            self.values[it.key] = rounded(it)
            self.moved()


def rounded(it: Property) -> Property:
    if not isinstance(it, Shape):
        return it
    return Shape(it.direction, dataclasses.replace(it.impairment, loss=round(it.impairment.loss, 12)))


class Model:
    """Who wants what. Losses of one direction go together, delays add, one dark port is dark; of two who want something
    of another key the one that came later gets it."""

    def __init__(self) -> None:
        self.wants: dict[str, Plan] = {}

    def with_(self, owner: str, plan: Plan) -> Model:
        changed = Model()
        changed.wants = {**self.wants, owner: plan}
        return changed

    @property
    def values(self) -> Values:
        found = dict(AT_REST)
        passing, delay_s, extra_s = 1.0, 0.0, 0.0
        for plan in self.wants.values():
            for it in plan:
                if isinstance(it, Changed):
                    passing *= 1 - it.change.loss
                    delay_s = delay_s if it.change.delay_s is None else it.change.delay_s
                    extra_s += it.change.extra_s
                elif isinstance(it, Property):
                    found[it.key] = it
        # Numbers chosen so that sums are exact; 1 - 0.9 x 0.8 is compared as the engine gives it, to 12 digits.
        found[LOSSLESS.key] = Shape("north:west", Impairment(loss=round(1 - passing, 12), delay_s=delay_s + extra_s))
        return found

    @property
    def made(self) -> set[Step]:
        return {it for plan in self.wants.values() for it in plan if not isinstance(it, Property)}


def engine_on(journal: Journal, hand: Handler) -> Engine:
    return Engine(journal, dict.fromkeys(KINDS, hand))


def found_dead(moment: Moment, path: Path) -> tuple[Engine, Handler]:
    """Whoever comes after the SIGKILL: nothing but the journal and the world as it is."""
    path.write_bytes(moment.journal)
    hand = Handler(path, moment.values, moment.made)
    return engine_on(Journal.read(path), hand), hand


def all_moments(begin: Moment, hand: Handler) -> Iterator[Moment]:
    """Every moment since ``begin``: between two movements the journal grew by lines, of which any may be the last."""
    hand.moved()
    before = begin
    for after in hand.moments:
        assert after.journal.startswith(before.journal)
        grown = before.journal
        yield before
        for line in after.journal[len(before.journal) :].splitlines(keepends=True):
            grown += line
            yield Moment(grown, before.values, before.made)
        yield after
        before = after


def check(moment: Moment, allowed: Sequence[Model], owner: str, path: Path, refused: set[Key]) -> None:
    # Whoever reconciles: each key is where one of the plans that were under way has it.
    engine, hand = found_dead(moment, path)
    engine.reconcile()
    for key, value in hand.values.items():
        assert value in [model.values[key] for model in allowed], f"{key} is {value}"
    engine.journal.close()
    settled = dict(hand.values)
    again = engine_on(Journal.read(path), hand)
    again.reconcile()
    again.journal.close()
    assert hand.values == settled, "and it stays where it is"
    # Whoever heals what was under way: all others have what they want.
    engine, hand = found_dead(moment, path)
    engine.undo(owner)
    engine.settle()
    alone = allowed[-1].with_(owner, ())
    moved = {it.key for model in allowed for it in model.wants.get(owner, ()) if isinstance(it, Property)} - refused
    assert {key: hand.values[key] for key in moved} == {key: alone.values[key] for key in moved}
    assert hand.made == alone.made
    engine.reconcile()  # another owner may still wait for what was refused to it, which only its keeper knew
    engine.journal.close()
    assert hand.values == alone.values
    # Whoever heals everything, in any order.
    engine, hand = found_dead(moment, path)
    for each in sorted({it.owner for it in engine.journal.entries.values()} - {LAB}):
        engine.undo(each)
    engine.settle()
    engine.journal.close()
    assert hand.values == AT_REST
    assert hand.made == set()
    left = Journal.read(path)
    assert [it.step for it in left.entries.values()] == [*OWN]
    assert left.forgotten == {}


def some(chance: random.Random, owner: str) -> Plan:
    """A plan of one value a key at most, and of makings that no other owner has."""
    keyed = {it.key: it for it in chance.sample(SETTINGS, chance.randrange(4))}
    makings = [Route("east-gw", f"10.{number}.0.0/16", (), int(owner[1:])) for number in (2, 3)]
    return (*keyed.values(), *chance.sample(makings, chance.randrange(3)))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(it, marks=pytest.mark.thorough) for it in range(3, 60))])
def test_whenever_it_is_killed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path, elsewhere = tmp_path / "journal.jsonl", tmp_path / "found.jsonl"
    hand, model, count = Handler(path, AT_REST), Model(), 0
    engine = engine_on(Journal.create(path, "lab", "boot", (1, 1)), hand)
    engine.apply(LAB, OWN)
    for number in range(12):
        standing = [owner for owner, plan in model.wants.items() if plan]
        action = chance.choice(("begin", "lead on", "end")) if standing else "begin"
        owner = f"f{number}" if action == "begin" else chance.choice(standing)
        plan = () if action == "end" else some(chance, owner)
        # What was refused to another owner before: only the keeper knew, and a kill before the journal's next line
        # leaves it to whoever reconciles.
        refused = {key for key, value in model.values.items() if hand.values[key] != value}
        begin = Moment(path.read_bytes(), dict(hand.values), frozenset(hand.made))
        hand.moments.clear()
        hand.refuses = chance.choice(SETTINGS).key if chance.random() < 0.3 else ()
        allowed = [model, model.with_(owner, plan)]
        try:
            {"begin": engine.apply, "lead on": engine.replace, "end": lambda owner, plan: engine.undo(owner)}[action](
                owner, plan
            )
        except TestbedError:
            if action == "begin":  # as the keeper does
                with contextlib.suppress(TestbedError):
                    engine.undo(owner)
                allowed.append(model.with_(owner, ()))
            elif action == "lead on":  # what cannot be set keeps what is new from being made
                stood = model.wants[owner]
                allowed.append(model.with_(owner, tuple(it for it in plan if isinstance(it, Property) or it in stood)))
        model = allowed[-1]
        for moment in all_moments(begin, hand):
            check(moment, allowed, owner, elsewhere, refused)
            count += 1
    assert count > 50, "there was something to be killed in"
    hand.refuses = ()
    engine.settle()
    assert hand.values == model.values, "and the keeper that lives ends there too"
    assert engine.journal.forgotten == {}


def test_what_nothing_says_anything_of_any_more_is_set_back_by_the_next_heal(tmp_path: Path) -> None:
    """The keeper died between forgetting a node's throttle and taking it off: no other entry tells of that key."""
    path, key = tmp_path / "journal.jsonl", ("throttled", "east-0")
    hand = Handler(path, AT_REST)
    engine = engine_on(Journal.create(path, "lab", "boot", (1, 1)), hand)
    engine.apply("f1", (Throttled(0, "east-0", 0.3),))
    engine.journal.forget(engine.journal.owned("f1"))
    later = engine_on(Journal.read(path), hand)
    assert later.journal.owned("f1") == []
    later.settle()
    assert hand.values[key] == AT_REST[key]
    assert Journal.read(path).forgotten == {}


def test_what_a_full_disk_did_not_take_is_undone_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    hand = Handler(path, AT_REST)
    engine = engine_on(Journal.create(path, "lab", "boot", (1, 1)), hand)
    engine.apply("f1", (Carrier("east-gw", "east-0", False),))
    engine.journal.close()
    engine.journal.path = tmp_path / "gone" / "journal.jsonl"
    engine.undo("f1")
    assert hand.values == AT_REST
    engine_on(Journal.read(path), hand).undo("f1")
    assert hand.values == AT_REST
