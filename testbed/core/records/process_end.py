"""The end of a rank's process, as the testbed saw it: in an event of a job, or in run.json of a launched program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from testbed.core.fields import Fields, parse, sequence
from testbed.core.json_record import JsonRecord, Key
from testbed.core.records.event import Event
from testbed.core.records.run_info import RunInfo

__all__ = ["ProcessEnd", "ends_of", "read_ends"]


@dataclass(frozen=True)
class ProcessEnd(JsonRecord):
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
    by_testbed: bool
    status: Annotated[int, Key("code")] = 0
    signal: int = 0
    out_of_memory: bool = False


def read_ends(info: RunInfo, events: Iterable[Event]) -> tuple[ProcessEnd, ...]:
    """Return the ends of processes in the order of time. Records of releases that did not tell senders are skipped."""
    of_events = (event.fields for event in events if event.event in ("rank-died", "agents-gone"))
    return _read((*of_events, *sequence(info.workload, "ends")))


def ends_of(workload: Fields) -> tuple[ProcessEnd, ...]:
    """Return the ends of a launched program's ranks, in the order of time."""
    return _read(sequence(workload, "ends"))


def _read(lines: Iterable[object]) -> tuple[ProcessEnd, ...]:
    ends, _ = parse(lines, {"": ProcessEnd.from_dict}, None)
    return tuple(sorted(ends, key=lambda end: end.t))
