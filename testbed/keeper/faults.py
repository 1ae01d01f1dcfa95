"""The faults of a live lab: begun, led through their phases, ended, by the keeper and at their times.

A fault owns what stands for it in the journal. A phase is what stands instead of the phase before, so that whoever
undoes the fault, also after a crash in the middle of one, needs to know nothing of phases. One thread sleeps until
something is due; the work itself is done in the engine's thread.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.faults.power import WARNED
from testbed.core.physics.protection_selector import PathCut
from testbed.errors import LabError, StorageError, TestbedError
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.engine import Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.protocol import CompiledFault, FaultRecord

__all__ = ["Faults", "plan_of"]

T = TypeVar("T")


class Do(Protocol):
    """Runs work in the engine's thread and waits for its result."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


Cut = Callable[[str, tuple[PathCut, ...]], None]
"""(fault, paths that it cuts from now on): what follows is the protection's (``protection.py``)."""


@dataclass
class _Standing:
    """A fault that goes on. ``ahead`` are its phases to come, ``due`` the first of them; times are monotonic.

    ``half_undone``: it stands no more, but what has the say over its keys now could not be set everywhere.
    """

    record: FaultRecord
    compiled: Compiled
    ahead: Iterator[Phase]
    due: Phase | None
    ends_t: float | None
    half_undone: bool = False

    @property
    def next_t(self) -> float | None:
        """When something is to be done about it next."""
        due_t = None if self.due is None else self.record["ack_t"] + self.due.at_s
        return min((t for t in (due_t, self.ends_t) if t is not None), default=None)


class Faults:
    """All faults since the lab is up; see the module. Safe for several threads but :meth:`run`, which has its own."""

    def __init__(self, engine: Engine, do: Do, events: EventLog, cut: Cut) -> None:
        self._engine, self._do, self._events, self._cut = engine, do, events, cut
        self._journal = engine.journal
        self._records: dict[str, FaultRecord] = {}
        self._standing: dict[str, _Standing] = {}
        self._began: Counter[str] = Counter()
        self._timers: list[tuple[float, str]] = []
        self._timers_changed = threading.Condition()

    def records(self) -> list[FaultRecord]:
        """One of each fault, in their order. ``phase`` is the one that it is in, or was in last."""
        return [it.copy() for it in list(self._records.values())]

    def counts(self) -> tuple[list[tuple[str, str]], dict[str, int]]:
        """(type, target) of those in force, and how many of each type began since the lab is up."""
        standing = [it.record for it in list(self._standing.values())]
        return [(it["type"], it["target"]) for it in standing], dict(self._began)

    def warning(self, node: str) -> str:
        """What will take the power of a node that still has it, in words; empty if nothing is announced."""
        standing = (it.record for it in list(self._standing.values()))
        return next(
            (f"{it['type']} {it['target']}" for it in standing if it["phase"] == WARNED and node in it["nodes"]), ""
        )

    def inject(self, fault: CompiledFault, compiled: Compiled) -> FaultRecord:
        """Begin a fault; its record. ``fault`` has type, target, links, parameters and for_s (seconds or None)."""
        return self.begin([(fault, compiled)])[0]

    def begin(self, wanted: Sequence[tuple[CompiledFault, Compiled]]) -> list[FaultRecord]:
        """Begin faults as one: written down together, set together. All of them begin, or none does."""

        def work() -> list[FaultRecord]:
            if self._journal.state in ("going", "down"):
                raise LabError("the lab goes down")
            number = 1 + sum(1 for note in self._journal.notes if note["note"] == "fault")
            now = {"began_unix_s": time.time(), "command_t": time.monotonic()}
            records = [
                cast(FaultRecord, {**fault, "id": f"f{number + index}", **now})
                for index, (fault, _) in enumerate(wanted)
            ]
            self._journal.note_all("fault", records)
            timelines = [compiled.timeline() for _, compiled in wanted]
            firsts = [next(it) for it in timelines]
            command_t = time.monotonic()
            try:
                self._engine.apply_together({it["id"]: first.steps for it, first in zip(records, firsts, strict=True)})
                for record, first in zip(records, firsts, strict=True):
                    self._cut(record["id"], first.cuts)
            except TestbedError:
                for record in records:
                    with contextlib.suppress(TestbedError):  # `heal` settles what could not be set back
                        self._engine.undo(record["id"])
                    with contextlib.suppress(TestbedError):
                        self._cut(record["id"], ())
                        self._journal.note("fault-ended", id=record["id"], t=time.monotonic())
                raise
            ack_t = time.monotonic()
            for record, first, ahead, (_, compiled) in zip(records, firsts, timelines, wanted, strict=True):
                record |= {"command_t": command_t, "ack_t": ack_t, "ended_t": None, "phase": first.name}
                self._stand(record, compiled, ahead)
            return records

        records = self._do(work)
        for record in records:
            self._plan(record["id"])
        return [record.copy() for record in records]

    def _stand(self, record: FaultRecord, compiled: Compiled, ahead: Iterator[Phase]) -> None:
        """Remember a fault that has begun, and tell of it; in the engine's thread."""
        lasts_s = record["lasts_s"] = min(
            (it for it in (record["for_s"], compiled.lasts_s) if it is not None), default=None
        )
        ends_t = None if lasts_s is None else record["ack_t"] + lasts_s
        self._records[record["id"]] = record
        self._standing[record["id"]] = _Standing(record, compiled, ahead, next(ahead, None), ends_t)
        self._began[record["type"]] += 1
        self._events.add("fault-began", t=record["ack_t"], phase=record["phase"], **_of(record))

    def heal(self, ids: list[str]) -> list[FaultRecord]:
        """Undo these faults; records of those that were not over already. All are tried, then the first failure is
        raised."""
        ended: list[FaultRecord] = []
        failures: list[TestbedError] = []
        for fault in ids:
            try:
                record = self._do(partial(self._end, fault))
            except TestbedError as error:
                failures.append(error)
            else:
                ended += [] if record is None else [record.copy()]
        if failures:
            raise failures[0]
        return ended

    def run(self, ended: threading.Event) -> None:
        """Do what is due when it is due, until ``ended``."""
        use_realtime_priority()
        while not ended.is_set():
            with self._timers_changed:
                if not self._timers:
                    self._timers_changed.wait()
                    continue
                due_t, fault = self._timers[0]
                left = due_t - time.monotonic()
                if left > 0:
                    self._timers_changed.wait(left)
                    continue
                heapq.heappop(self._timers)
            try:
                self._do(partial(self._act, fault))
            except RuntimeError:
                return  # the worker is shut down: so is the lab
            except Exception as error:
                self._tell_of_failure(fault, error)
            self._plan(fault)

    def _tell_of_failure(self, fault: str, error: Exception) -> None:
        """Neither its next phase nor its end may fail unseen: a run would judge what did not happen as written."""
        record = self._records[fault]
        why = f"it could not be led on: {error}"
        told = {"type": record["type"], "target": record["target"], **plan_of(record)}
        self._events.add("fault-failed", fault=fault, why=why, **told)

    def _plan(self, fault: str) -> None:
        standing = self._standing.get(fault)
        if standing is None or standing.next_t is None:
            return
        with self._timers_changed:
            heapq.heappush(self._timers, (standing.next_t, fault))
            self._timers_changed.notify()

    # ---- in the engine's thread

    def _act(self, fault: str) -> None:
        standing = self._standing.get(fault)
        if standing is None:
            return
        if self._journal.state in ("going", "down"):
            standing.due = standing.ends_t = None
            return
        if standing.ends_t is not None and time.monotonic() >= standing.ends_t:
            try:
                self._end(fault)
            finally:
                standing.ends_t = None  # what cannot be undone now is not tried for ever; `heal` can
        elif standing.due is not None:
            phase, standing.due = standing.due, next(standing.ahead, None)
            # Late, as on a machine that is busy: of a ramp only where it should be by now matters. What repeats is
            # played in full, so that a fiber is dark as often as was asked.
            while not standing.compiled.period_s and standing.due is not None and self._is_due(standing, standing.due):
                phase, standing.due = standing.due, next(standing.ahead, None)
            self._enter(standing.record, phase)

    @staticmethod
    def _is_due(standing: _Standing, phase: Phase) -> bool:
        return bool(time.monotonic() >= standing.record["ack_t"] + phase.at_s)

    def _enter(self, record: FaultRecord, phase: Phase) -> None:
        command_t = time.monotonic()
        self._engine.replace(record["id"], phase.steps)
        self._cut(record["id"], phase.cuts)
        record["phase"] = phase.name
        times = {"planned_t": record["ack_t"] + phase.at_s, "command_t": command_t, "ack_t": time.monotonic()}
        self._events.add("fault-phase", t=times["ack_t"], phase=phase.name, **{**_of(record), **times})

    def _end(self, fault: str) -> FaultRecord | None:
        standing = self._standing.get(fault)
        if standing is None:
            return None
        record = standing.record
        command_t = time.monotonic()
        try:
            if standing.half_undone:
                self._engine.settle()
            self._engine.undo(fault)
            self._cut(fault, ())
        except TestbedError:
            standing.half_undone, standing.due = True, None
            raise
        del self._standing[fault]
        record["ended_t"] = time.monotonic()
        times = {"command_t": command_t, "ack_t": record["ended_t"]}
        self._events.add("fault-ended", t=record["ended_t"], **{**_of(record), **times})
        with contextlib.suppress(StorageError):  # it is over, whether or not a full disk lets us say so
            self._journal.note("fault-ended", id=fault, t=record["ended_t"])
        return record


def plan_of(fault: CompiledFault) -> dict[str, Any]:
    """Return the time and the number under which a fault was scheduled, for its events; None where it was not."""
    planned_t: float | None = fault.get("planned_t")
    scheduled: int | None = fault.get("scheduled")
    return {"planned_t": planned_t, "scheduled": scheduled}


def _of(record: FaultRecord) -> dict[str, Any]:
    """What every event of a fault says."""
    return {
        "fault": record["id"],
        "type": record["type"],
        "target": record["target"],
        "links": record["links"],
        "nodes": record["nodes"],
        **plan_of(record),
        "command_t": record["command_t"],
        "ack_t": record["ack_t"],
    }
