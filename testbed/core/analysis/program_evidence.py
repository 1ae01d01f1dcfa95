"""What a launched program achieved, from the steps that its ranks print: the same figures as of the testbed's agents.

``program_steps.py`` says which steps count; ``paced.py`` computes their pace and the recovery from faults, as for any
job. What differs, as less is known:

- *Step time* = time between two commits / steps between them. When the steps up to the first print began is not known,
  so that print only begins the count.
- *Wall time* lasts from the first print that counts to the last one; to the end of the program where it failed, was
  ended, or stopped printing for long. Start-up and what follows the last step is no training, as far as is known.
- *Goodput* = time of the steps that count, at most at their fault-free pace / wall time. Steps outside the faults are
  counted as they were; those during faults, all together, at most at the pace. A checkpoint or an evaluation between
  two prints is part of their steps.
- *tokens_per_s* = tokens of the steps after the first print / wall time.
- *Steps lost* by a restart inside the program: those printed beyond the last commit that counts, to within a print.
- Compute and exposed communication, rank-seconds by class, and the bytes that must cross are not known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.core.analysis import launched_seconds
from testbed.core.analysis.attempt_history import Attempt
from testbed.core.analysis.commits import Commit
from testbed.core.analysis.goodput import JobEvidence
from testbed.core.analysis.paced import Paced, pace
from testbed.core.analysis.program_steps import CountedStep, ProgressMerge, merged
from testbed.core.analysis.recovery import JobSpan
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.fields import sequence
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_info import RunInfo

__all__ = ["ProgramEvidence", "evaluate"]

_STOPPED = 5
"""A program whose last print is this many usual prints before its end had stopped printing before it ended."""


@dataclass(frozen=True)
class ProgramEvidence:
    """The evidence on the job, in the type of any job; ``printing`` are the ranks that print steps.

    ``steps_a_print`` is how many steps lie between two prints, usually; None without steps. ``first_step_t`` is when
    the first print counted.
    """

    job: JobEvidence
    attempts: tuple[Attempt, ...]
    printing: tuple[int, ...]
    steps_a_print: int | None
    first_step_t: float | None


def evaluate(
    logs: Sequence[RankLog], info: RunInfo, windows: Sequence[FaultWindow], seen_t: float | None = None
) -> ProgramEvidence:
    """Build the evidence; ``seen_t`` is until when the run was observed."""
    began, ended = launched_seconds.times(info)
    began_t = min([*began.values(), *(job.t for log in logs for job in log.jobs)], default=info.started_t)
    merge, counted = merged(logs, ended)
    committed, ran = _commits(merge, counted)
    statuses = [status if isinstance(status, int) else None for status in sequence(info.workload, "statuses")]
    # A workload with a duration is ended by the testbed, in order.
    good = (0, None) if info.workload.get("ended_in_order") is True else (0,)
    complete = bool(statuses) and all(status in good for status in statuses)
    died = any(statuses) or (info.status == "failed" and not info.unknown_because and not complete)
    lasts = [*ended.values(), *(record.t for log in logs for record in log.progress)]
    if not ended and seen_t is not None:
        lasts.append(seen_t)
    ended_t = max(lasts, default=None)
    span = None
    if began_t is not None and ended_t is not None and committed:
        seen = max(ended_t, seen_t) if died and seen_t is not None else ended_t
        # Nothing is known of the job before its first print.
        span = JobSpan(counted[0].t, ended_t, seen, complete, died)
    paced = pace(committed, ran, windows, span)
    timed = _timed(committed, paced, span)
    world = len(statuses) or len(sequence(info.workload, "began_t")) or len(logs)
    job = JobEvidence(
        world_size=world or None,
        steps_planned=None,
        steps_lost=_lost(merge, committed),
        commits=committed,
        rank_times=(),
        began_t=began_t,
        ended_t=ended_t,
        median_step_s=paced.median_step_s,
        fault_free_s_per_token=paced.s_per_token,
        faults=paced.faults,
        failures=(),
        quiet=tuple((commit.begin_t, commit.t) for commit in paced.quiet),
        complete=complete,
        died=died,
        seen_t=span.seen_t if span else ended_t,
        program=True,
        timed=timed,
        goodput_of_steps=_goodput(committed, paced, timed),
    )
    return ProgramEvidence(
        job=job,
        attempts=_attempts(merge, committed, ran, windows, began_t, ended_t),
        printing=tuple(sorted(merge.printers or ())),
        steps_a_print=paced.pace.steps if paced.pace else 1 if committed else None,
        first_step_t=counted[0].t if counted else None,
    )


def _commits(merge: ProgressMerge, counted: Sequence[CountedStep]) -> tuple[tuple[Commit, ...], tuple[Commit, ...]]:
    """Return the commits in the lineage of what the program went on with, and every one that ever counted."""

    def kept(counted_step: CountedStep) -> bool:
        later = (step for attempt, step in merge.first_printed.items() if attempt > counted_step.attempt)
        return counted_step.step < min(later, default=math.inf)

    return _chain([record for record in counted if kept(record)], counted), _chain(counted, counted)


def _chain(counted: Sequence[CountedStep], every: Sequence[CountedStep]) -> tuple[Commit, ...]:
    chain: list[Commit] = []
    at = 0  # the next one of ``every`` that may have been lost before the next commit
    for record in counted:
        last = chain[-1] if chain else None
        if record is every[0] or (last is not None and record.step <= last.step):
            chain.append(
                Commit(record.step, record.t, 0.0, 0, record.train_loss, record.attempt, stood_t=record.t, timed=False)
            )
            continue
        # Where the program began again from nothing, nothing before counts but the time.
        before_t = last.t if last else every[0].t
        resumed = record.attempt > (last.attempt if last else 1)
        stood_t = before_t
        while at < len(every) and every[at].t < record.t:
            stood_t = max(stood_t, every[at].t)
            at += 1
        steps = record.step - last.step if last else 1
        chain.append(
            Commit(
                step=record.step,
                t=record.t,
                duration_s=record.t - before_t,
                tokens=round(steps * (record.tokens_per_step or 0.0)),
                train_loss=record.train_loss,
                attempt=record.attempt,
                resumed=resumed,
                stood_t=stood_t if resumed else before_t,
                ran_t=before_t,
                steps=steps,
            )
        )
    # A program that prints each tenth step prints 10 first: ten steps are done, though when they began is not known.
    if len(chain) > 1 and chain[0].step == chain[1].steps:
        chain[0] = replace(chain[0], steps=chain[0].step)
    return tuple(chain)


def _lost(merge: ProgressMerge, committed: Sequence[Commit]) -> int:
    """Return the steps that some rank printed, beyond what was kept when the program went back."""
    return sum(_lost_of(merge, committed, attempt) for attempt in merge.furthest if attempt < merge.attempt)


def _lost_of(merge: ProgressMerge, committed: Sequence[Commit], attempt: int) -> int:
    began = merge.first_printed[attempt]
    kept = max((commit.step for commit in committed if commit.attempt == attempt), default=began - 1)
    return max(0, merge.furthest[attempt] - max(kept, began - 1))


def _timed(committed: Sequence[Commit], paced: Paced, span: JobSpan | None) -> tuple[float, float] | None:
    if span is None:
        return None
    last_t = committed[-1].t
    stopped = paced.pace is None or span.ended_t - last_t > _STOPPED * paced.pace.commit_s
    return span.began_t, last_t if span.complete or not stopped else span.ended_t


def _goodput(committed: Sequence[Commit], paced: Paced, timed: tuple[float, float] | None) -> float | None:
    quiet_steps = sum(commit.steps for commit in paced.quiet)
    if timed is None or not quiet_steps or timed[1] <= timed[0]:
        return None
    quiet_s = sum(commit.duration_s for commit in paced.quiet)
    untouched = {(commit.attempt, commit.step) for commit in paced.quiet}
    spent: defaultdict[int, float] = defaultdict(float)
    steps: defaultdict[int, int] = defaultdict(int)
    for commit in committed:
        if commit.timed and (commit.attempt, commit.step) not in untouched:
            spent[commit.attempt] += commit.duration_s
            steps[commit.attempt] += commit.steps
    slow_s = sum(min(spent[attempt], steps[attempt] * quiet_s / quiet_steps) for attempt in spent)
    return min(1.0, (quiet_s + slow_s) / (timed[1] - timed[0]))


def _attempts(
    merge: ProgressMerge,
    committed: Sequence[Commit],
    ran: Sequence[Commit],
    windows: Sequence[FaultWindow],
    began_t: float | None,
    ended_t: float | None,
) -> tuple[Attempt, ...]:
    """Return the attempts that the program's own restarts divide it into; none where it printed no step.

    When the program failed and knew of it is not printed: an attempt ends with its last commit.
    """
    if not committed or began_t is None:
        return ()
    numbers = sorted(merge.first_printed)
    times: Mapping[int, list[float]] = {
        number: [commit.t for commit in ran if commit.attempt == number] or [began_t] for number in numbers
    }
    attempts = []
    for index, number in enumerate(numbers):
        following = numbers[index + 1] if index + 1 < len(numbers) else None
        stopped_t, resumed_t = times[number][-1], times[following][0] if following is not None else None
        first = merge.first_printed[number]
        kept = [commit.step for commit in committed if commit.step < first and commit.attempt < number]
        back_to = 0 if following is None else merge.first_printed[following]
        attempts.append(
            Attempt(
                number=number,
                began_t=began_t if index == 0 else times[number][0],
                resumed_from=max(kept, default=0),
                ended_t=ended_t if following is None else stopped_t,
                steps_committed=sum(commit.steps for commit in committed if commit.attempt == number),
                steps_lost=0 if following is None else _lost_of(merge, committed, number),
                why="" if following is None else f"the program went back to step {back_to} by itself",
                cause="" if resumed_t is None else _cause(windows, stopped_t, resumed_t),
                detection_s=None,
                time_to_resume_s=None if resumed_t is None or resumed_t <= stopped_t else resumed_t - stopped_t,
                goodput=None,
                blast=(),
            )
        )
    return tuple(attempts)


def _cause(windows: Sequence[FaultWindow], stopped_t: float, resumed_t: float) -> str:
    """Return the last fault that was in force while the program stood."""
    standing = [
        window
        for window in windows
        if window.began_t < resumed_t and (window.ended_t is None or window.ended_t >= stopped_t)
    ]
    return max(standing, key=lambda window: window.began_t).label if standing else ""
