"""The steps of a running program, as its ranks' records tell them, and the limits that its workload sets to them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from testbed.core.analysis.program_steps import ProgressMerge
from testbed.core.records.progress_record import ProgressRecord
from testbed.core.units import format_duration
from testbed.core.workload.members import Member
from testbed.core.workload.workload import ProgramWorkload

__all__ = ["Limits", "ReportedSteps", "StepTail", "Steps"]


@dataclass
class StepTail:
    """The records of one rank, of the agents (``step``) or of a program (``progress``)."""

    path: Path
    offset: int = 0
    step: int = 0
    before: int | None = None
    """The step of the record before the latest one; None if there is none in this attempt."""
    attempt: int = 1
    last: Mapping[str, Any] = field(default_factory=dict)
    fresh: list[Mapping[str, Any]] = field(default_factory=list)
    """Records of a program's steps not taken yet."""

    def take(self) -> list[Mapping[str, Any]]:
        """Read, and return the records of a program's steps since the last time."""
        self.read()
        records, self.fresh = self.fresh, []
        return records

    def read(self) -> None:
        """Read what was written since the last call."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return
        self.offset += len(whole) + 1
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn, on a disk that was full for a while: the next record supersedes it
            if record.get("attempt", 1) < self.attempt:
                continue  # late record of an attempt that has ended
            if record["kind"] == "job":
                self.before = None
                self.attempt, self.step = record.get("attempt", 1), record.get("resumed_from", 0)
            elif record["kind"] in ("step", "progress"):
                self.before = self.last.get("step") if self.last.get("attempt", 1) == record.get("attempt", 1) else None
                self.step, self.last = record["step"], record
                if record["kind"] == "progress":
                    self.fresh.append(record)


STEPS_LOOK_S: Final = 0.5
"""How often the steps are read, where a stall has a limit."""


class ReportedSteps:
    """The records of all ``members`` below ``folder`` (``ranks/`` of the run), as they grow."""

    def __init__(self, folder: Path, members: Sequence[Member]) -> None:
        self._members = members
        self._tails = [StepTail(folder / f"rank-{member.rank}.jsonl") for member in members]
        self._reading = threading.Lock()
        self._merge, self._step = ProgressMerge(), 0
        self._first_t: float | None = None
        self._tokens_per_step: float | None = None

    @property
    def step(self) -> int:
        """The latest step that counts, by the definition of reports (``core/analysis/program_steps.py``)."""
        with self._reading:
            pairs = [
                (ProgressRecord.from_dict(line), member.rank)
                for member, tail in zip(self._members, self._tails, strict=True)
                for line in tail.take()
            ]
            for record, rank in sorted(pairs, key=lambda pair: pair[0].t):
                if (counted := self._merge.take(rank, record)) is not None:
                    self._step = counted.step
            return self._step

    @property
    def last(self) -> Mapping[str, Any]:
        """The latest record of the first rank that has one, as :attr:`step` last read it; empty if none has."""
        return next((tail.last for tail in self._tails if tail.last), {})

    @property
    def first_t(self) -> float | None:
        """When a step was first reported (CLOCK_MONOTONIC); None before."""
        if self._first_t is None:
            self._first_t = min((float(tail.last["t"]) for tail in self._tails if tail.last), default=None)
        return self._first_t

    @property
    def tokens_per_step(self) -> float | None:
        """By the latest record of any rank that counts tokens; a record has those since the rank's one before."""
        for tail in self._tails:
            tokens = tail.last.get("tokens")
            if tokens is not None and tail.before is not None and tail.step > tail.before:
                self._tokens_per_step = float(tokens) / (tail.step - tail.before)
                break
        return self._tokens_per_step


class Steps(Protocol):
    """What :class:`Limits` asks of the steps."""

    @property
    def step(self) -> int: ...

    @property
    def last(self) -> Mapping[str, Any]: ...


class Limits:
    """The limits of a workload: after ``for_s`` it has ended in order; after ``timeout_s``, or ``stall_s`` without
    another step, it has failed."""

    def __init__(self, workload: ProgramWorkload, steps: Steps) -> None:
        self._workload, self._steps = workload, steps
        self.in_order = False
        """Whether the time is over that the workload has."""
        self.exceeded = ""
        """Which limit the program has exceeded; empty if none."""
        self._seen, self._moved_t, self._looked_t = -1, 0.0, 0.0

    def reached(self, began_t: float) -> bool:
        """Return whether one is reached now, by a program that began at ``began_t`` (CLOCK_MONOTONIC)."""
        now = time.monotonic()
        if self._workload.for_s is not None and now - began_t >= self._workload.for_s:
            self.in_order = True
        elif self._workload.timeout_s is not None and now - began_t >= self._workload.timeout_s:
            self.exceeded = f"the program has not ended within {format_duration(self._workload.timeout_s)}"
        elif self._workload.stall_s is not None and now - self._looked_t >= STEPS_LOOK_S:
            self._looked_t = now
            self._look(now, self._workload.stall_s)
        return self.in_order or bool(self.exceeded)

    def _look(self, now: float, stall_s: float) -> None:
        step, last = self._steps.step, self._steps.last
        if step != self._seen or not last:
            self._seen, self._moved_t = step, now
        if last and now - self._moved_t > stall_s:
            bound = format_duration(stall_s)
            self.exceeded = f"the program has reported no step for {bound}, since step {step}"
