"""The cost of each cut of a shared-risk audit to the job, from the step records alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.commits import Commit
from testbed.core.analysis.goodput import evaluate
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import RankLog

__all__ = ["CutImpact", "impacts"]


@dataclass(frozen=True)
class CutImpact:
    """One cut while the job trained; times in s, None where unknown.

    Attributes:
        duct: the duct that was cut.
        links: the links in it.
        lasted_s: duration of the cut, from its command to that of its end.
        steps_per_s_before: over as long before the cut as it lasted, or since the previous cut.
        steps_per_s_during: committed while it lasted.
        goodput: the second over the first: the share of the pace that was kept. Not the goodput of a job, which
            counts rank-seconds.
        longest_gap_s: between two commits while it lasted and shortly after; at least this long if ``gap_open``.
        back_after_end_s: from its end to the first step of at most 1.1 x the median; 0 if no step near it was longer.
        came_back: whether a step was committed after it.
        gap_open: whether training stopped at this cut and did not come back.
    """

    duct: str
    links: tuple[str, ...]
    lasted_s: float
    steps_per_s_before: float | None
    steps_per_s_during: float
    goodput: float | None
    longest_gap_s: float | None
    back_after_end_s: float | None
    came_back: bool
    gap_open: bool = False


def impacts(logs: Sequence[RankLog], windows: Sequence[FaultWindow], ended_t: float | None = None) -> list[CutImpact]:
    """Return the impact of each of ``windows`` that has ended, in order."""
    job = evaluate(logs, windows, ended_t, seen_t=ended_t)
    of_faults: list[CutImpact] = []
    calm_from_t = job.began_t or 0.0
    for fault in job.faults:
        window = fault.window
        if window.ended_t is None:
            continue
        lasted_s = window.ended_t - window.began_t
        before = _pace(job.commits, max(calm_from_t, window.began_t - max(lasted_s, 1.0)), window.began_t)
        during = sum(window.began_t < commit.t <= window.ended_t for commit in job.commits) / lasted_s
        of_faults.append(
            CutImpact(
                duct=window.target,
                links=window.links,
                lasted_s=lasted_s,
                steps_per_s_before=before,
                steps_per_s_during=during,
                goodput=None if before is None else during / before,
                longest_gap_s=fault.longest_gap_s,
                back_after_end_s=fault.back_after_end_s,
                came_back=any(commit.t > window.ended_t for commit in job.commits),
                gap_open=fault.gap_open,
            )
        )
        calm_from_t = window.ended_t if fault.aftermath_end_t is None else fault.aftermath_end_t
    return of_faults


def _pace(commits: Sequence[Commit], begin_t: float, end_t: float) -> float | None:
    """Return the steps per second of the commits that lie wholly between the two times; None if there is none."""
    whole = [commit.duration_s for commit in commits if begin_t <= commit.begin_t and commit.t <= end_t]
    return len(whole) / sum(whole) if sum(whole) > 0 else None
