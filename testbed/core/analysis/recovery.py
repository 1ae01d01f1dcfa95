"""Recovery of the job from its faults, from its commits alone. All in seconds of one monotonic clock.

*Recovery* from a fault = the longest gap between commits in its neighbourhood, and the time back to 1.1 x the median
step. A gap counts for a fault if it overlaps the fault, or follows soon after it while no other fault is active.
Overlapping faults share their gaps, because the cause cannot be told apart. A checkpoint between two commits is no
fault's doing: its time is left out of gaps and steps.

What the records do not tell is None.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.commits import Commit
from testbed.core.analysis.timeline import FaultWindow, Stretches

__all__ = ["BACK", "FaultRecovery", "recover"]

BACK = 1.1
"""A job is back to its pace when a step takes at most this multiple of the fault-free median."""

_EDGE_STEPS = 3
"""Commits after a fault begins or ends that may show its stall: the step in progress at that moment may not need the
network any more, but the next one does. Later slow steps are noise of the host, not this fault's."""

_STALL_STEPS = 5
"""A job that ends this many median steps after its last commit had stalled; a plain stop comes within a step or two."""


@dataclass(frozen=True)
class FaultRecovery:
    """The job's recovery from one fault.

    Attributes:
        longest_gap_s: between two commits while it lasted and shortly after; up to the job's end when none came.
        back_s: from its beginning to the end of the first step at 1.1 x the median or less, after the stall; 0 when
            no step was slower; None when the job never came back.
        back_after_end_s: the same from the end of the fault.
        recovered: False when the job never came back; None when unknown.
        gap_began_t: when the longest gap began, which may be before the fault or long after its beginning.
    """

    window: FaultWindow
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None
    gap_began_t: float | None = None


def recover(
    committed: Sequence[Commit],
    ran: Sequence[Commit],
    window: FaultWindow,
    faults: Stretches,
    median: float | None,
    began: float | None,
    ended: float | None,
    complete: bool,
) -> FaultRecovery:
    outside = FaultRecovery(window, None, None, None, None)
    if median is None or began is None or ended is None or not committed:
        return outside
    if window.began_t > ended or (window.ended_t is not None and window.ended_t <= began):
        return outside
    last_t = committed[-1].t
    near = _gaps(committed, window, faults, _EDGE_STEPS * median)
    if not near:  # all steps during the fault were lost to a later fault
        near = _gaps(ran, window, faults, _EDGE_STEPS * median)
    stalled = not complete and ended - last_t > _STALL_STEPS * median
    if stalled and (window.ended_t is None or last_t <= window.ended_t):
        # Nothing was committed after it: the gap is at least as long as the remaining time of the job.
        gap_s, gap_began_t = max([*near, (ended - last_t, last_t)])
        return FaultRecovery(window, gap_s, None, None, False, gap_began_t)
    if last_t <= window.began_t:
        return outside
    back = _back(committed, window, faults, window.began_t, median)
    after = None if window.ended_t is None else _back(committed, window, faults, window.ended_t, median)
    longest = max(near, default=None)
    return FaultRecovery(
        window,
        longest[0] if longest else None,
        back,
        after,
        back is not None,
        longest[1] if longest else None,
    )


def _gaps(done: Sequence[Commit], window: FaultWindow, faults: Stretches, settle_s: float) -> list[tuple[float, float]]:
    """Return how long each step in ``done`` (in the order of time) took that counts for a fault, and when it began."""
    behind = (done[at] for at in range(_first_after(done, window.began_t), len(done)))
    near = itertools.takewhile(lambda it: _overlap(it, window, settle_s), behind)
    return [(it.step_s, it.t - it.step_s) for it in near if _is_of(it, window, faults)]


def _first_after(done: Sequence[Commit], t: float) -> int:
    return bisect.bisect_right(done, t, key=lambda it: it.t)


def _is_of(commit: Commit, window: FaultWindow, faults: Stretches) -> bool:
    """Whether a commit's duration counts for this fault: it overlaps the fault, or no other fault."""
    stood_t = max(commit.stood_t, commit.begin_t)
    mine = commit.t > window.began_t and (window.ended_t is None or stood_t < window.ended_t)
    return mine or not faults.touch(stood_t, commit.t)


def _back(
    committed: Sequence[Commit], window: FaultWindow, faults: Stretches, edge_t: float, median: float
) -> float | None:
    """Return the seconds from ``edge_t`` until a step took at most 1.1 x the median again; 0 if no step near it took
    longer.

    Near are the first steps after it, as far as they count for the fault.
    """
    first = _first_after(committed, edge_t)
    near = [it for it in committed[first : first + _EDGE_STEPS] if _is_of(it, window, faults)]
    if not near:
        return 0.0
    worst = max(near, key=lambda it: it.step_s)
    if worst.step_s <= BACK * median:
        return 0.0
    later = (committed[at] for at in range(_first_after(committed, worst.t), len(committed)))
    return next((commit.t - edge_t for commit in later if commit.step_s <= BACK * median), None)


def _overlap(commit: Commit, window: FaultWindow, settle_s: float) -> bool:
    """Whether the step's time overlaps the fault's, extended by ``settle_s`` beyond its end."""
    return commit.t > window.began_t and (window.ended_t is None or commit.begin_t < window.ended_t + settle_s)
