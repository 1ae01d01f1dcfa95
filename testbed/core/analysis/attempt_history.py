"""The attempts of a job: what ended each, when that was detected, what was lost, and when the job resumed.

An attempt is a run of the job from its beginning, or from a checkpoint, until it fails or the job ends. Attempts are
numbered from 1. All ``t`` are seconds of CLOCK_MONOTONIC.

- *Detection* = from the cause, as far as it is known (the command of an active fault, or the death of a rank's
  process), until the component that restarts the job knew that the attempt was over.
- *Steps lost* = steps that a rank ended in this attempt and that are in no lineage of the final parameters.
- *Time to resume* = from detection until the next attempt committed its first step.
- An attempt that ended *in order* did not fail: its ranks were warned, and left after a checkpoint of their last step.
- *Blast radius* = for each site, how long its ranks stood still: from the end of the last step of any of them to the
  beginning of the first step in the next attempt. Synchronous training stands still as a whole, whichever site a fault
  hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.core.analysis.goodput import JobEvidence
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.fields import integer, number, text
from testbed.core.records.event import Event
from testbed.core.records.rank_log import RankLog

__all__ = ["Attempt", "Standstill", "detections", "evaluate", "fenced"]


@dataclass(frozen=True)
class Standstill:
    """One site between two attempts; ``lost_ranks`` are those whose process died in the first."""

    site: str
    ranks: tuple[int, ...]
    lost_ranks: tuple[int, ...]
    stood_still_s: float | None


@dataclass(frozen=True)
class Attempt:
    """See the module. Values that do not apply to an attempt (it ended well, or was the last) are None.

    ``why`` is the symptom, as in ``rank 2 on west-0 gone: …``, ``cause`` the fault, as in ``cut north``; both are empty
    for an attempt that did not fail. ``in_order``: it did not fail; its ranks were warned of ``cause``, saved their
    state and left, so there was nothing to detect. ``goodput`` is of its committed steps and its time until its end was
    detected, 0..1.
    """

    number: int
    began_t: float
    resumed_from: int
    ended_t: float | None
    steps_committed: int
    steps_lost: int
    why: str = ""
    cause: str = ""
    detection_s: float | None = None
    time_to_resume_s: float | None = None
    goodput: float | None = None
    blast: tuple[Standstill, ...] = ()
    in_order: bool = False


def fenced(logs: Sequence[RankLog]) -> tuple[RankLog, ...]:
    """Return the logs without records that an attempt wrote after the next one had begun.

    Agents refuse to write then; a record that was already on its way belongs to no attempt.
    """
    began = _began(logs)

    def in_time(attempt: int, t: float) -> bool:
        return t <= min((other_began_t for other, other_began_t in began.items() if other > attempt), default=t)

    return tuple(
        replace(
            log,
            steps=tuple(record for record in log.steps if in_time(record.attempt, record.t_end)),
            ends=tuple(end for end in log.ends if in_time(end.attempt, end.t)),
            checkpoints=tuple(
                checkpoint for checkpoint in log.checkpoints if in_time(checkpoint.attempt, checkpoint.t)
            ),
            evaluations=tuple(
                evaluation for evaluation in log.evaluations if in_time(evaluation.attempt, evaluation.t)
            ),
        )
        for log in logs
    )


def evaluate(
    logs: Sequence[RankLog], events: Sequence[Event], windows: Sequence[FaultWindow], job: JobEvidence
) -> tuple[Attempt, ...]:
    """Return the attempts. ``logs`` are :func:`fenced`, ``job`` is their evidence. Empty if no rank recorded a job."""
    began = _began(logs)
    resumed_from = {job.attempt: job.resumed_from for log in logs for job in log.jobs}
    ends = _ends(events)
    attempts = []
    for index, this in enumerate(numbers := list(began)):
        next_ = numbers[index + 1] if index + 1 < len(numbers) else None
        end = ends.get(this)
        detected_t = None if end is None else _detected(end)
        if detected_t is None and next_ is not None:
            detected_t = began[next_]
        ended_t = job.ended_t if detected_t is None else detected_t
        in_order = end is not None and end.fields.get("in_order") is True
        known_t = detected_t if end is None or detected_t is None or in_order else max(end.t, detected_t)
        if end is not None and in_order:
            cause, cause_t = text(end.fields, "cause"), None
        else:
            cause, cause_t = "", None
            if detected_t is not None and known_t is not None:
                cause, cause_t = _cause(events, windows, began[this], detected_t, known_t)
        first = next((commit.t for commit in job.commits if commit.attempt == next_), None)
        committed = [commit for commit in job.commits if commit.attempt == this]
        ran = {record.step for log in logs for record in log.steps if record.attempt == this}
        attempts.append(
            Attempt(
                number=this,
                began_t=began[this],
                resumed_from=resumed_from[this],
                ended_t=ended_t,
                steps_committed=len(committed),
                steps_lost=len(ran) - len(committed),
                why=text(end.fields, "why") if end else "",
                cause=cause,
                detection_s=None if detected_t is None or cause_t is None else max(0.0, detected_t - cause_t),
                time_to_resume_s=None if detected_t is None or first is None else first - detected_t,
                goodput=_goodput(this, job, began[this], ended_t),
                blast=() if known_t is None else _blast(logs, events, this, next_, known_t),
                in_order=in_order,
            )
        )
    return tuple(attempts)


def _began(logs: Sequence[RankLog]) -> dict[int, float]:
    """Return when the first rank began each attempt, in order."""
    began_by_attempt: dict[int, float] = {}
    for log in logs:
        for job in log.jobs:
            began_by_attempt[job.attempt] = min(job.t, began_by_attempt.get(job.attempt, job.t))
    return dict(sorted(began_by_attempt.items()))


def _ends(events: Sequence[Event]) -> dict[int | None, Event]:
    return {integer(event.fields, "attempt"): event for event in events if event.event == "attempt-ended"}


def detections(events: Sequence[Event]) -> dict[int, float]:
    """Return when the end of each attempt was detected."""
    return {attempt: _detected(end) for attempt, end in _ends(events).items() if attempt is not None}


def _detected(end: Event) -> float:
    detected_t = number(end.fields, "detected_t")
    return end.t if detected_t is None else detected_t


def _cause(
    events: Sequence[Event], windows: Sequence[FaultWindow], began_t: float, detected_t: float, known_t: float
) -> tuple[str, float | None]:
    """Return the cause of an attempt's end and the time of its effect: the last fault that began before detection and
    did not end before the attempt began; without one, the death of a rank's process.

    ``known_t``: when the end was written down. Peers may notice a death, by their connections, before the fork server
    reports it; the end is written down a moment later, so that the report is there.
    """
    standing = [
        window
        for window in windows
        if window.began_t <= detected_t and (window.ended_t is None or max(window.ended_t, window.began_t) > began_t)
    ]
    if standing:
        last = max(standing, key=lambda window: window.began_t)
        return last.label, max(last.began_t, began_t)
    for rank, t in _deaths(events, began_t, known_t):
        return f"rank {rank} died", t
    return "", None


def _deaths(events: Sequence[Event], began_t: float, until_t: float) -> list[tuple[int, float]]:
    """Return (rank, t) of each process that died by itself in an attempt, in the order of time."""
    return [
        (rank, event.t)
        for event in events
        if event.event == "rank-died"
        and began_t <= event.t <= until_t
        and (rank := integer(event.fields, "rank")) is not None
    ]


def _goodput(attempt: int, job: JobEvidence, began_t: float, ended_t: float | None) -> float | None:
    good_s = sum(span.seconds.good_s for span in job.spans if span.attempt == attempt and not span.restart)
    return job.share_of(good_s, None if ended_t is None else ended_t - began_t)


def _blast(
    logs: Sequence[RankLog], events: Sequence[Event], this: int, next_: int | None, known_t: float
) -> tuple[Standstill, ...]:
    began_t = min((job.t for log in logs for job in log.jobs if job.attempt == this), default=known_t)
    dead = {rank for rank, _ in _deaths(events, began_t, known_t)}
    sites: dict[str, list[RankLog]] = {}
    for log in logs:
        sites.setdefault(log.site, []).append(log)
    return tuple(
        Standstill(
            site=site,
            ranks=tuple(log.rank for log in there),
            lost_ranks=tuple(log.rank for log in there if log.rank in dead),
            stood_still_s=_stood_still(there, this, next_),
        )
        for site, there in sites.items()
    )


def _stood_still(logs: Sequence[RankLog], this: int, next_: int | None) -> float | None:
    before = [record.t_end for log in logs for record in log.steps if record.attempt <= this]
    after = [record.t_begin for log in logs for record in log.steps if record.attempt == next_]
    return min(after) - max(before) if before and after else None
