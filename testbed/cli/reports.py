"""Reports as a verb prints them: of a run, of two runs, of a comparison of strategies, of a validation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table
from rich.text import Text

from testbed.cli import tables
from testbed.cli.console import Note, Paragraph, Shown
from testbed.cli.verb import Result
from testbed.errors import TestbedError, UserError

if TYPE_CHECKING:
    from testbed.core.analysis.host_noise import NoiseSummary
    from testbed.core.report.comparison.comparison import Compared, SideBySide
    from testbed.core.report.comparison.ways_compared import WaysCompared
    from testbed.core.report.document import Report
    from testbed.core.report.report_table import Table as ReportTable
    from testbed.core.validation.baseline import Comparison
    from testbed.core.validation.result import Validation

Reported = TypeVar("Reported")

MOST_ROWS = 30
"""Rows of a table of two runs in the terminal; the page has all."""
LONGEST, MOST_LINES = 300, 6
"""Characters and lines of an input in the terminal."""
MOST_REASONS = 6
"""Reasons shown per library; the page has all of them."""
_MOST_COLUMNS = 4
"""Of a comparison's table in the terminal beside the name of the strategy; the page has one table."""
_HEADS = ("", "A", "B", "B - A", "B / A", "difference")
_ALONE = {"only in A": "A", "only in B": "B"}
_MARK_STYLES = {
    "good": tables.GOOD, "fair": tables.UNSURE, "bad": tables.BAD, "worst": f"reverse {tables.BAD}",
    "unknown": tables.UNSURE, "absent": "dim",
}  # fmt: skip
"""Styles by the kind of a mark in the matrix of libraries."""


def headline(verdict: str, sentence: str) -> Text:
    """Return the first line of a report."""
    return tables.verdict(verdict).append(f": {sentence}", style="bold default")


def noise(summary: NoiseSummary | None) -> list[Paragraph]:
    """Return a line on a noisy host; no line if the host is quiet."""
    from testbed.core.report import noise_section

    sentence = noise_section.sentence(summary)
    return [Paragraph(sentence, style=tables.UNSURE)] if sentence else []


@contextlib.contextmanager
def junit_file(file: Path | None, name: str, render: Callable[[Reported], str]) -> Iterator[list[Reported]]:
    """Write a JUnit file for CI from the result that the block appends to the list; from the error if there is none.

    Raises UserError and StorageError before the block is entered if the file could not be written.
    """
    from testbed.host.files import store

    if file is not None:
        if file.is_dir():
            raise UserError(f"--junit: {file} is a folder; name a file, e.g. {file / 'junit.xml'}")
        store.check_writable(file.absolute().parent)
    results: list[Reported] = []
    failed = "interrupted"
    try:
        yield results
    except TestbedError as error:
        failed = str(error)
        raise
    except Exception as error:
        failed = f"a bug in the testbed: {type(error).__name__}: {error}"
        raise
    finally:
        if file is not None:
            from testbed.core.report.junit import junit_of_error

            store.save_text(file, render(results[0]) if results else junit_of_error(name, failed))


# ---- a run


def of_report(report: Report, page: Path, status: int, *, predicted: bool = True) -> Result:
    """Return the report of a run; ``predicted``: with its prediction, and how its steps could be read."""
    from testbed.core.report.document import to_json

    return Result(
        data=lambda: to_json(report),
        lead=[headline(report.verdict, report.headline), *noise(report.noise)],
        tables=_details(report, predicted),
        tail=[f"report: {page}"],
        status=status,
    )


def _details(report: Report, predicted: bool) -> Iterator[Shown]:
    yield answers(report)
    sentences = [rank_seconds(report), declared(report)]
    if predicted:
        sentences += [prediction(report), offer(report)]
    yield from filter(None, sentences)


def answers(report: Report) -> Table:
    """Return the verdict of a run, one row per question."""
    rows: list[tables.Row] = [
        [
            answer.question,
            tables.verdict(answer.answer),
            "\n".join([answer.text, *(f"{number}. {line}" for number, line in enumerate(answer.lines, 1))]),
        ]
        for answer in report.answers
    ]
    table = tables.table(("", "", ""), rows)
    table.show_header = False
    return table


def rank_seconds(report: Report) -> str:
    """Return goodput and the classes of rank-seconds that it is made from in a line; empty if nothing is known."""
    from testbed.core.report import run_page
    from testbed.core.report.sections import rank_seconds_section

    sentence = rank_seconds_section.sentence(report.rank_seconds)
    return sentence if not sentence or report.goodput is None else f"goodput {run_page.goodput(report)}; {sentence}"


def offer(report: Report) -> str:
    """Return how the steps of a launched program could be read, if its output has any; empty otherwise."""
    from testbed.core.report.sections import program_section

    return program_section.summary(report.program) if report.program else ""


def declared(report: Report) -> str:
    """Return declared against measured compute of a run in a line; empty for real compute."""
    from testbed.core.report.sections import declared_section

    return declared_section.sentence(report.declared)


def prediction(report: Report) -> str:
    """Return prediction and residual of a run in a line, or why there is none; empty for a program."""
    from testbed.core.report.sections import prediction_section

    return prediction_section.sentence(report.prediction, report.unpredicted)


# ---- a comparison of strategies


def of_comparison(compared: WaysCompared, page: Path, status: int) -> Result:
    """Return the comparison of strategies."""
    from testbed.core.report.comparison import ways_tables
    from testbed.core.report.comparison.ways_compared import to_json

    def details() -> Iterator[Shown]:
        for wide in (ways_tables.summary(compared), ways_tables.budgets_table(compared)):
            yield from _narrow(wide)
        yield from map(Paragraph, compared.notes)

    return Result(
        data=lambda: to_json(compared),
        lead=[headline(compared.verdict, ways_tables.headline(compared))],
        tables=details(),
        tail=[f"report: {page}"],
        status=status,
    )


def _narrow(wide: ReportTable | None) -> Iterator[Table]:
    """Yield a table as tables of few columns."""
    if wide is None:
        return
    for first in range(1, len(wide.head), _MOST_COLUMNS):
        columns = [0, *range(first, min(first + _MOST_COLUMNS, len(wide.head)))]
        head = [wide.head[column] for column in columns]
        rows: list[tables.Row] = [[str(row[column]) for column in columns] for row in wide.rows]
        numbers = [wide.head[column] for column in columns if column in wide.numbers]
        yield tables.table(head, rows, right=numbers, title="" if first > 1 else wide.label)


# ---- two runs


def of_two(pair: SideBySide, page: Path) -> Result:
    """Return two runs side by side, as tables that fit in 80 columns; status 0, whatever their verdicts."""
    from testbed.core.report.comparison.comparison import to_json

    return Result(data=lambda: to_json(pair), lead=_head(pair), tables=_tables(pair), tail=[f"report: {page}"])


def _head(pair: SideBySide) -> Iterator[Shown]:
    from testbed.core.report.comparison import comparison_words

    yield Paragraph(comparison_words.inputs_lead(pair), style="bold")
    for letter, side in (("A", pair.a), ("B", pair.b)):
        line = Paragraph(f"{letter} {side.name}: ").append_text(tables.verdict(side.verdict))
        yield line.append(f": {side.headline}", style="default")
    for sentence in comparison_words.conditions(pair):
        yield Paragraph(sentence, style=tables.UNSURE)


def _tables(pair: SideBySide) -> Iterator[Shown]:
    from testbed.core.report.comparison import comparison_words
    from testbed.core.report.comparison.side import SECTIONS

    if pair.differing:
        inputs: list[tables.Row] = [[row.name, _short(row.a), _short(row.b)] for row in pair.differing[:MOST_ROWS]]
        yield tables.table(("input", "A", "B"), inputs, title=_title("Inputs that differ", len(pair.differing)))
    if pair.answers:
        answers: list[tables.Row] = [
            [row.question, *(tables.verdict(side.answer) if side else "not asked" for side in (row.a, row.b))]
            for row in pair.answers
        ]
        yield tables.table(("question", "A", "B"), answers)
    alone: dict[str, list[str]] = {}
    for key, section in pair.sections.items():
        judgements = {row.judgement for row in section} - {"in neither"}
        if len(judgements) == 1 and (letter := _ALONE.get(next(iter(judgements)))):
            alone.setdefault(letter, []).append(SECTIONS[key].partition(":")[0].lower())
        elif judgements:
            rows = [_row(row) for row in section[:MOST_ROWS]]
            yield tables.table(_HEADS, rows, right=_HEADS[1:5], title=_title(SECTIONS[key], len(section)))
    if pair.changes:
        changes: list[tables.Row] = [
            [f"{change.library}: {change.what}", change.before, change.after, change.kind]
            for change in pair.changes[:MOST_ROWS]
        ]
        yield tables.table(
            ("what", "A", "B", ""), changes, title=_title("Changes from A to B beyond noise", len(pair.changes))
        )
    for letter, names in alone.items():
        yield Paragraph(f"only {letter} has: {', '.join(names)} (on the page)", style="dim")
    yield Paragraph(comparison_words.NOISE, style="dim")


def _row(compared: Compared) -> tables.Row:
    from testbed.core.report.comparison import comparison_words

    judged = comparison_words.JUDGED[compared.judgement]
    return [
        compared.name,
        comparison_words.value(compared.a),
        comparison_words.value(compared.b),
        comparison_words.difference(compared),
        comparison_words.ratio(compared),
        Text(judged, style="bold" if compared.judgement == "beyond the noise" else "dim"),
    ]


def _short(text: str | None) -> str:
    if text is None:
        return "-"
    lines = text.splitlines()
    cut = "\n".join(lines[:MOST_LINES])[:LONGEST]
    return text if cut == text else f"{cut} …"


def _title(heading: str, rows: int) -> str:
    return heading if rows <= MOST_ROWS else f"{heading}: the first {MOST_ROWS} of {rows}"


# ---- a validation of libraries


def of_validation(
    validation: Validation, comparison: Comparison | None, page: Path, status: int, *, label: str
) -> Result:
    """Return the verdict; then the matrix, the reasons, and changes against the baseline."""
    from testbed.core.report.validation.validation_matrix import headline as sentence
    from testbed.core.validation.result_json import to_json

    return Result(
        data=lambda: to_json(validation),
        lead=[headline(validation.verdict, sentence(validation)), *noise(validation.noise)],
        tables=_validated(validation, comparison),
        tail=[f"{label}: {page}"],
        status=status,
    )


def _validated(validation: Validation, comparison: Comparison | None) -> Iterator[Shown]:
    yield _matrix(validation)
    if not validation.certified:
        yield "the lab was not certified (see certificate.json), so the result is inconclusive"
    elif validation.noisy:
        yield "noisy host: it delayed packets while the fibers were certified (see certificate.json)"
    for library in validation.libraries:
        yield from (f"{library.name}: {why}" for why in library.why[:MOST_REASONS])
        if len(library.why) > MOST_REASONS:
            yield f"{library.name}: and {len(library.why) - MOST_REASONS} more reasons"
    if comparison is not None:
        for change in comparison.changes:
            yield f"{change.kind}: {change.library}: {change.what}: {change.before} → {change.after}"
        yield from (Note(note, "") for note in comparison.notes)
        if not comparison.changes:
            yield "no change against the baseline beyond noise"


def _matrix(validation: Validation) -> Table:
    from testbed.core.report.validation.validation_matrix import matrix

    rows: list[tables.Row] = []
    for row in matrix(validation):
        marks = [
            Text(
                f"{entry.mark.sign} {entry.mark.word}".strip() or "-", style=_MARK_STYLES.get(entry.mark.kind, "")
            ).append(f"\n{entry.note}" if entry.note else "", style="dim")
            for entry in row.entries
        ]
        rows.append([row.title, *marks])
    return tables.table(("", *(library.name for library in validation.libraries)), rows)
