"""The detail behind the matrix as tables for the page and for Markdown."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.physics import full_scale
from testbed.core.report import formats
from testbed.core.report.blocks import Kind, Mark, Table
from testbed.core.report.validation.validation_matrix import STATES, times, too_fast
from testbed.core.units import format_number
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.result import CaseResult, Cell, LibraryResult, Speed, Validation
from testbed.core.validation.traffic import toward_sites

__all__ = [
    "CHANGES_HEAD",
    "FAULT_FACTS",
    "NOISY",
    "NOT_RIGHT_HEAD",
    "Graded",
    "Grid",
    "change_rows",
    "error_rows",
    "facts",
    "fault_facts",
    "fibers",
    "grid",
    "grid_table",
    "leads",
    "links_table",
    "not_right_rows",
    "speed_table",
    "summary",
    "wire_rows",
    "wire_table",
]

Text = tuple[str, ...]

NOT_RIGHT_HEAD = ("", "operation", "type", "elements", "group", "detail")
_SPEED_HEAD = (
    "operation",
    "size",
    "median, 95 % interval",
    "one-way delays",
    "bound: route in use / all routes",
    "efficiency",
    "algorithm / bus bandwidth",
)
_WIRE_HEAD = ("operation", "size", "crossed, by direction", "required", "crossed ÷ required", "looks like")
_LINKS_HEAD = ("direction", "one way", "payload rate")
NOISY = "The host delayed packets while the fibers were certified, and may have delayed timed operations."
CHANGES_HEAD = ("", "library", "what", "baseline", "now")
FAULT_FACTS = ("began after", "result", "last error", "healed", "bound", "communicator afterwards")

_LEADS = {
    "speed": (
        "Time = last finish − common start. The bound is the physical minimum: one one-way delay, plus the required"
        " bytes at the certified rate; efficiency = bound ÷ median. Bandwidths as nccl-tests define them."
    ),
    "wire": (
        "Bytes of one operation on each fiber, by the emulator's counters. Required is the minimum of any algorithm,"
        " toward the site that receives most."
    ),
    "faults": "Times count from the start of the fault, which began after the stated share of the bytes had crossed.",
    "links": "As certified before the validation.",
}
"""What a reader must know of each kind of table."""


def leads(validation: Validation) -> Mapping[str, str]:
    """Return what a reader must know of each kind of table, with what the lab's rates stand for at full scale."""
    rates = (rate for link in validation.links.values() if (rate := link.get("rate")) and math.isfinite(rate))
    rates_text = full_scale.sentence(rates, validation.scale, _rate)
    return {
        key: f"{lead} {rates_text}" if rates_text and key in ("speed", "links") else lead
        for key, lead in _LEADS.items()
    }


_TYPES = ("int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Grid:
    """Operations × types, each with the worst kind among its cases and how many there are of it; None if not asked."""

    types: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Mark | None, ...]], ...]


@dataclass(frozen=True)
class Graded:
    """A colored cell, which the page shows with a bar of ``percent`` of its width, if that is given."""

    kind: Kind
    text: str
    percent: int | None = None

    def __str__(self) -> str:
        return self.text


def grid(cases: Sequence[CaseResult]) -> Grid:
    """Return the operations in the order of the tests, with a row for each reduction."""
    by: dict[tuple[str, str], list[CaseResult]] = {}
    for case in cases:
        by.setdefault((_operation(case), case.type), []).append(case)
    named = {case.type for case in cases}
    types = tuple(type_name for type_name in _TYPES if type_name in named) + tuple(sorted(named - set(_TYPES)))
    operations = dict.fromkeys(_operation(case) for case in cases)
    return Grid(
        types,
        tuple((operation, tuple(_sum(by.get((operation, type_), ())) for type_ in types)) for operation in operations),
    )


def _operation(case: CaseResult) -> str:
    return f"{case.operation} {case.reduction}".strip()


def grid_table(cases: Sequence[CaseResult], label: str) -> Table | None:
    """The grid as a table; None without cases."""
    counted = grid(cases)
    rows = (
        (operation, *(Graded(mark.kind, str(mark)) if mark else formats.UNKNOWN for mark in marks))
        for operation, marks in counted.rows
    )
    return Table.of(("operation", *counted.types), rows, label)


def _sum(cases: Iterable[CaseResult]) -> Mark | None:
    counted = Counter(case.state for case in cases)
    if not counted:
        return None
    asked = sum(number for state, number in counted.items() if state != "unsupported")
    for state, mark in STATES.items():
        if state not in ("right", "unsupported") and counted[state]:
            return Mark(mark.kind, mark.sign, f"{counted[state]} of {asked} {mark.word}")
    if counted["right"]:
        return Mark("good", STATES["right"].sign, str(counted["right"]))
    return STATES["unsupported"]


def not_right_rows(cases: Iterable[CaseResult]) -> Iterator[Sequence[object]]:
    """Yield every case that is not right, the worst first, as :data:`NOT_RIGHT_HEAD`."""
    order = list(STATES)
    bad = [case for case in cases if case.state not in ("right", "unsupported", "not run")]
    for case in sorted(bad, key=lambda case: order.index(case.state)):
        detail = case.detail or formats.UNKNOWN
        yield STATES[case.state], _operation(case), case.type, formats.count(case.count), case.group, detail


def speed_table(speeds: Iterable[Speed]) -> Table | None:
    """Time, bound and bandwidth of each operation and size; None if nothing was timed."""
    return Table.of(_SPEED_HEAD, (_speed_row(speed) for speed in speeds), "Speed", (1, 2, 3, 4))


def _speed_row(speed: Speed) -> Sequence[object]:
    low, high = formats.duration(speed.low_s), formats.duration(speed.high_s)
    return (
        speed.operation,
        formats.size(speed.size),
        f"{formats.duration(speed.median_s)} ({low} – {high}){_by_stalls(speed)}",
        _digits(speed.one_way_delays),
        f"{formats.duration(speed.bound_s)} / {formats.duration(speed.bound_all_s)}",
        _efficiency(speed),
        f"{_rate(speed.algorithm_rate)} / {_rate(speed.bus_rate)}" if speed.size else formats.UNKNOWN,
    )


def _by_stalls(speed: Speed) -> str:
    return f" ± {formats.duration(speed.uncertainty_s)} by stalls" if speed.uncertainty_s > 0 else ""


def _efficiency(speed: Speed) -> Graded:
    share = 0.0 if math.isnan(speed.efficiency) else min(1.0, max(0.0, speed.efficiency))
    beyond = too_fast(speed)
    text = f"{_percent(speed.efficiency)}{': faster than light' if beyond else ''}"
    return Graded("bad" if beyond else "plain", text, round(share * 100))


def wire_table(speeds: Iterable[Speed]) -> Table | None:
    """The bytes that crossed; None if none were counted."""
    return Table.of(_WIRE_HEAD, wire_rows(speeds), "On the fiber", (1, 3, 4))


def wire_rows(speeds: Iterable[Speed]) -> Iterator[Text]:
    """Yield a row for each operation whose bytes were counted."""
    for speed in speeds:
        if not speed.crossing:
            continue
        by_direction = ", ".join(f"{name} {formats.size(count)}" for name, count in speed.crossing.items())
        most = _most(speed.crossing)
        ratio = _digits(most / speed.least) if speed.least else formats.UNKNOWN
        least = formats.size(speed.least) if speed.least else "nothing"
        yield (
            speed.operation,
            formats.size(speed.size),
            by_direction,
            least,
            ratio,
            speed.pattern or formats.UNKNOWN,
        )


def _most(crossing: Mapping[str, int]) -> int:
    """Return the bytes toward the site that received most, over all links; a direction is ``link:site``."""
    return max(toward_sites(crossing).values(), default=0)


def fault_facts(cell: Cell) -> Text:
    """As :data:`FAULT_FACTS`."""
    again = {None: "not tried", True: "rebuilt", False: "could not be rebuilt"}[cell.rebuilt]
    if cell.rebuild_s is not None:
        again += f", {formats.duration(cell.rebuild_s)}"
    return (
        formats.UNKNOWN if cell.share is None else f"{cell.share * 100:.0f} % of the bytes",
        formats.duration(cell.done_s),
        formats.duration(cell.error_s),
        formats.duration(cell.healed_s),
        formats.duration(cell.bound_s),
        again,
    )


def error_rows(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield (ranks, error message); ranks with the same message share a row."""
    by: dict[str, list[str]] = {}
    for error in cell.errors:
        rank = re.match(r"rank (\d+): ", error)
        by.setdefault(error[rank.end() :] if rank else error, []).append(rank[1] if rank else "")
    for text, ranks in by.items():
        numbers = [rank for rank in ranks if rank]
        named = f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(numbers)}"
        yield named if numbers else formats.plural(len(ranks), "rank"), text


def links_table(validation: Validation) -> Table | None:
    """Delay and rate of each direction; None if no fiber was measured."""
    rows = (
        (direction, formats.duration(values.get("delay_s")), _at_scale(values.get("rate"), validation.scale))
        for direction, values in validation.links.items()
    )
    return Table.of(_LINKS_HEAD, rows, "Fibers", (1, 2))


def change_rows(comparison: BaselineComparison) -> Iterator[Text]:
    """Yield the regressions, then the improvements, as :data:`CHANGES_HEAD`."""
    for change in comparison.changes:
        yield change.kind, change.library, change.what, change.before, change.after


def fibers(validation: Validation) -> str:
    """Return the verdict of the lab's certificate, as far as the result contains it."""
    if not validation.certified:
        return "NOT certified"
    return "certified, noisy host" if validation.noisy else "certified"


def facts(validation: Validation) -> tuple[tuple[str, str], ...]:
    """Return names and values of the software and the machine."""
    listed = [
        ("suite", validation.suite),
        ("topology", validation.topology),
        ("driver", validation.driver),
        ("emulator", validation.emulator),
        ("fibers", fibers(validation)),
        ("machine", validation.machine),
        ("took", formats.duration(validation.took_s)),
        *((f"version of {name}", version) for name, version in validation.versions.items()),
        *((library.title, _of_library(library)) for library in validation.libraries),
    ]
    return tuple((name, value) for name, value in listed if value)


def _of_library(library: LibraryResult) -> str:
    if library.verdict == "skipped":
        return "skipped"
    return ", ".join(part for part in (library.version, formats.duration(library.took_s)) if part)


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return formats.UNKNOWN
    return format_number(value, 3) if abs(value) < 1000 else formats.count(value)


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return formats.UNKNOWN
    return f"{value * 100:.{0 if value >= 0.095 else 1}f} %"


def _rate(byte_per_s: float | None) -> str:
    if byte_per_s is None or not math.isfinite(byte_per_s):
        return formats.UNKNOWN
    return f"{formats.size(byte_per_s)}/s"


def _at_scale(byte_per_s: float | None, scale: float) -> str:
    """Return a rate and what it stands for at full scale."""
    if not byte_per_s or not math.isfinite(byte_per_s) or scale == 1:
        return _rate(byte_per_s)
    return f"{_rate(byte_per_s)} for {_rate(full_scale.full_rate_bps(byte_per_s, scale))}"


def summary(cell: Cell) -> str:
    """Return a fault's outcome on one line: what happened, and when."""
    return "; ".join(part for part in (times(cell), cell.detail) if part)
