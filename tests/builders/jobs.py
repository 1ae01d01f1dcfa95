"""Records of jobs in a short notation: ``"20*.1 3 20*.1"`` is 20 steps of 0.1 s, one of 3 s, and 20 of 0.1 s."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord


def durations(text: str) -> list[float]:
    """Return the durations in ``text``, in seconds."""
    terms = [term.rpartition("*") for term in text.split()]
    return [float(seconds) for count, _, seconds in terms for _ in range(int(count or 1))]


def step(number: int, begin: float, end: float, attempt: int = 1, **fields: float) -> StepRecord:
    """A step of 10 tokens. By default, gradients are ready in its middle and synchronized at its end."""
    times = {"ready": (begin + end) / 2, "sync": end, "loss": 1.0, **fields}
    return StepRecord(number, begin, times["ready"], times["sync"], end, 10, times["loss"], attempt=attempt)


def steps(seconds: str | Sequence[float], first: int = 1, begin: float = 0.0, attempt: int = 1) -> list[StepRecord]:
    """Return consecutive steps, from step ``first`` at time ``begin``."""
    times = accumulate(durations(seconds) if isinstance(seconds, str) else seconds, initial=begin)
    return [step(number, *span, attempt) for number, span in enumerate(pairwise(times), first)]


def rank(index: int, done: Sequence[StepRecord], end: str = "", *, world: int = 2, planned: int = 1000) -> RankLog:
    """Return the records of one rank. ``end``: status and time, as in ``"failed 10.2"``; empty: none is recorded."""
    job = JobRecord(0.0, index, world, f"n-{index}", "east", "ddp", 1, 1, planned)
    status, t = end.split() if end else ("", "")
    ends = (EndRecord(float(t), status, "timeout", len(done)),) if end else ()
    return RankLog(index, (job,), tuple(done), ends)


def ranks(seconds: str | Sequence[float], end: str = "", **fields: Any) -> list[RankLog]:
    """Return the records of two ranks with equal steps."""
    return [rank(index, steps(seconds), end, **fields) for index in range(2)]


def faults(text: str) -> list[FaultWindow]:
    """Return cuts f1, f2, … of link north: in ``"2.05..4.05 5.."`` the second has not ended."""
    spans = [term.split("..") for term in text.split()]
    return [
        FaultWindow(f"f{number}", "cut", "north", ("north",), float(begin), float(end) if end else None)
        for number, (begin, end) in enumerate(spans, 1)
    ]
