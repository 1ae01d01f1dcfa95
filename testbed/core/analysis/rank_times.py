"""Breakdown of each rank's time, from the step records alone.

*Compute* and *exposed communication* are rank-seconds. Exposed is from the moment a rank's last gradient bucket is
ready until its gradients are usable; *peer wait* is the part of it until the last rank was ready, *network* the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.records.rank_log import RankLog, StepRecord

__all__ = ["RankTime", "rank_times"]


@dataclass(frozen=True)
class RankTime:
    """Where one rank's time went, in seconds over all its steps."""

    rank: int
    node: str
    site: str
    compute_s: float
    peer_wait_s: float
    network_s: float

    @property
    def exposed_s(self) -> float:
        return self.peer_wait_s + self.network_s


def rank_times(logs: Sequence[RankLog]) -> tuple[RankTime, ...]:
    waits = _peer_waits(logs)
    return tuple(
        RankTime(
            rank=log.rank,
            node=log.node,
            site=log.site,
            compute_s=sum(record.compute_s for record in log.steps),
            peer_wait_s=sum(wait for _, wait in waits.get(log.rank, ())),
            network_s=sum(record.exposed_s - wait for record, wait in waits.get(log.rank, ())),
        )
        for log in logs
        if log.steps
    )


def _peer_waits(logs: Sequence[RankLog]) -> dict[int, list[tuple[StepRecord, float]]]:
    """Return rank -> (record, peer wait): until the last rank of that step was ready, at most the exposed time."""
    # The n-th run of a step on one rank matches the n-th on the others.
    ready: dict[tuple[int, int, int], float] = {}
    keyed: dict[int, list[tuple[StepRecord, tuple[int, int, int]]]] = {}
    for log in logs:
        runs: Counter[tuple[int, int]] = Counter()
        for record in log.steps:
            run = (record.attempt, record.step)
            key = (*run, runs[run])
            runs[run] += 1
            ready[key] = max(ready.get(key, record.t_ready), record.t_ready)
            keyed.setdefault(log.rank, []).append((record, key))
    return {
        rank: [(record, min(record.exposed_s, ready[key] - record.t_ready)) for record, key in rows]
        for rank, rows in keyed.items()
    }
