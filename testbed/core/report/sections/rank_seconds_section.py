"""Where a job's rank-seconds went: every one in exactly one class, over all and attempt by attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.core.analysis.disturbances import FaultCost
from testbed.core.analysis.rank_seconds import RankSeconds, Span
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = [
    "CLASSES",
    "COST_LEAD",
    "RankSecondsLine",
    "TimeShares",
    "cost_table",
    "lead",
    "measure",
    "sentence",
    "shown_classes",
    "table",
]

CLASSES = {
    "productive_s": "productive",
    "exposed_communication_s": "exposed communication",
    "checkpoint_s": "checkpoint",
    "lost_work_s": "lost work",
    "detection_and_restart_s": "detection and restart",
    "slowed_by_faults_s": "slowed by faults",
    "begin_and_end_s": "begin and end",
    "not_told_apart_s": "not told apart",
    "evaluation_s": "evaluation",
}
"""The name of each class, in the order of bars and tables."""
_IF_ANY = ("not_told_apart_s", "evaluation_s")

_LEAD = (
    "Every rank-second of the wall time is in one class. Goodput is the share of productive (compute of committed"
    " steps, at their fault-free pace) plus exposed communication (their communication that no compute hid, at the same"
    " pace). Checkpoint includes waiting for a peer's checkpoint. Lost work is steps that were done again or never"
    " finished by all ranks. Begin and end includes the time between steps."
)


COST_LEAD = (
    "Cost of faults: what the job took longer than without them, summed over ranks. A fault lasts until all that it may"
    " have affected has been exchanged and steps are back at their pace. Faults that overlap share a line."
)

_LEAD_OF_A_PROGRAM = (
    "The ranks of a launched program keep no records of what they do, so their time between their beginning and their"
    " end is not told apart."
)


def lead(program: bool) -> str:
    """Return what the classes of a job mean, or of a launched ``program``."""
    return _LEAD_OF_A_PROGRAM if program else _LEAD


@dataclass(frozen=True)
class RankSecondsLine:
    """One attempt until its end was detected, or the restart after it, in seconds since the job began."""

    attempt: int
    restart: bool
    began_s: float
    ended_s: float
    seconds: RankSeconds

    @property
    def label(self) -> str:
        return f"restart after {self.attempt}" if self.restart else f"attempt {self.attempt}"


@dataclass(frozen=True)
class TimeShares:
    """World size x wall time by class; ``spans`` are in order and together the wall time.

    ``fault_costs``: which faults and restarts cost how much of it, those that overlap together.
    """

    world_size: int
    wall_s: float
    total: RankSeconds
    spans: tuple[RankSecondsLine, ...]
    fault_costs: tuple[FaultCost, ...] = ()


def measure(
    world_size: int, spans: Sequence[Span], origin: float, fault_costs: tuple[FaultCost, ...] = ()
) -> TimeShares | None:
    """Return the classes; None if the wall time is unknown."""
    if not spans:
        return None
    return TimeShares(
        world_size=world_size,
        wall_s=spans[-1].ended_t - spans[0].began_t,
        total=sum((it.seconds for it in spans), RankSeconds()),
        spans=tuple(
            RankSecondsLine(it.attempt, it.restart, it.began_t - origin, it.ended_t - origin, it.seconds)
            for it in spans
        ),
        fault_costs=fault_costs,
    )


def shown_classes(shares: TimeShares) -> dict[str, str]:
    """Return the classes to show: all that a job has, and what could not be told apart only if there is some; of a
    program that records no steps, those that it has any of."""
    if not shares.total.good_s:
        by_class = shares.total.by_class()
        return {key: name for key, name in CLASSES.items() if by_class[key]} or CLASSES
    by_class = shares.total.by_class()
    return {key: name for key, name in CLASSES.items() if key not in _IF_ANY or by_class[key] > 0}


def table(shares: TimeShares | None) -> Table | None:
    """Rank-seconds over all, then shares over all and of each attempt and restart; None if nothing is known."""
    if shares is None:
        return None
    classes = shown_classes(shares)
    head = ("", "rank-seconds", *classes.values())
    return Table.of(head, _rows(shares, list(classes)), "Rank-seconds", range(1, len(head)))


def _rows(shares: TimeShares, classes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    total = shares.total.by_class()
    yield ("over all", formats.duration(shares.total.total_s), *(formats.duration(total[key]) for key in classes))
    yield _row("share of all", shares.total, classes)
    if len(shares.spans) > 1:
        for each in shares.spans:
            yield _row(each.label, each.seconds, classes)


def _row(label: str, seconds: RankSeconds, classes: Iterable[str]) -> tuple[str, ...]:
    total, by_class = seconds.total_s, seconds.by_class()
    shares = (formats.small_share(by_class[key] / total if total > 0 else None) for key in classes)
    return (label, formats.duration(total), *shares)


def cost_table(shares: TimeShares | None) -> Table | None:
    """Return the cost of each fault, the most expensive one first; None if no fault is known."""
    if shares is None:
        return None
    head = ("faults", "rank-seconds", "share of all", "slowed", "lost work", "detection and restart")
    rows = (
        (
            cost.label if cost.count == 1 else f"{cost.label}, {cost.count} times",
            formats.duration(cost.total_s),
            formats.small_share(cost.total_s / shares.total.total_s if shares.total.total_s > 0 else None),
            formats.duration(cost.slowed_by_faults_s),
            formats.duration(cost.lost_work_s),
            formats.duration(cost.detection_and_restart_s),
        )
        for cost in sorted(shares.fault_costs, key=lambda it: -it.total_s)
    )
    return Table.of(head, rows, "Cost of faults", range(1, len(head)))


def sentence(shares: TimeShares | None) -> str:
    """Return the classes that a job has any of: ``rank-seconds 41 s: productive 60.0 %, …``; empty if unknown."""
    if shares is None or shares.total.total_s <= 0:
        return ""
    by_class, total = shares.total.by_class(), shares.total.total_s
    parts = (f"{name} {formats.small_share(by_class[key] / total)}" for key, name in CLASSES.items() if by_class[key])
    return f"rank-seconds {formats.duration(total)}: {', '.join(parts)}"
