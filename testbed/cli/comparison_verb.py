"""Two runs side by side: ``testbed report A B``, as tables that fit in 80 columns, and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from testbed.cli import console, tables
from testbed.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.core.report.comparison.comparison import Compared, SideBySide

MOST_ROWS = 30
"""Rows of a table in the terminal; the page has all."""
LONGEST, MOST_LINES = 300, 6
"""Characters and lines of an input in the terminal."""
_HEADS = ("", "A", "B", "B - A", "B / A", "difference")
_ALONE = {"only in A": "A", "only in B": "B"}


def report_two(
    runs: Sequence[Path], out: Path | None, *, as_json: bool, open_page: Callable[[Path], None] | None
) -> int:
    """Compare two runs; return the exit status: 0, as the runs could be compared, whatever their verdicts."""
    from testbed.core.report.comparison.comparison import to_json
    from testbed.lab import api

    if len(runs) > 2:
        raise UserError(f"expected one run or two, got {len(runs)}")
    found, page = api.side_by_side(runs[0], runs[1], out)
    if as_json:
        console.show_json(to_json(found))
    else:
        for line in _head(found):
            console.show_paragraph(line)
        if not console.quiet():
            for each in _tables(found):
                console.show_paragraph(each) if isinstance(each, Text) else console.show(each)
        console.show(f"report: {page}")
    if open_page:
        open_page(page)
    return 0


def _head(found: SideBySide) -> Iterator[Text]:
    from testbed.core.report.comparison import comparison_words

    yield Text(comparison_words.inputs_lead(found), style="bold")
    for letter, side in (("A", found.a), ("B", found.b)):
        line = Text(f"{letter} {side.name}: ").append_text(tables.verdict(side.verdict))
        yield line.append(f": {side.headline}", style="default")
    for sentence in comparison_words.conditions(found):
        yield Text(sentence, style=tables.UNSURE)


def _tables(found: SideBySide) -> Iterator[Table | Text]:
    from testbed.core.report.comparison import comparison_words
    from testbed.core.report.comparison.side import SECTIONS

    if found.differing:
        inputs: list[tables.Row] = [[it.name, _short(it.a), _short(it.b)] for it in found.differing[:MOST_ROWS]]
        yield tables.table(("input", "A", "B"), inputs, title=_title("Inputs that differ", len(found.differing)))
    answers: list[tables.Row] = [
        [it.question, *(tables.verdict(each.answer) if each else "not asked" for each in (it.a, it.b))]
        for it in found.answers
    ]
    if answers:
        yield tables.table(("question", "A", "B"), answers)
    alone: dict[str, list[str]] = {}
    for key, rows in found.sections.items():
        whose = {it.judgement for it in rows} - {"in neither"}
        if len(whose) == 1 and (letter := _ALONE.get(next(iter(whose)))):
            alone.setdefault(letter, []).append(SECTIONS[key].partition(":")[0].lower())
        elif whose:
            shown = [_row(it) for it in rows[:MOST_ROWS]]
            yield tables.table(_HEADS, shown, right=_HEADS[1:5], title=_title(SECTIONS[key], len(rows)))
    if found.changes:
        changes: list[tables.Row] = [
            [f"{it.library}: {it.what}", it.before, it.after, it.kind] for it in found.changes[:MOST_ROWS]
        ]
        yield tables.table(
            ("what", "A", "B", ""), changes, title=_title("Changes from A to B beyond noise", len(found.changes))
        )
    for letter, names in alone.items():
        yield Text(f"only {letter} has: {', '.join(names)} (on the page)", style="dim")
    yield Text(comparison_words.NOISE, style="dim")


def _row(pair: Compared) -> tables.Row:
    from testbed.core.report.comparison import comparison_words

    judged = comparison_words.JUDGED[pair.judgement]
    return [
        pair.name,
        comparison_words.value(pair.a),
        comparison_words.value(pair.b),
        comparison_words.difference(pair),
        comparison_words.ratio(pair),
        Text(judged, style="bold" if pair.judgement == "beyond the noise" else "dim"),
    ]


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    lines = value.splitlines()
    cut = "\n".join(lines[:MOST_LINES])[:LONGEST]
    return value if cut == value else f"{cut} …"


def _title(heading: str, rows: int) -> str:
    return heading if rows <= MOST_ROWS else f"{heading}: the first {MOST_ROWS} of {rows}"
