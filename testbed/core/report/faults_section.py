"""The faults of a run in its report: a line each, in sentences and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.core.analysis.recovery import BACK, FaultRecovery
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["Fault", "lines", "sentence", "summary", "table"]

_HEAD = (
    "#",
    "fault",
    "began",
    "lasted",
    "carrier lost after",
    "longest gap",
    "back after",
    "back after its end",
    "came through",
)


@dataclass(frozen=True)
class Fault:
    """One fault; ``ended_s`` is None if the record does not hold its end, so it was still active then."""

    fault: str
    type: str
    target: str
    links: tuple[str, ...]
    began_s: float
    ended_s: float | None
    carrier_s: float | None
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None
    gap_began_s: float | None = None
    """When the longest gap began, since the job began."""

    @property
    def label(self) -> str:
        return f"{self.type} {self.target}".strip() or self.fault

    @property
    def lasted(self) -> str:
        return "to the end" if self.ended_s is None else formats.duration(self.ended_s - self.began_s)


def lines(faults: Iterable[FaultRecovery], origin: float) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            fault=it.window.fault,
            type=it.window.type,
            target=it.window.target,
            links=it.window.links,
            began_s=it.window.began_t - origin,
            ended_s=None if it.window.ended_t is None else it.window.ended_t - origin,
            carrier_s=it.window.carrier_s,
            longest_gap_s=it.longest_gap_s,
            back_s=it.back_s,
            back_after_end_s=it.back_after_end_s,
            recovered=it.recovered,
            gap_began_s=None if it.gap_began_t is None else it.gap_began_t - origin,
        )
        for it in faults
    )


def table(faults: Iterable[Fault]) -> Table | None:
    """The faults; their numbers are those of the plots."""
    return Table.of(_HEAD, _rows(faults), "Faults", (0, *range(2, 8)), verdicts=8)


def _rows(faults: Iterable[Fault]) -> Iterator[tuple[str, ...]]:
    for number, fault in enumerate(faults, 1):
        yield (
            str(number),
            fault.label,
            formats.duration(fault.began_s),
            fault.lasted,
            formats.duration(fault.carrier_s),
            formats.duration(fault.longest_gap_s),
            formats.duration(fault.back_s),
            formats.duration(fault.back_after_end_s),
            "unknown" if fault.recovered is None else "yes" if fault.recovered else "no",
        )


def summary(faults: Sequence[Fault]) -> str:
    """Return how many faults there were, how many the job came through, and the cost of the worst."""
    told = [it for it in faults if it.recovered is not None]
    bad = [it for it in told if not it.recovered]
    if not told:
        return f"{formats.plural(len(faults), 'fault')}, all outside the training: there is no recovery to measure."
    through = f"{len(told) - len(bad)} of {formats.plural(len(faults), 'fault')}"
    said = f"It came through {through}"
    if len(told) < len(faults):
        said += f"; {len(faults) - len(told)} fell outside the training"
    worst = max((it for it in told if it.longest_gap_s is not None), key=lambda it: it.longest_gap_s or 0, default=None)
    if worst is not None:
        gap, at = formats.duration(worst.longest_gap_s), formats.duration(worst.began_s)
        said += f"; the longest gap between commits, {gap}, was at {worst.label} at {at}"
    return f"{said}."


def sentence(fault: Fault) -> str:
    """Return what happened, and how the job fared."""
    lasted = ", to the end of the record" if fault.ended_s is None else f" for {fault.lasted}"
    began = f"{fault.label} at {formats.duration(fault.began_s)}{lasted}"
    began = began[:1].upper() + began[1:]
    if fault.recovered is None:
        return f"{began}: it fell outside the training, so there is no recovery to measure."
    gap = f"longest gap between commits {formats.duration(fault.longest_gap_s)}{_where(fault)}"
    if not fault.recovered:
        return f"{began}: {gap}, and training had not recovered when the job ended."
    if fault.back_s == 0:
        after = (
            f"; steps were back to that {formats.duration(fault.back_after_end_s)} after its end"
            if fault.back_after_end_s
            else ""
        )
        return f"{began}: {gap}; no step near its beginning took more than {BACK:g} × the median{after}."
    return (
        f"{began}: {gap}; the first step back to {BACK:g} × the median ended"
        f" {formats.duration(fault.back_s)} after it began."
    )


def _where(fault: Fault) -> str:
    """Return when the longest gap was, as it may lie before or after the time to the first good step."""
    if fault.gap_began_s is None or fault.longest_gap_s is None:
        return ""
    from_s = fault.gap_began_s - fault.began_s
    to_s = from_s + fault.longest_gap_s
    if from_s < 0:
        return f" (from {formats.duration(-from_s)} before it began to {formats.duration(to_s)} after)"
    return f" (from {formats.duration(from_s)} to {formats.duration(to_s)} after it began)"
