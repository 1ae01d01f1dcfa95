"""Faults as the keeper leads them through their phases: in order, on time, and no longer than asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from builders.noop import NoHandler
from oracles import oracle

from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.properties import Carrier, Changed, Shape
from testbed.core.plan.step import Property
from testbed.errors import HostError
from testbed.host.files import catalog
from testbed.keeper import faults
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.faults import Faults
from testbed.keeper.in_force import InForce
from testbed.keeper.journal import Journal
from testbed.keeper.protection import Protection

T = TypeVar("T")
LIT, DARK = Carrier("plant", "north-a", True), Carrier("plant", "north-a", False)
FAULT = {"type": "flap", "target": "north", "links": ["north"], "nodes": [], "parameters": {}, "for_s": None}


class Handler(NoHandler):
    """Remembers what was set and when; ``slow_s`` is how long it takes, ``broken`` what it raises."""

    def __init__(self) -> None:
        self.said: list[tuple[float, bool]] = []
        self.slow_s = 0.0
        self.broken: Exception | None = None

    def assign(self, settings: Sequence[Property]) -> None:
        time.sleep(self.slow_s)
        if self.broken:
            raise self.broken
        self.said += [(time.monotonic(), it.up) for it in settings if isinstance(it, Carrier)]


class Bench:
    """A keeper's faults without the keeper."""

    def __init__(self, path: Path) -> None:
        self.hand, self.events, self.ended = Handler(), EventLog(), threading.Event()
        self.done = 0
        self.journal = Journal.create(path, "lab", "boot", (1, 1))
        self.engine = Engine(self.journal, {Carrier: self.hand})
        self.worker = ThreadPoolExecutor(1)
        self.engine.apply(LAB, (LIT,))
        self.hand.said.clear()
        self.faults = Faults(self.engine, self.do, self.events, lambda fault, cuts: None)
        threading.Thread(target=self.faults.run, args=(self.ended,), daemon=True).start()

    def do(self, work: Callable[[], T]) -> T:
        self.done += 1
        return self.worker.submit(work).result()

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [it for it in self.events.since(0)["events"] if it["event"] == kind]

    def over(self, fault: Mapping[str, Any]) -> bool:
        return next(it["ended_t"] for it in self.faults.records() if it["id"] == fault["id"]) is not None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "journal.jsonl")
    yield made
    made.ended.set()
    made.worker.shutdown()


def flap(down_s: float, up_s: float, times: int | None = None) -> Compiled:
    phases = (Phase(0.0, "dark", (DARK,)), Phase(down_s, "lit", ()))
    period_s = down_s + up_s
    return Compiled(phases, ("north",), period_s, None if times is None else (times - 1) * period_s + down_s)


def test_phases_are_played_in_order_and_at_their_times(bench: Bench) -> None:
    fault = bench.faults.inject(FAULT, flap(0.05, 0.03, times=4))
    oracle.until(lambda: bench.over(fault), 5.0, "it is over by itself")
    assert [up for _, up in bench.hand.said] == [False, True] * 4
    assert [it["phase"] for it in bench.told("fault-phase")] == ["lit", "dark"] * 3
    planned = [it["planned_t"] - fault["ack_t"] for it in bench.told("fault-phase")]
    assert planned == pytest.approx([0.05, 0.08, 0.13, 0.16, 0.21, 0.24])
    assert all(it["planned_t"] <= it["command_t"] <= it["ack_t"] for it in bench.told("fault-phase"))
    assert len(bench.told("fault-ended")) == 1
    assert bench.journal.owned(fault["id"]) == []


def test_a_ramp_on_a_slow_machine_leaves_steps_out_and_ends_in_time(bench: Bench) -> None:
    bench.hand.slow_s = 0.05
    steps = tuple(
        Phase(number / 100, f"step {number}", (Carrier("plant", "north-a", number % 2 > 0),)) for number in range(100)
    )
    fault = bench.faults.inject(FAULT, Compiled(steps, ("north",), lasts_s=1.1))
    oracle.until(lambda: bench.over(fault), 5.0, "it is over")
    played = [int(it["phase"].split()[1]) for it in bench.told("fault-phase")]
    assert played == sorted(set(played))
    assert len(played) < 30, "each takes 50 ms, and one is due every 10"
    assert played[-1] == 99, "the last is never left out"
    (end,) = bench.told("fault-ended")
    assert 1.1 <= end["command_t"] - fault["ack_t"] < 1.4


def test_a_flap_on_a_slow_machine_is_played_in_full(bench: Bench) -> None:
    bench.hand.slow_s = 0.03
    fault = bench.faults.inject(FAULT, flap(0.02, 0.02))
    oracle.until(lambda: len(bench.hand.said) >= 12, 5.0, "it goes on")
    bench.faults.heal([fault["id"]])
    assert [up for _, up in bench.hand.said[:12]] == [False, True] * 6
    assert bench.hand.said[-1][1]


@pytest.mark.alone
def test_whichever_end_comes_first_ends_it(bench: Bench) -> None:
    endless = bench.faults.inject({**FAULT, "for_s": 0.12}, flap(0.05, 0.05))
    by_itself = bench.faults.inject({**FAULT, "for_s": 60.0}, flap(0.05, 0.05, times=1))
    oracle.until(lambda: bench.over(endless) and bench.over(by_itself), 5.0, "both are over")
    ends = {it["fault"]: it["command_t"] for it in bench.told("fault-ended")}
    assert 0.12 <= ends[endless["id"]] - endless["ack_t"] < 0.4
    assert 0.05 <= ends[by_itself["id"]] - by_itself["ack_t"] < 0.4


def test_every_event_of_a_fault_has_its_parameters_and_how_long_it_is_to_last(bench: Bench) -> None:
    fault = bench.faults.inject({**FAULT, "parameters": {"loss": "0.5%"}, "for_s": 0.12}, flap(0.05, 0.05))
    oracle.until(lambda: bench.over(fault), 5.0, "it is over")
    for kind in ("fault-began", "fault-phase", "fault-ended"):
        assert {(it["parameters"]["loss"], it["lasts_s"]) for it in bench.told(kind)} == {("0.5%", 0.12)}


@pytest.mark.parametrize("for_s", [1e300, float("inf")])
def test_a_fault_with_an_endless_time_delays_no_other(bench: Bench, for_s: float) -> None:
    """threading waits at most TIMEOUT_MAX; a longer wait raises, and the thread that ends faults would be gone."""
    endless = bench.faults.inject({**FAULT, "for_s": for_s}, Compiled.at_once("dark", (DARK,), ("north",)))
    first = bench.faults.inject({**FAULT, "for_s": 0.05}, Compiled.at_once("dark", (DARK,), ("north",)))
    oracle.until(lambda: bench.over(first), 5.0, "a first one is over, and the thread waits for the endless one again")
    short = bench.faults.inject({**FAULT, "for_s": 0.05}, Compiled.at_once("dark", (DARK,), ("north",)))
    oracle.until(lambda: bench.over(short), 5.0, "the short one is over")
    assert not bench.over(endless)


def test_what_is_healed_is_not_played_on_and_not_healed_twice(bench: Bench) -> None:
    fault = bench.faults.inject(FAULT, flap(0.03, 0.03))
    assert [it["id"] for it in bench.faults.heal([fault["id"]])] == [fault["id"]]
    said = list(bench.hand.said)
    assert bench.faults.heal([fault["id"], "f99"]) == []
    other = bench.faults.inject(FAULT, flap(0.1, 0.1, times=1))  # by when this is over the first would have gone on
    oracle.until(lambda: bench.over(other), 5.0, "the other is over")
    assert [up for _, up in bench.hand.said[len(said) :]] == [False, True], "of the other alone"
    assert len(bench.told("fault-ended")) == 2


def test_a_phase_that_cannot_be_had_is_told_and_the_next_one_is_played(bench: Bench) -> None:
    fault = bench.faults.inject(FAULT, flap(0.05, 0.05, times=3))
    bench.hand.broken = HostError("the kernel said no")
    oracle.until(lambda: bench.told("fault-failed"), 5.0, "it is told")
    assert "the kernel said no" in bench.told("fault-failed")[0]["why"]
    bench.hand.broken = None
    oracle.until(lambda: bench.over(fault), 5.0, "it goes on and ends")
    assert bench.hand.said[-1][1]


class Unwalked(dict[int, Any]):
    """Entries that can be found by their number, and not be walked over."""

    def _refuse(self) -> Any:
        raise AssertionError("a walk over all entries of a lab: milliseconds in which no fault can act")

    __iter__ = keys = values = items = _refuse


def test_neither_a_phase_nor_a_switch_walks_over_the_lab(bench: Bench) -> None:
    topology = catalog.load_topology("regional-protected", None)
    link = next(it for it in topology.links if it.second_path is not None)
    bench.engine = Engine(bench.journal, dict.fromkeys((Carrier, Shape, Changed), bench.hand))
    bench.engine.apply(LAB, tuple(Carrier("plant", end, True) for end in topology.interfaces.ends(link.name)))
    bench.engine.apply(LAB, tuple(Shape(it, link.impairment(it)) for it in link.directions))
    in_force = InForce(bench.journal, topology)
    bench.faults._engine = bench.engine
    protection = Protection(bench.engine, bench.do, bench.events)
    for it in (bench.faults, protection):
        it.know(topology, in_force)
    bench.journal.entries = Unwalked(bench.journal.entries)
    dark = tuple(Carrier("plant", end, False) for end in topology.interfaces.ends(link.name))
    bench.do(partial(protection.cut, "f9", [PathCut(link.name, "working")]))
    phases = (Phase(0.0, "dark", dark), Phase(0.02, "lit", ()))
    fault = bench.faults.inject(FAULT, Compiled(phases, (link.name,), 0.04))
    oracle.until(lambda: len(bench.told("fault-phase")) >= 2, 5.0, "it is played")
    bench.faults.heal([fault["id"]])
    bench.do(partial(protection.cut, "f9", []))
    assert bench.told("fault-failed") == []
    dark_by = {
        it["phase"]: [value["dark_by"] for value in it["in_force"].values()]
        for it in (*bench.told("fault-began"), *bench.told("fault-phase"))
    }
    assert dark_by == {"dark": [["f1", "protection"]] * 2, "lit": [["protection"]] * 2}
    switching, _ = bench.told("protection-switched")
    assert switching["to"] == "switching" and set(switching["in_force"]) == set(link.directions)


def test_an_event_tells_of_steps_that_an_earlier_phase_could_not_withdraw(bench: Bench) -> None:
    """It tells what is in force on every direction that the fault has acted on, also after a phase that failed."""
    topology = catalog.load_topology("regional-protected", None)
    one, other = topology.links[:2]
    bench.faults.know(topology, InForce(bench.journal, topology))
    phases = tuple(
        Phase(t, name, (Carrier("plant", topology.interfaces.ends(link.name)[0], False),))
        for t, name, link in ((0.0, "one", one), (0.05, "other", other), (0.2, "other again", other))
    )
    bench.faults.inject(FAULT, Compiled(phases, (one.name,), lasts_s=0.4))
    bench.hand.broken = HostError("the kernel said no")
    oracle.until(lambda: bench.told("fault-failed"), 5.0, "it is told")
    bench.hand.broken = None
    oracle.until(lambda: bench.told("fault-phase"), 5.0, "the next one is played")
    (told,) = bench.told("fault-phase")
    assert set(told["in_force"]) == {*one.directions, *other.directions}


def test_a_fault_that_cannot_begin_leaves_nothing(bench: Bench) -> None:
    bench.hand.broken = HostError("the kernel said no")
    with pytest.raises(HostError):
        bench.faults.inject(FAULT, flap(0.05, 0.05))
    assert bench.faults.records() == []
    assert bench.journal.owned("f1") == []


def test_a_heal_that_failed_half_way_can_be_tried_again(bench: Bench) -> None:
    """The kernel refuses to light the fiber: what was dark must not count as healed and stay dark."""
    fault = bench.faults.inject(FAULT, flap(60.0, 60.0))
    bench.hand.broken = HostError("the kernel said no")
    with pytest.raises(HostError):
        bench.faults.heal([fault["id"]])
    assert not bench.over(fault)
    bench.hand.broken = None
    assert len(bench.faults.heal([fault["id"]])) == 1
    assert bench.hand.said[-1][1]


def test_one_that_cannot_be_healed_keeps_no_other_from_it(bench: Bench) -> None:
    first, second = (bench.faults.inject(FAULT, flap(60.0, 60.0)) for _ in range(2))
    bench.hand.broken = HostError("the kernel said no")
    with pytest.raises(HostError):
        bench.faults.heal([first["id"]])
    bench.hand.broken = None
    healed = bench.hand.assign
    refused = [HostError("once more")]

    def once(settings: Sequence[Property]) -> None:
        if refused:
            raise refused.pop()
        healed(settings)

    bench.hand.assign = once  # type: ignore[method-assign]
    with pytest.raises(HostError, match="once more"):
        bench.faults.heal([first["id"], second["id"]])
    assert bench.over(second)
    assert [it["id"] for it in bench.faults.heal([first["id"]])] == [first["id"]]
    assert bench.hand.said[-1][1]


def test_nothing_is_played_while_the_lab_goes_down(bench: Bench) -> None:
    bench.faults.inject(FAULT, flap(0.05, 0.05))
    bench.do(lambda: bench.journal.set_state("going"))
    bench.do(bench.engine.undo_all)
    said, done = len(bench.hand.said), bench.done
    time.sleep(0.15)  # longer than a phase: nothing is there that could be waited for
    assert len(bench.hand.said) == said
    assert bench.done <= done + 1, "it does not try again and again either"
    assert bench.journal.entries == {}


def test_of_faults_that_have_ended_the_latest_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MOST_ENDED", 3)
    lasting = bench.faults.inject(FAULT, Compiled.at_once("dark", (DARK,), ("north",)))
    for _ in range(10):
        fault = bench.faults.inject(FAULT, Compiled.at_once("dark", (DARK,), ("north",)))
        bench.faults.heal([fault["id"]])
    assert [it["id"] for it in bench.faults.records()] == [lasting["id"], "f9", "f10", "f11"]
    assert bench.faults.counts() == ([("flap", "north")], {"flap": 11})


def test_events_are_numbered_and_the_oldest_are_forgotten() -> None:
    log = EventLog(most=10)
    for number in range(35):
        log.add("note", number=number)
    answer = log.since(0)
    kept = [it["number"] for it in answer["events"]]
    assert answer["next"] == 35
    assert kept == list(range(kept[0], 35))
    assert 10 <= len(kept) <= 20
    assert [it["number"] for it in log.since(34)["events"]] == [34]
    assert log.since(35)["events"] == []
