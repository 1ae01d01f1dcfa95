"""The steady state in a report: each condition, its result, and when it was violated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from testbed.core.analysis.host_noise import UNWATCHED, StallLog
from testbed.core.analysis.steady_noise import within_noise
from testbed.core.experiment.steady import SteadyCheck
from testbed.core.fields import integer, text
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats
from testbed.core.report.report_table import Table
from testbed.core.units import format_number

__all__ = ["Steady", "Violated", "missing_faults", "sentence", "steady", "table"]

_STALLS = "stalls of the host may account for that"
_HEAD = ("when", "condition", "measured", "bound", "violated", "held")


@dataclass(frozen=True)
class Violated:
    """An interval in which a condition did not hold; ``measured`` is its worst value."""

    began_s: float
    ended_s: float
    measured: float | None


@dataclass(frozen=True)
class Steady:
    """A condition of the steady state; ``measured`` was compared with ``bound``."""

    when: str
    text: str
    holds: bool | None
    measured: float | None
    bound: float | None
    why: str
    violations: tuple[Violated, ...]


def steady(info: RunInfo, origin: float, noise: StallLog = UNWATCHED) -> tuple[Steady, ...]:
    """Return the conditions, with times counted from ``origin``, the start of the job.

    A condition is unknown if stalls of the host may have violated it.
    """
    return tuple(_steady(check, origin, noise) for check in info.hypothesis)


def _steady(check: SteadyCheck, origin: float, noise: StallLog) -> Steady:
    if check.holds is False and within_noise(check.text, check.bound, check.violations, noise):
        check = replace(check, holds=None, why=_STALLS)
    violations = tuple(Violated(it.began_t - origin, it.ended_t - origin, it.measured) for it in check.violations)
    return Steady(check.when, check.text, check.holds, check.measured, check.bound, check.why, violations)


def sentence(check: Steady) -> str:
    """Return the result in words."""
    condition = f"{check.when}: {check.text}"
    if check.violations:
        times = "; ".join(_words(each) for each in check.violations[:3])
        more = len(check.violations) - 3
        stalls = f"; {_STALLS}" if check.holds is None and check.why == _STALLS else ""
        return f"{condition} was violated {times}{f'; and {more} more times' if more > 0 else ''}{stalls}."
    if check.holds is not True:
        return f"{condition} {check.why or 'could not be determined'}."
    measured = "" if check.measured is None else f" Measured last: {format_number(check.measured, 4)}."
    return f"{condition}.{measured}"


def table(checks: Iterable[Steady]) -> Table | None:
    """The conditions, and when they were violated."""
    return Table.of(_HEAD, _rows(checks), "Steady state", (2, 3), verdicts=5)


def _rows(checks: Iterable[Steady]) -> Iterator[tuple[str, ...]]:
    for check in checks:
        yield (
            check.when,
            check.text,
            _number(check.measured),
            _number(check.bound),
            "; ".join(_words(each) for each in check.violations) or check.why,
            "unknown" if check.holds is None else "yes" if check.holds else "no",
        )


def missing_faults(info: RunInfo) -> str:
    """Return a sentence about planned faults that did not happen; empty if all did."""
    planned = sum(integer(it, "repeat") or 1 for it in info.schedule)
    missing = [it for it in info.schedule if (integer(it, "began") or 0) < (integer(it, "repeat") or 1)]
    if not missing:
        return ""
    names = ", ".join(dict.fromkeys(f"{text(it, 'inject')} {text(it, 'target')}" for it in missing))
    began = sum(integer(it, "began") or 0 for it in info.schedule)
    return f"{began} of {formats.plural(planned, 'fault')} happened; missing, or fewer than planned: {names}."


def _words(each: Violated) -> str:
    worst = "" if each.measured is None else f" (worst {format_number(each.measured, 4)})"
    return f"from {formats.duration(each.began_s)} to {formats.duration(each.ended_s)}{worst}"


def _number(value: float | None) -> str:
    return formats.UNKNOWN if value is None else format_number(value, 4)
