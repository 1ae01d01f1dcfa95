"""Faults that are scheduled beforehand: at their times, those of one time as one, and none for whoever is gone."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from builders.noop import NoHandler
from oracles import oracle

from testbed.core.faults.fault_kind import Compiled
from testbed.core.plan.properties import Carrier
from testbed.core.plan.step import Property
from testbed.errors import HostError
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.faults import Faults
from testbed.keeper.journal import Journal
from testbed.keeper.schedule import Schedule

T = TypeVar("T")
LINKS = [f"link{number}" for number in range(8)]


class Handler(NoHandler):
    """Remembers what was set in one call, and what the journal held by then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[tuple[float, list[str]]] = []
        self.written: list[str] = []
        self.broken: Exception | None = None

    def assign(self, settings: Sequence[Property]) -> None:
        self.calls.append((time.monotonic(), [it.interface for it in settings if isinstance(it, Carrier)]))
        self.written.append(self.path.read_text())
        if self.broken:
            raise self.broken


class Bench:
    """A keeper's faults and schedule without the keeper."""

    def __init__(self, path: Path) -> None:
        self.hand, self.events, self.ended = Handler(path), EventLog(), threading.Event()
        self.journal = Journal.create(path, "lab", "boot", (1, 1))
        engine = Engine(self.journal, {Carrier: self.hand})
        self.worker = ThreadPoolExecutor(1)
        engine.apply(LAB, tuple(Carrier("plant", f"{link}-a", True) for link in LINKS))
        self.hand.calls.clear()
        self.hand.written.clear()
        self.faults = Faults(engine, self.do, self.events, lambda fault, paths: None)
        self.schedule = Schedule(self.faults, self.events)
        for run in (self.faults.run, self.schedule.run):
            threading.Thread(target=run, args=(self.ended,), daemon=True).start()

    def do(self, work: Callable[[], T]) -> T:
        return self.worker.submit(work).result()

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [it for it in self.events.since(0)["events"] if it["event"] == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "journal.jsonl")
    yield made
    made.ended.set()
    made.worker.shutdown()


def cut(link: str, planned_t: float, for_s: float | None = None) -> tuple[dict[str, Any], Compiled]:
    fault = {"type": "cut", "target": link, "links": [link], "nodes": [], "parameters": {}, "for_s": for_s}
    return {**fault, "planned_t": planned_t}, Compiled.at_once("dark", (Carrier("plant", f"{link}-a", False),), (link,))


@pytest.mark.alone
def test_each_begins_at_its_time_and_in_order(bench: Bench) -> None:
    began = time.monotonic()
    planned = [began + 0.05 + 0.03 * number for number in range(8)]
    bench.schedule.add("me", [cut(link, t) for link, t in reversed(list(zip(LINKS, planned, strict=True)))])
    oracle.until(lambda: len(bench.told("fault-began")) == 8, 5.0, "all began")
    assert [it["target"] for it in bench.told("fault-began")] == LINKS
    late = [it["command_t"] - it["planned_t"] for it in bench.told("fault-began")]
    assert min(late) >= 0
    assert statistics.median(late) < 0.005
    assert [it["planned_t"] for it in bench.told("fault-began")] == planned


def test_those_of_one_time_are_set_in_one_call_and_were_written_down_before(bench: Bench) -> None:
    due = time.monotonic() + 0.05
    bench.schedule.add("me", [cut(link, due, for_s=60.0) for link in LINKS])
    oracle.until(lambda: len(bench.told("fault-began")) == 8, 5.0, "all began")
    assert [interfaces for _, interfaces in bench.hand.calls] == [[f"{link}-a" for link in LINKS]]
    assert all(f'"owner":"f{number}"' in bench.hand.written[0] for number in range(1, 9))
    assert len({it["ack_t"] for it in bench.told("fault-began")}) == 1
    ended = bench.faults.heal([f"f{number}" for number in range(1, 9)])
    assert [it["target"] for it in ended] == LINKS
    assert {entry.owner for entry in bench.journal.entries.values()} == {LAB}


def test_what_could_not_begin_is_told_and_leaves_nothing(bench: Bench) -> None:
    bench.hand.broken = HostError("the kernel said no")
    due = time.monotonic()
    bench.schedule.add("me", [cut("link0", due), cut("link1", due)])
    oracle.until(lambda: len(bench.told("fault-failed")) == 2, 5.0, "it is told")
    assert {it["why"] for it in bench.told("fault-failed")} == {"the kernel said no"}
    assert bench.faults.records() == []
    assert {entry.owner for entry in bench.journal.entries.values()} == {LAB}


def test_nothing_begins_for_whoever_is_gone(bench: Bench) -> None:
    due = time.monotonic() + 0.1
    bench.schedule.add("gone", [cut("link0", due), cut("link1", due + 0.01)])
    bench.schedule.add("me", [cut("link2", due + 0.02)])
    assert bench.schedule.cancel("gone") == 2
    oracle.until(lambda: bool(bench.told("fault-began")), 5.0, "mine began")
    assert [it["target"] for it in bench.told("fault-began")] == ["link2"]
    assert bench.schedule.cancel("me") == 0


def test_nothing_begins_while_the_lab_goes_down(bench: Bench) -> None:
    bench.do(lambda: bench.journal.set_state("going"))
    bench.schedule.add("me", [cut("link0", time.monotonic())])
    oracle.until(lambda: bool(bench.told("fault-failed")), 5.0, "it is told")
    assert bench.hand.calls == []
