"""A job's attempts in a report: what ended each, what it cost, and when the next one resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.core.analysis.attempt_history import Attempt, Standstill
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["AttemptLine", "lines", "measured", "section", "sentence", "table"]

_LEAD = "A failed job restarts from the newest checkpoint that every rank has, as soon as the lab allows."

_HEAD = (
    "attempt",
    "began",
    "from step",
    "ended",
    "why",
    "detected after",
    "steps lost",
    "resumed after",
    "goodput",
    "stalled",
)


@dataclass(frozen=True)
class AttemptLine:
    """An :class:`testbed.core.analysis.attempt_history.Attempt` in seconds since the job began."""

    number: int
    """From 1."""
    began_s: float
    ended_s: float | None
    """When it was known to be over."""
    resumed_from: int
    """The step whose checkpoint it went on from; 0: the beginning."""
    steps_committed: int
    steps_lost: int
    """In no lineage of the final parameters."""
    why: str
    """Observed failure; empty for an attempt that did not fail."""
    cause: str
    """What was done, or died."""
    detection_s: float | None
    time_to_resume_s: float | None
    """From detection to the next attempt's first committed step."""
    goodput: float | None
    """Of its committed steps and its time until its end was detected."""
    blast: tuple[Standstill, ...]
    in_order: bool = False
    """It was warned of its cause, and left after a checkpoint of its last step."""


def lines(attempts: Iterable[Attempt], origin: float) -> tuple[AttemptLine, ...]:
    return tuple(
        AttemptLine(
            number=attempt.number,
            began_s=attempt.began_t - origin,
            ended_s=None if attempt.ended_t is None else attempt.ended_t - origin,
            resumed_from=attempt.resumed_from,
            steps_committed=attempt.steps_committed,
            steps_lost=attempt.steps_lost,
            why=attempt.why,
            cause=attempt.cause,
            detection_s=attempt.detection_s,
            time_to_resume_s=attempt.time_to_resume_s,
            goodput=attempt.goodput,
            blast=attempt.blast,
            in_order=attempt.in_order,
        )
        for attempt in attempts
    )


def measured(attempts: Sequence[AttemptLine]) -> dict[str, float | None]:
    """Return the metrics for expectations, in SI units; all None for a job without attempts."""
    detections = [attempt.detection_s for attempt in attempts if attempt.detection_s is not None]
    resumes = [attempt.time_to_resume_s for attempt in attempts if attempt.time_to_resume_s is not None]
    count = float(len(attempts)) if attempts else None
    return {
        "attempts": count,
        "restarts": None if count is None else count - 1,
        "detection": max(detections, default=None),
        "time_to_resume": max(resumes, default=None),
    }


def sentence(attempts: Sequence[AttemptLine]) -> str:
    """Return, for each attempt that did not complete the job, what it cost."""
    return " ".join(
        _one(attempt, attempts[index + 1] if index + 1 < len(attempts) else None)
        for index, attempt in enumerate(attempts)
        if attempt.why or index + 1 < len(attempts)
    )


def _one(attempt: AttemptLine, following: AttemptLine | None) -> str:
    cause = f" after {attempt.cause}" if attempt.cause else ""
    detected = "" if attempt.detection_s is None else f", detected {formats.duration(attempt.detection_s)} later"
    ended = "was stopped in order" if attempt.in_order else "ended"
    end = f"Attempt {attempt.number} {ended} at {formats.duration(attempt.ended_s)}{cause}{detected}"
    lost = formats.plural(attempt.steps_lost, "step")
    if following is None:
        return f"{end}; none followed."
    where = f"from step {following.resumed_from}" if following.resumed_from else "from the beginning"
    if attempt.time_to_resume_s is None:
        return f"{end}; {lost} lost; the next one started {where} but committed no step."
    return f"{end}; {lost} lost; training resumed {where} after {formats.duration(attempt.time_to_resume_s)}."


def table(attempts: Sequence[AttemptLine]) -> Table | None:
    """The attempts; None if the job was never restarted."""
    if len(attempts) < 2:
        return None
    return Table.of(_HEAD, _rows(attempts), "Attempts", (0, 1, 2, 3, 5, 6, 7, 8))


def _rows(attempts: Iterable[AttemptLine]) -> Iterator[tuple[str, ...]]:
    for attempt in attempts:
        never = bool(attempt.why) and not attempt.in_order and attempt.time_to_resume_s is None
        yield (
            str(attempt.number),
            formats.duration(attempt.began_s),
            str(attempt.resumed_from),
            formats.duration(attempt.ended_s),
            "; ".join(part for part in (attempt.cause, attempt.why) if part) or formats.UNKNOWN,
            formats.duration(attempt.detection_s),
            str(attempt.steps_lost),
            "never" if never else formats.duration(attempt.time_to_resume_s),
            formats.share(attempt.goodput),
            "; ".join(_stall(site, never) for site in attempt.blast) or formats.UNKNOWN,
        )


def _stall(site: Standstill, never: bool) -> str:
    lost = f" (lost {formats.plural(len(site.lost_ranks), 'rank')})" if site.lost_ranks else ""
    stood = "to the end" if never and site.stood_still_s is None else formats.duration(site.stood_still_s)
    return f"{site.site} {stood}{lost}"


def section(report: Report) -> Section | None:
    return Section.of("Attempts", table(report.attempts), lead=_LEAD)
