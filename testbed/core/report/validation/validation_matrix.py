"""The summary table of a validation: a column for each library, a row for each thing that was tested.

Each entry is coded three times, by color, by a sign and by a word, so that a reader can do without any of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.report import formats
from testbed.core.report.blocks import Mark
from testbed.core.units import format_number
from testbed.core.validation.result import CaseState, Cell, LibraryResult, Outcome, Speed, Validation, Verdict
from testbed.core.validation.verdict import too_fast

__all__ = [
    "LEGEND",
    "OUTCOMES",
    "STATES",
    "VERDICTS",
    "MatrixEntry",
    "MatrixRow",
    "anchor",
    "headline",
    "matrix",
    "times",
    "too_fast",
]


@dataclass(frozen=True)
class MatrixEntry:
    """One field of the matrix: ``note`` is a second, smaller line, ``anchor`` links to the detail on the page."""

    mark: Mark
    note: str = ""
    anchor: str = ""
    detail: str = ""

    def __str__(self) -> str:
        text = str(self.mark) if self.anchor else formats.UNKNOWN
        return f"{text} ({self.note})" if self.note else text


@dataclass(frozen=True)
class MatrixRow:
    title: str
    entries: tuple[MatrixEntry, ...]


VERDICTS: Final[dict[Verdict, Mark]] = {
    "holds": Mark("good", "✓", "holds"),
    "does not hold": Mark("bad", "✗", "does not hold"),
    "unknown": Mark("unknown", "?", "unknown"),
    "skipped": Mark("absent", "–", "skipped"),
}

OUTCOMES: Final[dict[Outcome, Mark]] = {
    "right": Mark("good", "✓", "right"),
    "right after healing": Mark("good", "↻", "right after healing"),
    "error within its bound": Mark("fair", "!", "error within its bound"),
    "error late": Mark("bad", "✗", "error late"),
    "hang": Mark("bad", "∞", "hang"),
    "crash": Mark("bad", "✗", "crash"),
    "wrong result": Mark("worst", "≠", "WRONG RESULT"),
    "unsupported": Mark("absent", "–", "unsupported"),
    "fault not exercised": Mark("unknown", "?", "fault not exercised"),
    "not run": Mark("unknown", "·", "not run"),
}

STATES: Final[dict[CaseState, Mark]] = {
    "right": Mark("good", "✓", "right"),
    "wrong": Mark("worst", "≠", "WRONG"),
    "hang": Mark("bad", "∞", "hang"),
    "crash": Mark("bad", "✗", "crash"),
    "error": Mark("bad", "!", "error"),
    "not run": Mark("unknown", "·", "not run"),
    "unsupported": Mark("absent", "–", "unsupported"),
}
"""The worst state first, except ``right``."""

LEGEND: Final[tuple[tuple[Mark, str], ...]] = (
    (OUTCOMES["right"], "the result was correct despite the fault"),
    (OUTCOMES["right after healing"], "waited, and returned the correct result after the fiber was restored"),
    (OUTCOMES["error within its bound"], "every rank reported an error within the library's timeout"),
    (OUTCOMES["error late"], "reported an error, but later than the library's timeout"),
    (OUTCOMES["hang"], "neither returned nor failed, and had to be killed"),
    (OUTCOMES["crash"], "a process that the fault did not touch died"),
    (OUTCOMES["wrong result"], "wrong result without an error: the worst outcome"),
    (OUTCOMES["fault not exercised"], "finished before the fault began, so the fault was not tested"),
    (OUTCOMES["unsupported"], "the library does not support the operation"),
)

_PLURALS: Final[dict[CaseState, str]] = {"error": "errors", "hang": "hangs", "crash": "crashes"}

_ASIDE: Final = frozenset({"unsupported", "not run"})


def matrix(validation: Validation) -> tuple[MatrixRow, ...]:
    """Return the rows in the order of the tests: verdict, correctness, speed, each fault of any library."""
    libraries = validation.libraries
    faults = dict.fromkeys(cell.fault for library in libraries for cell in library.cells)
    rows = [
        MatrixRow("verdict", tuple(_verdict(library) for library in libraries)),
        MatrixRow("correctness", tuple(_correctness(library) for library in libraries)),
        MatrixRow("speed", tuple(_speed(library) for library in libraries)),
        *(MatrixRow(fault, tuple(_fault(library, fault) for library in libraries)) for fault in faults),
    ]
    return tuple(
        row for row in rows if row.title == "verdict" or any(entry.mark is not _NOTHING for entry in row.entries)
    )


def headline(validation: Validation) -> str:
    """Return the libraries by result, the worst first. Skipped libraries are named too: they must not seem to hold."""
    wrong = [library.name for library in validation.libraries if _wrong(library)]
    by_result: dict[str, list[str]] = {"wrong results without an error": wrong}
    for verdict in ("does not hold", "holds", "unknown", "skipped"):
        by_result[verdict] = [library.name for library in validation.libraries if library.verdict == verdict]
    by_result["does not hold"] = [name for name in by_result["does not hold"] if name not in wrong]
    results = [f"{result}: {formats.listed(names)}" for result, names in by_result.items() if names]
    if all(library.verdict == "skipped" for library in validation.libraries):
        return f"{'; '.join((f'Nothing was validated on {validation.topology}', *results))}."
    return f"On {validation.topology}: {'; '.join(results)}."


def times(cell: Cell) -> str:
    """Return what happened when, in a few words; empty if unknown."""
    when = ""
    if cell.outcome == "right after healing" and cell.done_s is not None and cell.healed_s is not None:
        when = f"{formats.duration(max(0.0, cell.done_s - cell.healed_s))} after healing"
    elif cell.outcome in ("right", "wrong result") and cell.done_s is not None:
        when = f"done after {formats.duration(cell.done_s)}"
    elif cell.outcome in ("error within its bound", "error late") and cell.error_s is not None:
        when = f"after {formats.duration(cell.error_s)}"
        when += f" of {formats.duration(cell.bound_s)}" if cell.bound_s is not None else ""
    elif cell.outcome == "hang" and cell.bound_s is not None:
        when = f"bound {formats.duration(cell.bound_s)}"
    if cell.rebuilt is not None:
        duration = f" in {formats.duration(cell.rebuild_s)}" if cell.rebuild_s is not None and cell.rebuilt else ""
        again = f"rebuilt{duration}" if cell.rebuilt else "not rebuilt"
        when = f"{when}; {again}" if when else again
    return when


def anchor(*parts: str) -> str:
    """Return the id of a place on the page: letters, digits and hyphens, for any name of a library or a fault."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)


_NOTHING: Final = Mark("absent", "", "")


def _verdict(library: LibraryResult) -> MatrixEntry:
    why = library.why[0] if library.why else ""
    version = f"version {library.version}" if library.version else ""
    return MatrixEntry(VERDICTS[library.verdict], version, anchor("library", library.name), why)


def _correctness(library: LibraryResult) -> MatrixEntry:
    counted = Counter(case.state for case in library.cases)
    asked = sum(number for state, number in counted.items() if state not in _ASIDE)
    place = anchor("library", library.name, "correctness")
    for state, mark in STATES.items():
        if state not in ("right", *_ASIDE) and counted[state]:
            first = next(case for case in library.cases if case.state == state)
            noun = mark.word if counted[state] == 1 else _PLURALS.get(state, mark.word)
            word = f"{formats.count(counted[state])} {noun}"
            return MatrixEntry(Mark(mark.kind, mark.sign, word), f"of {formats.count(asked)}", place, first.detail)
    if asked:
        note = f"{formats.count(counted['not run'])} not run" if counted["not run"] else ""
        return MatrixEntry(Mark("good", "✓", f"{formats.count(asked)} right"), note, place)
    if counted["not run"]:
        return MatrixEntry(STATES["not run"], "", place)
    return MatrixEntry(STATES["unsupported"], "", place) if counted else MatrixEntry(_NOTHING)


def _speed(library: LibraryResult) -> MatrixEntry:
    """Return how close the largest all_reduce (else another operation) came to its bound, and the cost of the smallest
    message."""
    if not library.speeds:
        return MatrixEntry(_NOTHING)
    place = anchor("library", library.name, "speed")
    beyond = [speed for speed in library.speeds if too_fast(speed)]
    if beyond:
        first = max(beyond, key=lambda speed: speed.efficiency)
        note = f"{first.operation}, {formats.size(first.size)}: {_ratio(first.efficiency)} × its bound"
        return MatrixEntry(Mark("bad", "✗", "faster than light"), note, place)
    chosen = _of_one_operation(library.speeds)
    largest, smallest = max(chosen, key=lambda speed: speed.size), min(chosen, key=lambda speed: speed.size)
    word = f"{largest.efficiency * 100:.0f} % of the bound" if math.isfinite(largest.efficiency) else formats.UNKNOWN
    note = f"{largest.operation}, {formats.size(largest.size)}"
    if smallest is not largest and math.isfinite(smallest.one_way_delays):
        note += f"; {formats.size(smallest.size)} in {_ratio(smallest.one_way_delays)} one-way delays"
    return MatrixEntry(Mark("plain", "", word), note, place)


def _of_one_operation(speeds: Sequence[Speed]) -> list[Speed]:
    wanted = "all_reduce" if any(speed.operation == "all_reduce" for speed in speeds) else speeds[0].operation
    return [speed for speed in speeds if speed.operation == wanted]


def _fault(library: LibraryResult, fault: str) -> MatrixEntry:
    cell = next((cell for cell in library.cells if cell.fault == fault), None)
    if cell is None:
        return MatrixEntry(_NOTHING)
    return MatrixEntry(OUTCOMES[cell.outcome], times(cell), anchor("library", library.name, fault), cell.detail)


def _wrong(library: LibraryResult) -> bool:
    return any(cell.outcome == "wrong result" for cell in library.cells) or any(
        case.state == "wrong" for case in library.cases
    )


def _ratio(value: float) -> str:
    return format_number(value, 3) if value < 1000 else formats.count(value)
