"""The end of a rank's process, as the testbed saw it: in an event of a job, or in run.json of a launched program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from testbed.core.fields import Fields, integer, number, sequence
from testbed.core.records.event import Event
from testbed.core.records.run_info import RunInfo

__all__ = ["ProcessEnd", "ends_of", "read_ends"]


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended, and who ended it.

    Attributes:
        rank: of the process; None for the fork server of all ranks.
        t: when its end was seen, in seconds of CLOCK_MONOTONIC.
        status: exit status; 0 if a signal ended it.
        signal: number of the signal that ended it (signal(7)); 0 if it exited.
        by_testbed: whether the testbed had sent that signal: a fault, or the end of a job.
        out_of_memory: whether the kernel counted a kill for want of memory in its control group (memory.events).
    """

    rank: int | None
    t: float
    status: int = 0
    signal: int = 0
    by_testbed: bool = False
    out_of_memory: bool = False


def read_ends(info: RunInfo, events: Iterable[Event]) -> tuple[ProcessEnd, ...]:
    """Return the ends of processes in the order of time. Records of releases that did not tell senders are skipped."""
    written = [
        *(it.fields for it in events if it.event in ("rank-died", "agents-gone")),
        *(it for it in sequence(info.workload, "ends") if isinstance(it, Mapping)),
    ]
    return tuple(sorted(filter(None, map(_end, written)), key=lambda it: it.t))


def ends_of(workload: Fields) -> tuple[ProcessEnd, ...]:
    """Return the ends of a launched program's ranks, in the order of time."""
    written = (it for it in sequence(workload, "ends") if isinstance(it, Mapping))
    return tuple(sorted(filter(None, map(_end, written)), key=lambda it: it.t))


def _end(fields: Fields) -> ProcessEnd | None:
    t = number(fields, "t")
    if t is None or not isinstance(by_testbed := fields.get("by_testbed"), bool):
        return None
    return ProcessEnd(
        rank=integer(fields, "rank"),
        t=t,
        status=integer(fields, "code") or 0,
        signal=integer(fields, "signal") or 0,
        by_testbed=by_testbed,
        out_of_memory=fields.get("out_of_memory") is True,
    )
