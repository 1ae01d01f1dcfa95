"""The rank-seconds of a launched program: what its ranks did in them is not told apart, even if they print steps.

What is known is when each rank's process began and ended. The job lasts from the first of these to the last; where one
rank waited for another to begin, or had ended before it, is *begin and end*.
"""

from __future__ import annotations

import math

from testbed.core.analysis.rank_seconds import AttemptSpan, RankSeconds
from testbed.core.fields import Malformed, number, numbers, sequence
from testbed.core.records.run_info import RunInfo

__all__ = ["account", "times"]


def account(info: RunInfo) -> tuple[int, tuple[AttemptSpan, ...]]:
    """Return the number of ranks and their time as one span; no span if the record does not tell when they ran.

    A run of a version that recorded no times of ranks has one span from its beginning to its end.
    """
    world = len(sequence(info.workload, "statuses"))
    began, ended = (_times(info, key, world) for key in ("began_t", "ended_t"))
    if began and ended and all(begin <= end for begin, end in zip(began, ended, strict=True)):
        first, last = min(began), max(ended)
        ran = sum(end - begin for begin, end in zip(began, ended, strict=True))
    elif world and info.started_t is not None and info.ended_t is not None:
        first, last = info.started_t, info.ended_t
        ran = world * (last - first)
    else:
        return world, ()
    wall = world * (last - first)
    if not 0 < wall < math.inf:
        return world, ()
    seconds = RankSeconds(begin_and_end_s=max(0.0, wall - ran), not_told_apart_s=ran)
    return world, (AttemptSpan(1, False, first, last, seconds),)


def times(info: RunInfo) -> tuple[dict[int, float], dict[int, float]]:
    """Return when the process of each rank began and ended, by rank; only where the record has a time."""
    return _of_ranks(info, "began_t"), _of_ranks(info, "ended_t")


def _of_ranks(info: RunInfo, key: str) -> dict[int, float]:
    listed = sequence(info.workload, key)
    numbered = ((rank, number({"": value}, "")) for rank, value in enumerate(listed))
    return {rank: t for rank, t in numbered if t is not None}


def _times(info: RunInfo, key: str, world: int) -> tuple[float, ...]:
    """Return a time for each rank; nothing if one is missing."""
    try:
        times_t = numbers(info.workload, key)
    except Malformed:
        return ()
    return times_t if len(times_t) == world else ()
