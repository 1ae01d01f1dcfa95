"""Which exchanges a step has, and when everything that a fault may have affected has been exchanged, by the twin.

A slow step costs the other ranks nothing until they exchange: they wait then, which may be long after the fault. So a
fault is over once each rank has completed every operation that recurs, beginning with the step that it was in when the
fault ended: each fragment, each tier, each push. An operation is complete when its result has landed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["ExchangeSchedule", "ExchangeTimes"]


class ExchangeSchedule:
    """Operations by step. Without ``twin`` each step is an exchange of all ranks, and all steps are alike."""

    def __init__(self, twin: Twin | None) -> None:
        self._twin = twin
        self._operations: dict[int, tuple[Operation, ...]] = {}
        self._kinds: dict[int, tuple[Operation, ...]] = {}

    @property
    def last(self) -> int:
        """The last planned step."""
        return self._twin.layout.steps if self._twin else 0

    @property
    def cycle(self) -> int:
        return self._twin.cycle if self._twin else 1

    @cached_property
    def reach(self) -> int:
        """The most steps after which an operation lands."""
        steps = range(1, min(self.last, self.cycle) + 1)
        return max((operation.lands for step in steps for operation in self.operations(step)), default=0)

    def operations(self, step: int) -> tuple[Operation, ...]:
        """Return the operations that begin in ``step``."""
        if self._twin is None or step < 1:
            return ()
        if step not in self._operations:
            self._operations[step] = tuple(self._twin.operations(step))
        return self._operations[step]

    def kind(self, step: int) -> tuple[Operation, ...]:
        """Return the operations that begin in ``step``, and those that land there: steps alike have equal ones."""
        if step not in self._kinds:
            landing = (
                operation
                for before in range(1, self.reach + 1)
                for operation in self.operations(step - before)
                if operation.lands == before or (operation.lands > before and step == self.last)
            )
            self._kinds[step] = (*self.operations(step), *landing)
        return self._kinds[step]

    def is_regular(self, step: int, resumed: int) -> bool:
        """Whether its exchanges come as many steps after the ones before as those of all cycles do.

        Not so in the last step, if it cuts a cycle short or if what is on its way lands there, nor in the first cycle
        after an attempt ``resumed`` from a step within one, nor before the first exchanges that are used later landed.
        """
        if step == self.last and (self.reach or step % self.cycle):
            return False
        return step > resumed + self.cycle + self.reach or not (self.reach or resumed % self.cycle)

    def lands(self, operation: Operation, step: int) -> int:
        """Return the step after which ``operation``, begun in ``step``, is complete: at the latest the last one."""
        return max(step, min(step + operation.lands, self.last))


class ExchangeTimes:
    """When all ranks had exchanged what a fault that ended at a given time may have affected."""

    def __init__(self, logs: Sequence[RankLog], schedule: ExchangeSchedule) -> None:
        self._schedule = schedule
        self._ranks = [self._of(log) for log in logs if log.steps]
        self._after: dict[float, float] = {}

    def after(self, t: float) -> float:
        """Return the time; infinity if the records end before."""
        if t not in self._after:
            self._after[t] = max((_time_after(ends, times, t) for ends, times in self._ranks), default=t)
        return self._after[t]

    def _of(self, log: RankLog) -> tuple[list[float], list[float]]:
        """Return the ends of a rank's steps in order, and for each the time by which all is exchanged."""
        by_attempt: dict[int, list[StepRecord]] = {}
        for record in log.steps:
            by_attempt.setdefault(record.attempt, []).append(record)
        attempts = [sorted(by_attempt[attempt], key=lambda record: record.t_end) for attempt in sorted(by_attempt)]
        ends = [record.t_end for records in attempts for record in records]
        if self._schedule.cycle == 1 and not self._schedule.reach:
            return ends, ends
        # What an attempt did not exchange, the next one does: that is part of the aftermath of the restart.
        stops = [records[0].t_begin for records in attempts[1:]] + [math.inf]
        times = [t for records, stop in zip(attempts, stops, strict=True) for t in self._times(log.rank, records, stop)]
        return ends, times

    def _times(self, rank: int, records: Sequence[StepRecord], stop_t: float) -> list[float]:
        """Walk backwards over an attempt: the next time of each operation, if that is within a cycle."""
        schedule = self._schedule
        ends = {record.step: record.t_end for record in records}
        last = max(ends)
        following: dict[Hashable, tuple[int, float]] = {}
        for step in range(min(schedule.last, last + schedule.cycle), last, -1):
            following |= dict.fromkeys(_keys(rank, schedule.operations(step)), (step, stop_t))
        times = []
        for record in reversed(records):
            for operation in schedule.operations(record.step):
                if rank in operation.ranks:
                    landing = schedule.lands(operation, record.step)
                    following[_key(operation)] = (record.step, ends.get(landing, stop_t))
            due = (t for step, t in following.values() if step < record.step + schedule.cycle)
            times.append(max(record.t_end, max(due, default=record.t_end)))
        return times[::-1]


def _time_after(ends: Sequence[float], times: Sequence[float], t: float) -> float:
    """Return the time by which a rank had exchanged what it did until ``t``."""
    index = bisect.bisect_left(ends, t)
    return max(t, times[index]) if index < len(ends) else t


def _keys(rank: int, operations: Iterable[Operation]) -> list[Hashable]:
    return [_key(operation) for operation in operations if rank in operation.ranks]


def _key(operation: Operation) -> Hashable:
    return operation.kind, operation.what, operation.group, operation.fragment, operation.ranks
