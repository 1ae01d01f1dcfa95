"""The checkers in a report: was the training correct?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from testbed.core.checkers.checks import Checked
from testbed.core.checkers.finding import Checker
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["LEAD", "found_table", "right", "sentence", "table"]

_HEAD = ("checker", "what was checked", "found", "held")
_FOUND_HEAD = ("checker", "attempt", "step", "collective", "finding")
LEAD = (
    "Collectives are tagged with attempt, step and sequence, and checked after the run from the ranks' records."
    " Of several findings, the first is likely the cause of the others."
)

_NAMES: Final = {
    "sums": "sums are right",
    "hangs": "no collective hangs",
    "parameters": "parameters are equal where they must be",
    "updates": "no update is lost",
    "exchanges": "everything is exchanged once",
    "served": "the server takes and gives what it must",
}
_FOUND: Final = {
    "sums": ("wrong sum", "wrong sums"),
    "hangs": ("hang", "hangs"),
    "parameters": ("step on other parameters", "steps on other parameters"),
    "updates": ("lost update", "lost updates"),
    "exchanges": ("wrong exchange", "wrong exchanges"),
    "served": ("wrong exchange with the server", "wrong exchanges with the server"),
}


def right(checked: Checked) -> bool | None:
    """Return whether the training is correct. A hang makes it late, not wrong: only the experiment knows whether a hang
    was expected."""
    told = [each.holds for each in checked.checkers if each.id != "hangs"]
    return False if False in told else None if None in told or not told else True


def sentence(checked: Checked) -> str:
    """Return the findings in words, or why nothing could be determined. A hang makes training late, not incorrect: the
    table has it, not the sentence that says that training is correct."""
    verdict = right(checked)
    if verdict is False:
        said = "; ".join(f"{_count(each)}: {_where(each)}" for each in checked.checkers if each.found)
        return f"{said[:1].upper()}{said[1:]}."
    if verdict is None:
        untold = next((each.why for each in checked.checkers if each.holds is None), "too little was recorded")
        return f"Could not be determined: {untold}."
    sums = next((each.looked_at for each in checked.checkers if each.id == "sums"), "")
    hung = any(each.found for each in checked.checkers if each.id == "hangs")
    held = ["every sum is right", "no rank trained on other parameters", "no update was lost"]
    return f"{sums}: {', '.join(held + ([] if hung else ['no collective hung']))}."


def table(checkers: Iterable[Checker]) -> Table | None:
    """What each checker looked at, and what it found."""
    return Table.of(_HEAD, _rows(checkers), "Checkers", (2,), verdicts=3)


def _rows(checkers: Iterable[Checker]) -> Iterator[tuple[str, ...]]:
    for each in checkers:
        looked_at = each.looked_at + (f"; {each.why}" if each.why else "")
        found = formats.UNKNOWN if each.holds is None else formats.count(each.found)
        yield _NAMES[each.id], looked_at, found, "unknown" if each.holds is None else "yes" if each.holds else "no"


def found_table(checkers: Iterable[Checker]) -> Table | None:
    """Each finding with its place."""
    return Table.of(_FOUND_HEAD, _found_rows(checkers), "What the checkers found", (1, 2, 3))


def _found_rows(checkers: Iterable[Checker]) -> Iterator[tuple[str, ...]]:
    for each in checkers:
        for found in each.findings:
            collective = formats.UNKNOWN if found.sequence is None else str(found.sequence)
            yield each.id, str(found.attempt), str(found.step), collective, found.text


def _count(checker: Checker) -> str:
    one, several = _FOUND[checker.id]
    return f"1 {one}" if checker.found == 1 else f"{formats.count(checker.found)} {several}"


def _where(checker: Checker) -> str:
    if not checker.findings:
        return checker.why or formats.UNKNOWN
    first = checker.findings[0]
    attempt = f" of attempt {first.attempt}" if first.attempt > 1 else ""
    collective = "" if first.sequence is None else f", collective {first.sequence}"
    return f"{'first, ' if checker.found > 1 else ''}step {first.step}{attempt}{collective}, {first.text}"
