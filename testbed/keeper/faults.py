"""The faults of a live lab: the keeper begins, advances and ends each of them on time.

A fault owns its Steps in the journal. Each phase replaces the Steps of the one before, so undoing a fault, even after a
crash in the middle of a phase, needs no knowledge of phases. A schedule belongs to a connection and ends with it: once
the command is gone, none of its faults begins. Two clocks wait for what is due, so that the phases of many faults delay
no fault that begins; the work itself runs in the engine's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.faults.overlap import refuse_overlap
from testbed.core.faults.power import WARNED
from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.step import Plan, Step
from testbed.core.topology.model import Topology
from testbed.errors import LabError, StorageError, TestbedError, raise_all
from testbed.keeper.clock import Clock
from testbed.keeper.engine import Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.in_force import InForce
from testbed.keeper.protocol import FaultRecord, FaultSpec

__all__ = ["Faults", "Wanted"]

T = TypeVar("T")

MOST_ENDED: Final = 10_000
"""Ended faults whose records are kept: a lab that is cut and healed for days must not fill the memory."""


class Do(Protocol):
    """Runs work in the engine's thread and waits for its result."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


Cut = Callable[[str, tuple[PathCut, ...]], None]
"""(fault, the paths that it cuts from now on) to ``protection.py``, which switches the links."""


Wanted = tuple[FaultSpec, Compiled]
"""A fault to begin."""


@dataclass
class _Active:
    """A fault in force. ``due`` is its next phase, ``ahead`` are those after it; times are of CLOCK_MONOTONIC.

    ``steps`` are those of its phase now, and of the phases before it whose Steps could not be replaced.
    ``half_undone``: its Steps are withdrawn, but not all of their keys could be set to the value in force now.
    """

    record: FaultRecord
    compiled: Compiled
    steps: Plan
    ahead: Iterator[Phase]
    due: Phase | None
    ends_t: float | None
    half_undone: bool = False

    @property
    def next_t(self) -> float | None:
        """When it next needs work; None: never."""
        due_t = None if self.due is None else self.record["ack_t"] + self.due.at_s
        return min((t for t in (due_t, self.ends_t) if t is not None), default=None)


class Faults:
    """All faults since the lab came up. Thread-safe."""

    def __init__(self, engine: Engine, do: Do, events: EventLog, cut: Cut) -> None:
        self._engine, self._do, self._events, self._cut = engine, do, events, cut
        self._journal = engine.journal
        self._topology: Topology | None = None
        self._in_force: InForce | None = None
        self._records: dict[str, FaultRecord] = {}
        self._active: dict[str, _Active] = {}
        self._ended: deque[str] = deque()
        self._began: Counter[str] = Counter()
        self.begins, self.phases = Clock(), Clock()
        """Scheduled faults; phases and ends of faults in force."""

    def set_topology(self, topology: Topology, in_force: InForce) -> None:
        """Set the lab's links, and where events read what is in force; called before the first fault."""
        self._topology, self._in_force = topology, in_force

    def records(self) -> list[FaultRecord]:
        """Return a copy of the record of every fault, in the order in which they began; of those that have ended, the
        latest :data:`MOST_ENDED`."""
        return [record.copy() for record in list(self._records.values())]

    def counts(self) -> tuple[list[tuple[str, str]], dict[str, int]]:
        """Return (type, target) of those in force, and how many of each type have begun since the lab came up."""
        in_force = [(record["type"], record["target"]) for record in self._active_records()]
        return in_force, dict(self._began)

    def warning(self, node: str) -> str:
        """Return the fault that has announced a loss of power of this node, for people; empty if there is none."""
        warned = (
            _words(record) for record in self._active_records() if record["phase"] == WARNED and node in record["nodes"]
        )
        return next(warned, "")

    def _active_records(self) -> list[FaultRecord]:
        return [active.record for active in list(self._active.values())]

    def begin(self, wanted: Sequence[Wanted]) -> list[FaultRecord]:
        """Begin faults together: journalled in one write, set in one call; all or none begin. Raises TestbedError."""
        for _, compiled in wanted:
            _ = compiled.stated  # computed here: the engine's thread is for what is due
        records = self._do(partial(self._begin, wanted))
        for record in records:
            self._set_timer(record["id"])
        return [record.copy() for record in records]

    def _begin(self, wanted: Sequence[Wanted]) -> list[FaultRecord]:
        """Begin faults; in the engine's thread."""
        if self._journal.state in ("going", "down"):
            raise LabError("the lab is being taken down")
        began_unix_s, command_t = time.time(), time.monotonic()
        records: list[FaultRecord] = []
        for number, (fault, compiled) in enumerate(wanted, 1 + self._journal.faults_begun):
            touched = {"links": list(compiled.links), "nodes": list(compiled.nodes)}
            begun = {"id": f"f{number}", "began_unix_s": began_unix_s, "command_t": command_t}
            records.append(cast(FaultRecord, {**fault, **touched, **begun}))
        self._refuse_overlaps(records, wanted)
        self._journal.note_all("fault", records)
        timelines = [compiled.timeline() for _, compiled in wanted]
        phases = [next(timeline) for timeline in timelines]
        command_t = time.monotonic()
        try:
            self._engine.apply_together(
                {record["id"]: phase.steps for record, phase in zip(records, phases, strict=True)}
            )
            for record, phase in zip(records, phases, strict=True):
                self._cut(record["id"], phase.cuts)
        except TestbedError:
            for record in records:
                self._withdraw(record["id"])
            raise
        ack_t = time.monotonic()
        for record, (_, compiled), phase, ahead in zip(records, wanted, phases, timelines, strict=True):
            record |= {"command_t": command_t, "ack_t": ack_t, "ended_t": None, "phase": phase.name}
            self._activate(record, compiled, ahead, phase.steps)
        return records

    def _withdraw(self, fault: str) -> None:
        """Undo a fault that could not begin; `heal` sets what could not be reset here."""
        with contextlib.suppress(TestbedError):
            self._engine.undo(fault)
        with contextlib.suppress(TestbedError):
            self._cut(fault, ())
        with contextlib.suppress(TestbedError):
            self._journal.note("fault-ended", id=fault, t=time.monotonic())

    def _refuse_overlaps(self, records: Sequence[FaultRecord], wanted: Sequence[Wanted]) -> None:
        """Raise UserError if one of ``wanted`` cannot be beside the faults in force, or beside one before it."""
        if self._topology is None:
            return
        beside = {_named(active.record): active.compiled for active in self._active.values()}
        for record, (_, compiled) in zip(records, wanted, strict=True):
            refuse_overlap(self._topology, beside, _words(record), compiled)
            beside[_named(record)] = compiled

    def _changes(self, steps: Iterable[Step]) -> dict[str, Any]:
        """Return what is in force on the directions that ``steps`` act on, for an event; nothing if there are none."""
        in_force = {} if self._in_force is None else self._in_force.changed_by(list(steps))
        return {"in_force": in_force} if in_force else {}

    def _activate(self, record: FaultRecord, compiled: Compiled, ahead: Iterator[Phase], steps: Plan) -> None:
        """Register a fault that has begun with ``steps``, and add its event; in the engine's thread."""
        limits_s = (record["for_s"], compiled.lasts_s)
        lasts_s = record["lasts_s"] = min((limit_s for limit_s in limits_s if limit_s is not None), default=None)
        ends_t = None if lasts_s is None else record["ack_t"] + lasts_s
        self._records[record["id"]] = record
        self._active[record["id"]] = _Active(record, compiled, steps, ahead, next(ahead, None), ends_t)
        self._began[record["type"]] += 1
        self._events.add("fault-began", t=record["ack_t"], phase=record["phase"], **_of(record), **self._changes(steps))

    def heal(self, ids: list[str]) -> list[FaultRecord]:
        """Undo these faults; return the records of those that were active. Every one is tried, then all failures are
        raised."""
        ended: list[FaultRecord] = []
        failures: list[Exception] = []
        for fault in ids:
            try:
                record = self._do(partial(self._end, fault))
            except Exception as error:
                failures.append(error)
            else:
                ended += [] if record is None else [record.copy()]
        raise_all(failures)
        return ended

    def schedule(self, owner: object, wanted: Iterable[Wanted]) -> None:
        """Begin faults at their ``planned_t``, those of one time together; at once what is due already."""
        now, by_time = time.monotonic(), dict[float, list[Wanted]]()
        for fault, compiled in wanted:
            planned_t = now if fault["planned_t"] is None else fault["planned_t"]
            by_time.setdefault(planned_t, []).append((fault, compiled))
        for planned_t, together in by_time.items():
            self.begins.at(planned_t, partial(self._begin_scheduled, together), owner)

    def unschedule(self, owner: object) -> None:
        """Drop the faults of ``owner`` that have not begun. None begins after the return."""
        self.begins.cancel(owner)

    def _begin_scheduled(self, together: Sequence[Wanted]) -> None:
        try:
            self.begin(together)
        except Exception as error:
            for fault, _ in together:
                self._events.add("fault-failed", why=str(error), **_origin(fault))

    def _advance(self, fault: str) -> None:
        """Do what is due of a fault in force, and set the time of what is due next."""
        try:
            self._do(partial(self._act, fault))
        except RuntimeError:
            raise  # the engine's thread has ended
        except Exception as error:
            self._report_failure(fault, error)
        self._set_timer(fault)

    def _report_failure(self, fault: str, error: Exception) -> None:
        """Add an event: a run must not judge a fault whose next phase, or end, did not happen as planned."""
        why = f"its next phase or its end could not be applied: {error}"
        self._events.add("fault-failed", fault=fault, why=why, **_origin(self._records[fault]))

    def _set_timer(self, fault: str) -> None:
        active = self._active.get(fault)
        if active is not None and active.next_t is not None:
            self.phases.at(active.next_t, partial(self._advance, fault))

    # ---- in the engine's thread

    def _act(self, fault: str) -> None:
        active = self._active.get(fault)
        if active is None:
            return
        if self._journal.state in ("going", "down"):
            active.due = active.ends_t = None
            return
        if active.ends_t is not None and time.monotonic() >= active.ends_t:
            try:
                self._end(fault)
            finally:
                active.ends_t = None  # one attempt: if it fails, `heal` can undo the fault later
        elif active.due is not None:
            phase, active.due = active.due, next(active.ahead, None)
            # When late, on a busy machine, a ramp skips to the phase that is due now. A periodic fault plays every
            # phase, so that a fiber goes down as often as requested.
            while not active.compiled.period_s and active.due is not None and self._is_due(active, active.due):
                phase, active.due = active.due, next(active.ahead, None)
            self._enter(active, phase)

    @staticmethod
    def _is_due(active: _Active, phase: Phase) -> bool:
        return time.monotonic() >= active.record["ack_t"] + phase.at_s

    def _enter(self, active: _Active, phase: Phase) -> None:
        record = active.record
        command_t = time.monotonic()
        # Both until it is known that these have replaced those.
        touched = active.steps = tuple(dict.fromkeys((*active.steps, *phase.steps)))
        self._engine.replace(record["id"], phase.steps)
        active.steps = phase.steps
        self._cut(record["id"], phase.cuts)
        record["phase"] = phase.name
        times = {"planned_t": record["ack_t"] + phase.at_s, "command_t": command_t, "ack_t": time.monotonic()}
        changes = self._changes(touched)
        self._events.add("fault-phase", t=times["ack_t"], phase=phase.name, **{**_of(record), **times, **changes})

    def _end(self, fault: str) -> FaultRecord | None:
        active = self._active.get(fault)
        if active is None:
            return None
        record = active.record
        command_t = time.monotonic()
        failures: list[Exception] = []
        works = (partial(self._engine.undo, fault), partial(self._cut, fault, ()))
        for work in (self._engine.settle, *works) if active.half_undone else works:
            try:
                work()
            except Exception as error:
                failures.append(error)
        if failures:
            active.half_undone, active.due = True, None
            raise_all(failures)
        del self._active[fault]
        record["ended_t"] = time.monotonic()
        times = {"command_t": command_t, "ack_t": record["ended_t"]}
        # Of all its phases: one that ends between two outages has no Steps now.
        changes = self._changes(step for phase in active.compiled.phases for step in phase.steps)
        self._events.add("fault-ended", t=record["ended_t"], **{**_of(record), **times, **changes})
        with contextlib.suppress(StorageError):  # it has ended, even if a full disk keeps that from being recorded
            self._journal.note("fault-ended", id=fault, t=record["ended_t"])
        self._ended.append(fault)
        while len(self._ended) > MOST_ENDED:
            del self._records[self._ended.popleft()]
        return record


def _words(record: FaultRecord) -> str:
    return f"{record['type']} {record['target']}"


def _named(record: FaultRecord) -> str:
    return f"{record['id']} ({_words(record)})"


def _origin(fault: FaultSpec) -> dict[str, Any]:
    """Return what was to begin, where, and under which time and number it was scheduled."""
    return {
        "type": fault["type"],
        "target": fault["target"],
        "planned_t": fault["planned_t"],
        "scheduled": fault["scheduled"],
    }


def _of(record: FaultRecord) -> dict[str, Any]:
    """Return the fields that every event of a fault has."""
    return {
        "fault": record["id"],
        **_origin(record),
        "links": record["links"],
        "nodes": record["nodes"],
        "parameters": dict(record["parameters"]),
        "lasts_s": record["lasts_s"],
        "command_t": record["command_t"],
        "ack_t": record["ack_t"],
    }
