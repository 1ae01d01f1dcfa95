"""A job's attempts in a report: what ended each, what it cost, and when the next one resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.core.analysis.attempt_history import Attempt, Standstill
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["AttemptLine", "lines", "measured", "sentence", "table"]

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
    began_s: float
    ended_s: float | None
    resumed_from: int
    steps_committed: int
    steps_lost: int
    why: str
    cause: str
    detection_s: float | None
    time_to_resume_s: float | None
    goodput: float | None
    blast: tuple[Standstill, ...]
    in_order: bool = False


def lines(attempts: Iterable[Attempt], origin: float) -> tuple[AttemptLine, ...]:
    return tuple(
        AttemptLine(
            number=it.number,
            began_s=it.began_t - origin,
            ended_s=None if it.ended_t is None else it.ended_t - origin,
            resumed_from=it.resumed_from,
            steps_committed=it.steps_committed,
            steps_lost=it.steps_lost,
            why=it.why,
            cause=it.cause,
            detection_s=it.detection_s,
            time_to_resume_s=it.time_to_resume_s,
            goodput=it.goodput,
            blast=it.blast,
            in_order=it.in_order,
        )
        for it in attempts
    )


def measured(attempts: Sequence[AttemptLine]) -> dict[str, float | None]:
    """Return the metrics for expectations, in SI units; all None for a job without attempts."""
    detections = [it.detection_s for it in attempts if it.detection_s is not None]
    resumes = [it.time_to_resume_s for it in attempts if it.time_to_resume_s is not None]
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
        _one(it, attempts[index + 1] if index + 1 < len(attempts) else None)
        for index, it in enumerate(attempts)
        if it.why or index + 1 < len(attempts)
    )


def _one(attempt: AttemptLine, following: AttemptLine | None) -> str:
    cause = f" after {attempt.cause}" if attempt.cause else ""
    known = "" if attempt.detection_s is None else f", detected {formats.duration(attempt.detection_s)} later"
    ended = "was stopped in order" if attempt.in_order else "ended"
    said = f"Attempt {attempt.number} {ended} at {formats.duration(attempt.ended_s)}{cause}{known}"
    lost = formats.plural(attempt.steps_lost, "step")
    if following is None:
        return f"{said}; none followed."
    where = f"from step {following.resumed_from}" if following.resumed_from else "from the beginning"
    if attempt.time_to_resume_s is None:
        return f"{said}; {lost} lost; the next one started {where} but committed no step."
    return f"{said}; {lost} lost; training resumed {where} after {formats.duration(attempt.time_to_resume_s)}."


def table(attempts: Sequence[AttemptLine]) -> Table | None:
    """The attempts; None if the job was never restarted."""
    if len(attempts) < 2:
        return None
    return Table.of(_HEAD, _rows(attempts), "Attempts", (0, 1, 2, 3, 5, 6, 7, 8))


def _rows(attempts: Iterable[AttemptLine]) -> Iterator[tuple[str, ...]]:
    for it in attempts:
        never = bool(it.why) and not it.in_order and it.time_to_resume_s is None
        yield (
            str(it.number),
            formats.duration(it.began_s),
            str(it.resumed_from),
            formats.duration(it.ended_s),
            "; ".join(part for part in (it.cause, it.why) if part) or formats.UNKNOWN,
            formats.duration(it.detection_s),
            str(it.steps_lost),
            "never" if never else formats.duration(it.time_to_resume_s),
            formats.share(it.goodput),
            "; ".join(_stall(site, never) for site in it.blast) or formats.UNKNOWN,
        )


def _stall(site: Standstill, never: bool) -> str:
    lost = f" (lost {formats.plural(len(site.lost_ranks), 'rank')})" if site.lost_ranks else ""
    stood = "to the end" if never and site.stood_still_s is None else formats.duration(site.stood_still_s)
    return f"{site.site} {stood}{lost}"
