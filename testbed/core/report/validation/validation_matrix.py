"""The summary table of a validation: a column for each library, a row for each thing that was tested.

Each entry is coded three times, by color, by a sign and by a word, so that a reader can do without any of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from testbed.core.report import formats
from testbed.core.units import format_number
from testbed.core.validation.result import CaseState, Cell, LibraryResult, Outcome, Speed, Validation, Verdict
from testbed.core.validation.verdict import too_fast

__all__ = [
    "LEGEND",
    "OUTCOMES",
    "STATES",
    "VERDICTS",
    "Entry",
    "Mark",
    "Row",
    "anchor",
    "headline",
    "matrix",
    "times",
    "too_fast",
]

Kind = Literal["good", "fair", "bad", "worst", "unknown", "absent", "plain"]
"""Good; tolerable; bad; wrong without an error; unknown; absent; a number without a judgement."""


@dataclass(frozen=True)
class Mark:
    kind: Kind
    sign: str
    word: str

    def __str__(self) -> str:
        return f"{self.sign} {self.word}".strip()


@dataclass(frozen=True)
class Entry:
    """One field of the matrix: ``note`` is a second, smaller line, ``anchor`` links to the detail on the page."""

    mark: Mark
    note: str = ""
    anchor: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Row:
    title: str
    entries: tuple[Entry, ...]


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


def matrix(validation: Validation) -> tuple[Row, ...]:
    """Return the rows in the order of the tests: verdict, correctness, speed, each fault of any library."""
    libraries = validation.libraries
    faults = dict.fromkeys(cell.fault for library in libraries for cell in library.cells)
    rows = [
        Row("verdict", tuple(_verdict(each) for each in libraries)),
        Row("correctness", tuple(_correctness(each) for each in libraries)),
        Row("speed", tuple(_speed(each) for each in libraries)),
        *(Row(fault, tuple(_fault(each, fault) for each in libraries)) for fault in faults),
    ]
    return tuple(row for row in rows if row.title == "verdict" or any(it.mark is not _NOTHING for it in row.entries))


def headline(validation: Validation) -> str:
    """Return the verdict in a sentence, the worst first."""
    by: dict[Verdict, list[str]] = {}
    for each in validation.libraries:
        by.setdefault(each.verdict, []).append(each.name)
    wrong = [each.name for each in validation.libraries if _wrong(each)]
    if wrong:
        first = f"{_list(wrong)} {'gives' if len(wrong) == 1 else 'give'} wrong results without an error"
        others = [each for each in by.get("does not hold", []) if each not in wrong]
        said = [first, *([f"{_list(others)} {_do(others)} not hold"] if others else [])]
    elif by.get("does not hold"):
        said = [f"{_list(by['does not hold'])} {_do(by['does not hold'])} not hold"]
    else:
        said = []
    if by.get("holds"):
        said.append(f"{_list(by['holds'])} {'holds' if len(by['holds']) == 1 else 'hold'}")
    if by.get("unknown"):
        said.append(f"the verdict on {_list(by['unknown'])} is unknown")
    begin = f"On {validation.topology}, " if said else f"Nothing was validated on {validation.topology}; "
    if by.get("skipped"):  # skipped must not look as if it held
        said.append(f"{_list(by['skipped'])} {'was' if len(by['skipped']) == 1 else 'were'} skipped")
    return (begin + "; ".join(said)).removesuffix("; ") + "."


def times(cell: Cell) -> str:
    """Return what happened when, in a few words; empty if unknown."""
    said = ""
    if cell.outcome == "right after healing" and cell.done_s is not None and cell.healed_s is not None:
        said = f"{formats.duration(max(0.0, cell.done_s - cell.healed_s))} after healing"
    elif cell.outcome in ("right", "wrong result") and cell.done_s is not None:
        said = f"done after {formats.duration(cell.done_s)}"
    elif cell.outcome in ("error within its bound", "error late") and cell.error_s is not None:
        said = f"after {formats.duration(cell.error_s)}"
        said += f" of {formats.duration(cell.bound_s)}" if cell.bound_s is not None else ""
    elif cell.outcome == "hang" and cell.bound_s is not None:
        said = f"bound {formats.duration(cell.bound_s)}"
    if cell.rebuilt is not None:
        took = f" in {formats.duration(cell.rebuild_s)}" if cell.rebuild_s is not None and cell.rebuilt else ""
        again = f"rebuilt{took}" if cell.rebuilt else "not rebuilt"
        said = f"{said}; {again}" if said else again
    return said


def anchor(*parts: str) -> str:
    """Return the id of a place on the page: letters, digits and hyphens, for any name of a library or a fault."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)


_NOTHING: Final = Mark("absent", "", "")


def _verdict(library: LibraryResult) -> Entry:
    why = library.why[0] if library.why else ""
    version = f"version {library.version}" if library.version else ""
    return Entry(VERDICTS[library.verdict], version, anchor("library", library.name), why)


def _correctness(library: LibraryResult) -> Entry:
    counted = Counter(each.state for each in library.cases)
    asked = sum(number for state, number in counted.items() if state not in _ASIDE)
    place = anchor("library", library.name, "correctness")
    for state, mark in STATES.items():
        if state not in ("right", *_ASIDE) and counted[state]:
            first = next(each for each in library.cases if each.state == state)
            noun = mark.word if counted[state] == 1 else _PLURALS.get(state, mark.word)
            word = f"{formats.count(counted[state])} {noun}"
            return Entry(Mark(mark.kind, mark.sign, word), f"of {formats.count(asked)}", place, first.detail)
    if asked:
        note = f"{formats.count(counted['not run'])} not run" if counted["not run"] else ""
        return Entry(Mark("good", "✓", f"{formats.count(asked)} right"), note, place)
    if counted["not run"]:
        return Entry(STATES["not run"], "", place)
    return Entry(STATES["unsupported"], "", place) if counted else Entry(_NOTHING)


def _speed(library: LibraryResult) -> Entry:
    """Return how close the largest all_reduce (else another operation) came to its bound, and the cost of the smallest
    message."""
    if not library.speeds:
        return Entry(_NOTHING)
    place = anchor("library", library.name, "speed")
    beyond = [each for each in library.speeds if too_fast(each)]
    if beyond:
        first = max(beyond, key=lambda each: each.efficiency)
        note = f"{first.operation}, {formats.size(first.size)}: {_ratio(first.efficiency)} × its bound"
        return Entry(Mark("bad", "✗", "faster than light"), note, place)
    chosen = _of_one_operation(library.speeds)
    largest, smallest = max(chosen, key=lambda each: each.size), min(chosen, key=lambda each: each.size)
    word = f"{largest.efficiency * 100:.0f} % of the bound" if math.isfinite(largest.efficiency) else formats.UNKNOWN
    note = f"{largest.operation}, {formats.size(largest.size)}"
    if smallest is not largest and math.isfinite(smallest.one_way_delays):
        note += f"; {formats.size(smallest.size)} in {_ratio(smallest.one_way_delays)} one-way delays"
    return Entry(Mark("plain", "", word), note, place)


def _of_one_operation(speeds: Sequence[Speed]) -> list[Speed]:
    wanted = "all_reduce" if any(each.operation == "all_reduce" for each in speeds) else speeds[0].operation
    return [each for each in speeds if each.operation == wanted]


def _fault(library: LibraryResult, fault: str) -> Entry:
    cell = next((each for each in library.cells if each.fault == fault), None)
    if cell is None:
        return Entry(_NOTHING)
    return Entry(OUTCOMES[cell.outcome], times(cell), anchor("library", library.name, fault), cell.detail)


def _wrong(library: LibraryResult) -> bool:
    return any(each.outcome == "wrong result" for each in library.cells) or any(
        each.state == "wrong" for each in library.cases
    )


def _list(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _do(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _ratio(value: float) -> str:
    return format_number(value, 3) if value < 1000 else formats.count(value)
