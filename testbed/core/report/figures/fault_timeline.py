"""The timeline of faults: one row for each kind of fault on a target, with a bar from its beginning to its end.

It stands above the plots over time and shares their axis. It is HTML with style rather than a plot, so that names of
any length wrap, and that it is there without JavaScript and on paper. Where a run has more rows than can be read,
faults of one type share a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.report import formats
from testbed.core.report.document import Report
from testbed.core.report.figures.fault_effects import Effect, effects
from testbed.core.report.figures.fault_marks import time_span
from testbed.core.report.sections.faults_section import Fault

__all__ = ["Bar", "Row", "Tick", "Timeline", "timeline"]

_MOST_ROWS = 16
_TICKS = 6


@dataclass(frozen=True)
class Bar:
    """One fault; ``hover`` says which, with its parameters, its times and how the job fared."""

    began_s: float
    ended_s: float
    open: bool
    hover: str


@dataclass(frozen=True)
class Row:
    numbers: str
    label: str
    when: str
    effect: Effect
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Tick:
    at_s: float
    text: str


@dataclass(frozen=True)
class Timeline:
    """``first_s`` to ``last_s`` is the range of the plots over time; ``effects`` are those that the legend explains."""

    first_s: float
    last_s: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]


def timeline(report: Report) -> Timeline | None:
    """Return the timeline of the run's faults; None if there were none."""
    if not report.faults:
        return None
    span = time_span(report)
    by = effects(report)
    numbered = list(enumerate(report.faults, 1))
    groups = _groups(numbered, by)
    rows = tuple(_row(label, effect, faults, span.last_s) for (label, effect), faults in groups.items())
    step = _nice(span.length_s / _TICKS)
    first, last = math.ceil(span.first_s / step), math.floor(span.last_s / step)
    ticks = tuple(Tick(index * step, f"{index * step:.6g}") for index in range(first, last + 1))
    used = tuple(effect for effect in Effect if any(row.effect is effect for row in rows))
    return Timeline(span.first_s, span.last_s, ticks, rows, used)


_Numbered = tuple[int, Fault]


def _groups(
    numbered: Sequence[_Numbered], by: Mapping[str, Effect]
) -> Mapping[tuple[str, Effect], Sequence[_Numbered]]:
    """Return what each row shows, by its label: repetitions of a fault share a row, and if need be faults of a type."""
    found: dict[tuple[str, Effect], list[_Numbered]] = {}
    for number, fault in numbered:
        found.setdefault((fault.label, by[fault.fault]), []).append((number, fault))
    if len(found) <= _MOST_ROWS:
        return found
    coarse: dict[tuple[str, Effect], list[_Numbered]] = {}
    for number, fault in numbered:
        coarse.setdefault((fault.type or "fault", by[fault.fault]), []).append((number, fault))
    return coarse


def _row(label: str, effect: Effect, faults: Sequence[_Numbered], last_s: float) -> Row:
    numbers = [number for number, _ in faults]
    shown = ", ".join(map(str, numbers)) if len(numbers) < 4 else f"{numbers[0]} … {numbers[-1]}"
    first = faults[0][1]
    when = f"at {formats.duration(first.began_s)}, {_lasted(first)}"
    if len(faults) > 1:
        when = f"{formats.plural(len(faults), 'time')}, from {formats.duration(first.began_s)}"
    return Row(shown, label, when, effect, tuple(_bar(number, fault, last_s) for number, fault in faults))


def _bar(number: int, fault: Fault, last_s: float) -> Bar:
    told = f"{number}. {fault.words}: from {formats.duration(fault.began_s)}, {_lasted(fault)}"
    if fault.longest_gap_s is not None:
        told += f"; longest gap between commits {fault.gap}"
    ended_s = last_s if fault.ended_s is None else fault.ended_s
    return Bar(fault.began_s, ended_s, fault.ended_s is None, told)


def _lasted(fault: Fault) -> str:
    return fault.lasted if fault.ended_s is None else f"for {fault.lasted}"


def _nice(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value * (1 - 1e-9))
