"""Which ranks wait for which in a step, by the strategy's twin, and how long each waited for its peers.

Not every rank waits for every other one. *Within* the step, until its gradients are usable, a rank waits for those with
which it exchanges gradients, activations or tokens: in local SGD those of its site. *After* the inner optimizer it
waits for those with whose pseudo-gradients or parameters it goes on: then, or where a fragment lands some steps after
its exchange began, until they had begun it. What a rank waits for is connected by operations with common ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["Run", "StepWait", "Synchronised", "all_meet_after", "peer_waits", "runs"]

Run = tuple[int, int, int]
"""(attempt, step, number): the n-th run of a step on one rank matches the n-th on the others."""


@dataclass(frozen=True)
class StepWait:
    """What one rank waited for others in one step, in seconds: at most its exposed time of that part."""

    record: StepRecord
    run: Run
    within_s: float
    after_s: float

    @property
    def total_s(self) -> float:
        return self.within_s + self.after_s


class Synchronised:
    """The ranks that wait for each other, by step. Without ``twin``: all, within each step."""

    def __init__(self, twin: Twin | None, world_size: int) -> None:
        self._twin, self._world_size = twin, world_size
        self._within: dict[tuple[Operation, ...], list[frozenset[int]]] = {}
        self._after: dict[tuple[int, int], list[tuple[frozenset[int], int]]] = {}
        self._longest = 0

    def within(self, step: int, rank: int) -> frozenset[int]:
        """Return the ranks for which ``rank`` waits before its inner optimizer, itself included."""
        if self._twin is None:
            return frozenset(range(self._world_size))
        return self._of(tuple(operation for operation in self._twin.operations(step) if operation.before_update), rank)

    def after(self, step: int, rank: int) -> list[tuple[frozenset[int], int]]:
        """Return (ranks, steps before) of the exchanges for which ``rank`` waits after its inner optimizer."""
        if self._twin is None:
            return []
        if (step, rank) in self._after:
            return self._after[step, rank]
        landed = []
        for earlier in range(self._reach() + 1):
            landing = (operation for operation in self._operations(step - earlier) if not operation.before_update)
            due = tuple(
                operation
                for operation in landing
                if operation.lands == earlier or (step == self._twin.layout.steps and operation.lands)
            )
            ranks = self._of(due, rank) if due else frozenset()
            if len(ranks) > 1:
                landed.append((ranks, earlier))
        self._after[step, rank] = landed
        return landed

    def _operations(self, step: int) -> Sequence[Operation]:
        return self._twin.operations(step) if self._twin is not None and step > 0 else ()

    def _reach(self) -> int:
        """Return the most steps after which an exchange lands."""
        if not self._longest and self._twin is not None:
            some = range(1, min(self._twin.layout.steps, 2 * max(32, self._twin.longest_gap)) + 1)
            self._longest = 1 + max(
                (operation.lands for step in some for operation in self._twin.operations(step)), default=0
            )
        return max(0, self._longest - 1)

    def _of(self, operations: tuple[Operation, ...], rank: int) -> frozenset[int]:
        if operations not in self._within:
            self._within[operations] = _connected(operation.ranks for operation in operations)
        return next((group for group in self._within[operations] if rank in group), frozenset((rank,)))


def _connected(groups: Iterable[Sequence[int]]) -> list[frozenset[int]]:
    components: list[frozenset[int]] = []
    for group in groups:
        joined = frozenset(group)
        apart = []
        for other in components:
            if other & joined:
                joined |= other
            else:
                apart.append(other)
        components = [*apart, joined]
    return components


def runs(log: RankLog) -> list[tuple[StepRecord, Run]]:
    """Return the steps of one rank, each with its run."""
    counts: Counter[tuple[int, int]] = Counter()
    runs_of_steps = []
    for record in log.steps:
        step = (record.attempt, record.step)
        runs_of_steps.append((record, (*step, counts[step])))
        counts[step] += 1
    return runs_of_steps


def peer_waits(
    logs: Sequence[RankLog], twin: Twin | None, sooner: Mapping[int, Mapping[tuple[int, int], float]] | None = None
) -> dict[int, list[StepWait]]:
    """Return rank -> its waits, in the order of its steps.

    ``sooner``: rank -> (attempt, step) -> seconds by which the rank would have been ready sooner; 0 where missing.
    """
    listed = {log.rank: runs(log) for log in logs}
    world = Synchronised(twin, max([log.rank + 1 for log in logs], default=0))
    ready = _Moments(listed, lambda record: record.t_ready, sooner or {})
    stepped = _Moments(listed, lambda record: record.t_stepped, sooner or {})
    return {
        rank: [
            StepWait(
                record,
                run,
                min(record.within_s, ready.lag(rank, run, world.within(record.step, rank))),
                min(
                    record.after_s,
                    max(
                        (stepped.lag(rank, run, *exchange) for exchange in world.after(record.step, rank)), default=0.0
                    ),
                ),
            )
            for record, run in rows
        ]
        for rank, rows in listed.items()
    }


def all_meet_after(twin: Twin | None, world_size: int, step: int) -> bool:
    """Whether all ranks wait for all others after their inner optimizer in ``step``, and not before."""
    world, everyone = Synchronised(twin, world_size), frozenset(range(world_size))
    if twin is None or world.within(step, 0) == everyone:
        return False
    due = [operation.ranks for operation in twin.operations(step) if not operation.before_update]
    return _connected(due) == [everyone]


class _Moments:
    """One moment of each rank's steps, such as when its gradients were ready."""

    def __init__(
        self,
        listed: Mapping[int, Sequence[tuple[StepRecord, Run]]],
        moment: Callable[[StepRecord], float],
        sooner: Mapping[int, Mapping[tuple[int, int], float]],
    ) -> None:
        self._t = {
            (rank, run): moment(record) - sooner.get(rank, {}).get(run[:2], 0.0)
            for rank, rows in listed.items()
            for record, run in rows
        }
        self._last: dict[tuple[frozenset[int], Run], float] = {}

    def lag(self, rank: int, run: Run, ranks: frozenset[int], earlier: int = 0) -> float:
        """Return how much later than ``rank`` the last of ``ranks`` was there, ``earlier`` steps before; at least 0."""
        before = (run[0], run[1] - earlier, run[2])
        if (ranks, before) not in self._last:
            begin_times = (self._t.get((records, before), -math.inf) for records in ranks)
            self._last[ranks, before] = max(begin_times, default=-math.inf)
        return max(0.0, self._last[ranks, before] - self._t[rank, run])
