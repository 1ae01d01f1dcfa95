"""The faults of a live lab: the keeper begins, advances and ends each of them on time.

A fault owns its Steps in the journal. Each phase replaces the Steps of the one before, so undoing a fault, even after a
crash in the middle of a phase, needs no knowledge of phases. One thread sleeps until something is due; the work itself
runs in the engine's thread.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.faults.overlap import Begun, refuse_overlap, stated_by
from testbed.core.faults.power import WARNED
from testbed.core.physics.change import Change
from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.step import Plan, Step
from testbed.core.topology.model import Topology
from testbed.errors import LabError, StorageError, TestbedError, raise_all
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.engine import Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.in_force import InForce
from testbed.keeper.protocol import CompiledFault, FaultRecord

__all__ = ["Faults", "plan_of"]

T = TypeVar("T")

MOST_ENDED: Final = 10_000
"""Ended faults whose records are kept: a lab that is cut and healed for days must not fill the memory."""


class Do(Protocol):
    """Runs work in the engine's thread and waits for its result."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


Cut = Callable[[str, tuple[PathCut, ...]], None]
"""(fault, the paths that it cuts from now on) to ``protection.py``, which switches the links."""


Stated = Mapping[str, tuple[Change, ...]]
"""What a fault states of each direction over all of its phases."""


@dataclass
class _Active:
    """A fault in force. ``due`` is its next phase, ``ahead`` are those after it; times are of CLOCK_MONOTONIC.

    ``steps`` are those of its phase now, and of the phases before it whose Steps could not be replaced.
    ``half_undone``: its Steps are withdrawn, but not all of their keys could be set to the value in force now.
    """

    record: FaultRecord
    compiled: Compiled
    stated: Stated
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
    """All faults since the lab came up. Thread-safe, except :meth:`run`, which has a thread of its own."""

    def __init__(self, engine: Engine, do: Do, events: EventLog, cut: Cut) -> None:
        self._engine, self._do, self._events, self._cut = engine, do, events, cut
        self._journal = engine.journal
        self._topology: Topology | None = None
        self._in_force: InForce | None = None
        self._records: dict[str, FaultRecord] = {}
        self._active: dict[str, _Active] = {}
        self._over: deque[str] = deque()
        self._began: Counter[str] = Counter()
        self._timers: list[tuple[float, str]] = []
        self._timers_changed = threading.Condition()

    def know(self, topology: Topology, in_force: InForce) -> None:
        """Learn the lab's links, and where events read what is in force; called before the first fault."""
        self._topology, self._in_force = topology, in_force

    def records(self) -> list[FaultRecord]:
        """Return a copy of the record of every fault, in the order in which they began; of those that have ended, the
        latest :data:`MOST_ENDED`."""
        return [it.copy() for it in list(self._records.values())]

    def counts(self) -> tuple[list[tuple[str, str]], dict[str, int]]:
        """Return (type, target) of those in force, and how many of each type have begun since the lab came up."""
        active = [it.record for it in list(self._active.values())]
        return [(it["type"], it["target"]) for it in active], dict(self._began)

    def warning(self, node: str) -> str:
        """Return the fault that has announced a loss of power of this node, for people; empty if there is none."""
        active = (it.record for it in list(self._active.values()))
        return next(
            (f"{it['type']} {it['target']}" for it in active if it["phase"] == WARNED and node in it["nodes"]), ""
        )

    def inject(self, fault: CompiledFault, compiled: Compiled) -> FaultRecord:
        """Begin a fault; return its record. Raises TestbedError."""
        return self.begin([(fault, compiled)])[0]

    def begin(self, wanted: Sequence[tuple[CompiledFault, Compiled]]) -> list[FaultRecord]:
        """Begin faults together: journalled in one write, set in one call; all or none begin. Raises TestbedError."""

        stated = [stated_by(compiled) for _, compiled in wanted]  # here: the engine's thread is for what is due

        def work() -> list[FaultRecord]:
            if self._journal.state in ("going", "down"):
                raise LabError("the lab is being taken down")
            number = 1 + self._journal.faults_begun
            now = {"began_unix_s": time.time(), "command_t": time.monotonic()}
            records = [
                cast(FaultRecord, {**fault, "id": f"f{number + index}", **now})
                for index, (fault, _) in enumerate(wanted)
            ]
            self._refuse_overlaps(records, stated)
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
                    with contextlib.suppress(TestbedError):  # `heal` sets what could not be reset here
                        self._engine.undo(record["id"])
                    with contextlib.suppress(TestbedError):
                        self._cut(record["id"], ())
                    with contextlib.suppress(TestbedError):
                        self._journal.note("fault-ended", id=record["id"], t=time.monotonic())
                raise
            ack_t = time.monotonic()
            for number, (record, first, ahead) in enumerate(zip(records, firsts, timelines, strict=True)):
                record |= {"command_t": command_t, "ack_t": ack_t, "ended_t": None, "phase": first.name}
                self._activate(record, wanted[number][1], stated[number], ahead, first.steps)
            return records

        records = self._do(work)
        for record in records:
            self._set_timer(record["id"])
        return [record.copy() for record in records]

    def _refuse_overlaps(self, records: Sequence[FaultRecord], wanted: Sequence[Stated]) -> None:
        """Raise UserError if one of ``wanted`` cannot be beside the faults in force, or beside one before it."""
        if self._topology is None:
            return
        beside = [Begun(_named(it.record), it.stated) for it in self._active.values()]
        for record, stated in zip(records, wanted, strict=True):
            refuse_overlap(self._topology, beside, Begun(f"{record['type']} {record['target']}", stated))
            beside.append(Begun(_named(record), stated))

    def _told(self, steps: Iterable[Step]) -> dict[str, Any]:
        """Return what an event tells of the directions that ``steps`` act on; nothing if there are none."""
        found = {} if self._in_force is None else self._in_force.changed_by(list(steps))
        return {"in_force": found} if found else {}

    def _activate(
        self, record: FaultRecord, compiled: Compiled, stated: Stated, ahead: Iterator[Phase], steps: Plan
    ) -> None:
        """Register a fault that has begun with ``steps``, and add its event; in the engine's thread."""
        lasts_s = record["lasts_s"] = min(
            (it for it in (record["for_s"], compiled.lasts_s) if it is not None), default=None
        )
        ends_t = None if lasts_s is None else record["ack_t"] + lasts_s
        self._records[record["id"]] = record
        self._active[record["id"]] = _Active(record, compiled, stated, steps, ahead, next(ahead, None), ends_t)
        self._began[record["type"]] += 1
        self._events.add("fault-began", t=record["ack_t"], phase=record["phase"], **_of(record), **self._told(steps))

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

    def run(self, ended: threading.Event) -> None:
        """Advance and end faults when it is due, until ``ended``."""
        use_realtime_priority()
        while not ended.is_set():
            with self._timers_changed:
                if not self._timers:
                    self._timers_changed.wait()
                    continue
                due_t, fault = self._timers[0]
                left = due_t - time.monotonic()
                if left > 0:
                    self._timers_changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                heapq.heappop(self._timers)
            try:
                self._do(partial(self._act, fault))
            except RuntimeError:
                return  # the engine's thread has ended, and the lab with it
            except Exception as error:
                self._report_failure(fault, error)
            self._set_timer(fault)

    def _report_failure(self, fault: str, error: Exception) -> None:
        """Add an event: a run must not judge a fault whose next phase, or end, did not happen as planned."""
        record = self._records[fault]
        why = f"its next phase or its end could not be applied: {error}"
        content = {"type": record["type"], "target": record["target"], **plan_of(record)}
        self._events.add("fault-failed", fault=fault, why=why, **content)

    def _set_timer(self, fault: str) -> None:
        active = self._active.get(fault)
        if active is None or active.next_t is None:
            return
        with self._timers_changed:
            heapq.heappush(self._timers, (active.next_t, fault))
            self._timers_changed.notify()

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
        told = self._told(touched)
        self._events.add("fault-phase", t=times["ack_t"], phase=phase.name, **{**_of(record), **times, **told})

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
        told = self._told(step for phase in active.compiled.phases for step in phase.steps)
        self._events.add("fault-ended", t=record["ended_t"], **{**_of(record), **times, **told})
        with contextlib.suppress(StorageError):  # it has ended, even if a full disk keeps that from being recorded
            self._journal.note("fault-ended", id=fault, t=record["ended_t"])
        self._over.append(fault)
        while len(self._over) > MOST_ENDED:
            del self._records[self._over.popleft()]
        return record


def _named(record: FaultRecord) -> str:
    return f"{record['id']} ({record['type']} {record['target']})"


def plan_of(fault: CompiledFault) -> dict[str, Any]:
    """Return the time and the number under which a fault was scheduled, for its events; None where it was not."""
    planned_t: float | None = fault.get("planned_t")
    scheduled: int | None = fault.get("scheduled")
    return {"planned_t": planned_t, "scheduled": scheduled}


def _of(record: FaultRecord) -> dict[str, Any]:
    """Fields that every event of a fault has."""
    return {
        "fault": record["id"],
        "type": record["type"],
        "target": record["target"],
        "links": record["links"],
        "nodes": record["nodes"],
        "parameters": dict(record["parameters"]),
        "lasts_s": record["lasts_s"],
        **plan_of(record),
        "command_t": record["command_t"],
        "ack_t": record["ack_t"],
    }
