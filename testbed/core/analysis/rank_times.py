"""Breakdown of each rank's time, from the step records alone.

*Compute* and *exposed communication* are rank-seconds. Exposed is from the moment a rank's last gradient is ready until
its gradients are usable, and from the end of its inner optimizer until the exchanges that follow it are done. *Peer
wait* is the part of it until the last of those ranks was ready for which it waits (``peer_waits.py``), *network* is the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.peer_waits import peer_waits
from testbed.core.records.rank_log import RankLog
from testbed.core.training.twin import Twin

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


def rank_times(logs: Sequence[RankLog], twin: Twin | None = None) -> tuple[RankTime, ...]:
    """Return the times of each rank with steps; without ``twin`` all ranks wait for each other within each step."""
    waits = peer_waits(logs, twin)
    return tuple(
        RankTime(
            rank=log.rank,
            node=log.node,
            site=log.site,
            compute_s=sum(record.compute_s for record in log.steps),
            peer_wait_s=sum(wait.total_s for wait in waits[log.rank]),
            network_s=sum(wait.record.exposed_s - wait.total_s for wait in waits[log.rank]),
        )
        for log in logs
        if log.steps
    )
