"""The keeper's faults and its schedule on an engine whose handler records: no keeper process and no lab."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from oracles import oracle

from builders.noop import NoHandler
from testbed.core.faults.fault_kind import Compiled
from testbed.core.plan.properties import Carrier, Changed, Shape
from testbed.core.plan.step import Property
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.faults import Faults
from testbed.keeper.journal import Journal
from testbed.keeper.protocol import FaultSpec

T = TypeVar("T")
LINKS = [f"link{number}" for number in range(8)]
FAULT: FaultSpec = {
    "type": "flap",
    "target": "north",
    "parameters": {},
    "for_s": None,
    "planned_t": None,
    "scheduled": None,
}
BOUND_S = 5.0


def carrier(link: str, up: bool = False) -> Carrier:
    return Carrier("plant", f"{link}-a", up)


def cut(link: str = "north") -> Compiled:
    """Return a fault that darkens a link until it is healed."""
    return Compiled.at_once("dark", (carrier(link),), (link,))


class RecordingHandler(NoHandler):
    """Records the settings of each call. ``before`` is called first; ``broken`` is raised, if set."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[Property]]] = []
        self.before: Callable[[], object] = lambda: None
        self.broken: Exception | None = None

    def assign(self, settings: Sequence[Property]) -> None:
        self.before()
        if self.broken:
            raise self.broken
        self.calls.append((time.monotonic(), list(settings)))

    @property
    def carriers(self) -> list[Carrier]:
        return [setting for _, settings in self.calls for setting in settings if isinstance(setting, Carrier)]

    @property
    def ups(self) -> list[bool]:
        return [setting.up for setting in self.carriers]


class FaultBench:
    """Faults and schedule of a lab with the links ``north`` and LINKS, all lit."""

    def __init__(self, path: Path) -> None:
        self.hand, self.events, self.ended = RecordingHandler(), EventLog(), threading.Event()
        self.done, self.cuts = 0, list[tuple[str, object]]()
        self.journal = Journal.create(path, "lab", "boot", (1, 1))
        self.engine = Engine(self.journal, dict.fromkeys((Carrier, Shape, Changed), self.hand))
        self.worker = ThreadPoolExecutor(1)
        self.engine.apply(LAB, tuple(carrier(link, up=True) for link in ("north", *LINKS)))
        self.hand.calls.clear()
        self.faults = Faults(self.engine, self.do, self.events, lambda *cut: self.cuts.append(cut))
        for clock in (self.faults.phases, self.faults.begins):
            threading.Thread(target=clock.run, args=(self.ended,), daemon=True).start()

    def do(self, work: Callable[[], T]) -> T:
        self.done += 1
        return self.worker.submit(work).result()

    def inject(self, compiled: Compiled, **fields: Any) -> Any:
        return self.faults.begin([({**FAULT, **fields}, compiled)])[0]  # type: ignore[typeddict-item]

    def heal(self, *faults: Mapping[str, Any]) -> list[str]:
        """Heal faults; return the ids of those that were active."""
        return [fault["id"] for fault in self.faults.heal([fault["id"] for fault in faults])]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event for event in self.events.since(0)["events"] if event["event"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many events of a kind."""
        oracle.until(lambda: len(self.of(kind)) >= count, BOUND_S, f"{count} events {kind}")
        return self.of(kind)

    def is_over(self, fault: Mapping[str, Any]) -> bool:
        return next(record["ended_t"] for record in self.faults.records() if record["id"] == fault["id"]) is not None

    def wait_until_over(self, *faults: Mapping[str, Any]) -> None:
        oracle.until(lambda: all(map(self.is_over, faults)), BOUND_S, "the faults are over")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[FaultBench]:
    made = FaultBench(tmp_path / "journal.jsonl")
    yield made
    made.ended.set()
    made.worker.shutdown()
