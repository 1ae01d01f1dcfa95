"""Recovery of the job from its faults, from its commits alone. All in seconds of one monotonic clock.

*Recovery* from a fault = the longest gap between commits in its neighbourhood, and the time back to 1.1 x the median
step. A gap counts for a fault if it overlaps the fault, or follows soon after it while no other fault is active.
Overlapping faults share their gaps, because the cause cannot be told apart. A checkpoint between two commits is no
fault's doing: its time is left out of gaps and steps. So is the time that an exchange which only some steps have takes
without a fault.

A gap is *open* if no step ended it: training did not come back as far as the run was observed. Its length is then what
was seen of it, from the last commit to the end of the observation, and the true one is at least that. No bound on
recovery is met by an open gap, however short it was seen.

The time back after the end of a fault is its own: it is unknown if another fault began, or an overlapping one ended,
before training was back, as training may have waited for that.

The *aftermath* of a fault lasts until training is back, whatever else happens meanwhile, and until all that the fault
may have affected is exchanged (``exchange_schedule.py``): only then have all ranks waited for the slow one. That of a
restart lasts as long.

A launched program may print only every n-th step. A commit then stands for n steps, of which n - 1 are taken at the
fault-free median: what is left of the time between two prints is the gap. Where that time is shorter than two prints
usually take, the gap is *at most* all of it: one slow step among n cannot be told from n ordinary ones.

What the records do not tell is None.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.core.analysis.commits import Commit
from testbed.core.analysis.timeline import FaultWindow, Stretches

__all__ = ["BACK", "FaultRecovery", "JobSpan", "StepPace", "recover", "restart_end_t"]

BACK = 1.1
"""A job is back to its pace when a step takes at most this multiple of the fault-free median."""

_EDGE_STEPS = 3
"""Commits after a fault begins or ends that may show its stall: the step in progress at that moment may not need the
network any more, but the next one does. Later slow steps are noise of the host, not this fault's."""

_STALL_STEPS = 5
"""A job that is stopped this many median steps after its last commit had stalled; a plain stop comes within a step or
two. One that died had stalled however soon that was noticed. Of a program, this many times its usual print."""

_TWO_PRINTS = 2

_ROUNDING_S = 1e-9
"""Of the time of a commit that is the sum of two others."""


@dataclass(frozen=True)
class FaultRecovery:
    """The job's recovery from one fault.

    Attributes:
        longest_gap_s: between two commits while it lasted and shortly after; at least this long if ``gap_open``.
        back_s: from its beginning to the end of the first step at 1.1 x the median or less, after the stall; 0 when
            no step was slower; None when the job never came back, or only after another fault.
        back_after_end_s: the same from the end of the fault.
        recovered: False when the job never came back; None when unknown. A job that ended with all of its steps while
            the fault was still active came through, however slow it was.
        gap_began_t: when the longest gap began, which may be before the fault or long after its beginning; if
            ``gap_open``, when the open one did.
        gap_open: whether no step came after the fault.
        aftermath_end_t: when its aftermath ended; None if the fault did not end, or its aftermath outlasted the job.
        gap_at_most: whether the longest gap is an upper bound: it is shorter than two prints usually take.
        uncertainty_s: of the longest gap, by stalls of the host (``host_noise.py``).
    """

    window: FaultWindow
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None
    gap_began_t: float | None = None
    gap_open: bool = False
    aftermath_end_t: float | None = None
    gap_at_most: bool = False
    uncertainty_s: float = 0.0


class StepPace(NamedTuple):
    """The fault-free pace of a job: the median step, and the median time and number of steps from commit to commit."""

    step_s: float
    commit_s: float
    steps: int

    @classmethod
    def of(cls, calm: Sequence[Commit]) -> StepPace | None:
        """Return the pace of commits outside every fault; None if there are none."""
        if not calm:
            return None
        return cls(
            statistics.median(silence.step_s for silence in calm),
            statistics.median(silence.whole_s for silence in calm),
            round(statistics.median(silence.steps for silence in calm)),
        )


class _Gap(NamedTuple):
    """``at_most``: the true one may be shorter."""

    seconds: float
    began_t: float
    at_most: bool = False


@dataclass(frozen=True)
class JobSpan:
    """The job's time. ``seen_t``: until when the run was observed, at least ``ended_t``. ``complete``: every planned
    step is committed. ``died``: a rank failed and nothing restarted the job; the alternative is an orderly stop."""

    began_t: float
    ended_t: float
    seen_t: float
    complete: bool
    died: bool


def recover(
    committed: Sequence[Commit],
    ran: Sequence[Commit],
    window: FaultWindow,
    faults: Stretches,
    pace: StepPace | None,
    job: JobSpan | None,
    exchanged: Callable[[float], float],
) -> FaultRecovery:
    """Return the recovery from the fault ``window``, one of ``faults``.

    ``exchanged``: when all that was affected until a time is exchanged.
    """
    median = None if pace is None else pace.step_s
    outside = FaultRecovery(window, None, None, None, None)
    if job is None:
        return outside
    if window.began_t > job.ended_t or (window.ended_t is not None and window.ended_t <= job.began_t):
        return outside
    settle_s = 0.0 if median is None else _EDGE_STEPS * median
    near = _gaps(committed, window, faults, settle_s, pace)
    if not near:  # all steps during the fault were lost to a later fault
        near = _gaps(ran, window, faults, settle_s, pace)
    last_t = committed[-1].t if committed else job.began_t
    gap = _open_gap(last_t, job, pace)
    # Whose it is was decided when the job ended: what begins later, while the run is still observed, changes nothing.
    at_end = None if gap is None else replace(gap, t=math.nextafter(job.ended_t, math.inf))
    if gap is not None and at_end is not None and _overlap(at_end, window, settle_s) and _is_of(at_end, window, faults):
        gap_s = max(gap_near.seconds for gap_near in (*near, _Gap(gap.longest_s(median), last_t)))
        return FaultRecovery(window, gap_s, None, None, False, last_t, gap_open=True)
    if median is None or last_t <= window.began_t:
        return outside
    longest = max(near, default=None)
    back_s = _back(committed, window, faults, window.began_t, median)
    # A fault that outlasts a job's last step leaves nothing to come back to: the job went on under it to its end.
    recovered = back_s is not None or (job.complete and (window.ended_t is None or window.ended_t >= job.ended_t))
    after_s, aftermath_end_t = None, None
    if window.ended_t is not None:
        after_s = _back(committed, window, faults, window.ended_t, median)
        aftermath_end_t = _aftermath_end(committed, window.ended_t, after_s, median, exchanged)
        # Faults that end within a step of each other end together.
        limit_t = min(faults.next_begin(window.ended_t), faults.next_end(window.ended_t + median))
        if after_s is not None and window.ended_t + after_s > limit_t:
            after_s = None
        if after_s is None and back_s is not None and window.began_t + back_s > window.ended_t:
            back_s = None
    return FaultRecovery(
        window,
        longest.seconds if longest else None,
        back_s,
        after_s,
        recovered,
        longest.began_t if longest else None,
        aftermath_end_t=aftermath_end_t,
        gap_at_most=longest is not None and longest.at_most,
    )


def restart_end_t(
    committed: Sequence[Commit], resumed: Commit, faults: Stretches, pace: StepPace, exchanged: Callable[[float], float]
) -> float | None:
    """Return when the aftermath of a restart ended, whose first commit is ``resumed``; None if it outlasted the job."""
    began_t = max(resumed.stood_t, resumed.ran_t)
    window = FaultWindow("", "restart", "", (), resumed.stood_t, began_t)
    # Of the first commit only the step itself counts.
    first = replace(resumed, duration_s=resumed.t - began_t, resumed=False, stood_t=began_t)
    later = [first, *committed[_first_after(committed, resumed.t) :]]
    after_s = _back(later, window, faults, began_t, pace.step_s)
    return _aftermath_end(later, began_t, after_s, pace.step_s, exchanged)


def _aftermath_end(
    committed: Sequence[Commit],
    edge_t: float,
    back_s: float | None,
    median: float,
    exchanged: Callable[[float], float],
) -> float | None:
    """Return the first commit at the pace once the job was ``back_s`` after ``edge_t`` and all was exchanged.

    If the exchange itself took too long, the next one has to be at the pace.
    """
    if back_s is None:
        return None
    t, index = max(edge_t + back_s, exchanged(edge_t)), -1
    while True:
        index = max(index + 1, bisect.bisect_left(committed, t - _ROUNDING_S, key=lambda commit: commit.t))
        if index >= len(committed):
            return None
        last = committed[index]
        if last.whole_s + last.exchange_s <= BACK * (last.steps * median + last.exchange_s):
            return last.t
        t = exchanged(math.nextafter(last.t, math.inf))


def _open_gap(last_t: float, job: JobSpan, pace: StepPace | None) -> Commit | None:
    """Return the time since the last commit, as the step that did not come; None if the job went on to its end."""
    stalled = pace is not None and job.ended_t - last_t > _STALL_STEPS * pace.commit_s
    if job.complete or not (job.died or stalled):
        return None
    seen_t = max(job.ended_t, job.seen_t if job.died else job.ended_t)
    steps = 1 if pace is None else max(1, pace.steps)
    return Commit(0, seen_t, seen_t - last_t, 0, None, stood_t=last_t, steps=steps)


def _gaps(
    done: Sequence[Commit], window: FaultWindow, faults: Stretches, settle_s: float, pace: StepPace | None
) -> list[_Gap]:
    """Return the longest step of each commit in ``done`` (in the order of time) that counts for a fault."""
    behind = (done[at] for at in range(_first_after(done, window.began_t), len(done)))
    near = itertools.takewhile(lambda commit: _overlap(commit, window, settle_s), behind)
    return [_gap(commit, pace) for commit in near if _is_of(commit, window, faults)]


def _gap(commit: Commit, pace: StepPace | None) -> _Gap:
    whole_s = commit.whole_s
    if commit.steps > 1 and pace is not None and whole_s < _TWO_PRINTS * pace.commit_s:
        return _Gap(whole_s, commit.t - whole_s, at_most=True)
    return _Gap(commit.longest_s(pace.step_s if pace else None), commit.t - whole_s)


def _first_after(done: Sequence[Commit], t: float) -> int:
    return bisect.bisect_right(done, t, key=lambda commit: commit.t)


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
    near = [commit for commit in _edge(committed, first) if _is_of(commit, window, faults)]
    if not near:
        return 0.0
    worst = max(near, key=lambda gap: gap.step_s)
    if worst.step_s <= BACK * median:
        return 0.0
    later = (committed[at] for at in range(_first_after(committed, worst.t), len(committed)))
    return next((commit.t - edge_t for commit in later if commit.step_s <= BACK * median), None)


def _edge(committed: Sequence[Commit], first: int) -> Sequence[Commit]:
    """Return the commits of the first steps after an edge; of the one in progress there, at least one step is."""
    steps, at = 0, first
    while at < len(committed) and steps < _EDGE_STEPS:
        steps += 1 if at == first else committed[at].steps
        at += 1
    return committed[first:at]


def _overlap(commit: Commit, window: FaultWindow, settle_s: float) -> bool:
    """Whether the step's time overlaps the fault's, extended by ``settle_s`` beyond its end."""
    return commit.t > window.began_t and (window.ended_t is None or commit.begin_t < window.ended_t + settle_s)
