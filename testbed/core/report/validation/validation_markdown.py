"""A validation as Markdown: the matrix and the tables of the page, for a pull request or a job's summary."""

from __future__ import annotations

from testbed.core.report import formats
from testbed.core.report.markdown import escape, table
from testbed.core.report.validation import validation_tables
from testbed.core.report.validation.validation_matrix import OUTCOMES, STATES, VERDICTS, Entry, Mark, headline, matrix
from testbed.core.report.validation.validation_page import LEADS
from testbed.core.validation.baseline import Comparison
from testbed.core.validation.result import LibraryResult, Validation

__all__ = ["markdown"]


def markdown(validation: Validation, comparison: Comparison | None = None) -> str:
    """The whole of ``validate.md``."""
    verdict = VERDICTS[validation.verdict]
    blocks = [f"# {verdict.sign} {escape(headline(validation))}"]
    if not validation.certified:
        blocks.append("**Uncertified: the fibers were not measured to be within tolerance.**")
    if validation.interrupted:
        blocks.append("**Interrupted: what is missing was not run.**")
    rows = matrix(validation)
    if validation.libraries:
        head = ("", *(escape(each.name) for each in validation.libraries))
        blocks.append(table(head, [(row.title, *(_entry(entry) for entry in row.entries)) for row in rows]))
    if comparison is not None:
        blocks += ["## Against the baseline", *_changes(comparison)]
    for each in validation.libraries:
        blocks += _library(each)
    if validation.links:
        blocks += ["## Fibers", table(validation_tables.LINKS_HEAD, validation_tables.link_rows(validation))]
    blocks += ["## Versions and machine", table(("fact", "value"), validation_tables.facts(validation))]
    return "\n\n".join(blocks) + "\n"


def _said(mark: Mark) -> str:
    return f"{mark.sign} {mark.word}".strip()


def _entry(entry: Entry) -> str:
    said = _said(entry.mark) if entry.anchor else formats.UNKNOWN
    return f"{said} ({entry.note})" if entry.note else said


def _changes(comparison: Comparison) -> list[str]:
    count = len(comparison.regressions)
    blocks = [f"{formats.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."]
    rows = list(validation_tables.change_rows(comparison))
    if rows:
        blocks.append(table(validation_tables.CHANGES_HEAD, rows))
    blocks += [f"Note: {escape(note)}." for note in comparison.notes]
    return blocks


def _library(library: LibraryResult) -> list[str]:
    title = f"{library.title} {library.version}".rstrip()
    blocks = [f"## {escape(title)}: {VERDICTS[library.verdict].word}"]
    if library.why:
        blocks.append("\n".join(f"- {escape(each)}" for each in library.why))
    if library.cases:
        grid = validation_tables.grid(library.cases)
        sums = (
            (operation, *(f"{it.sign} {it.word}" if it else formats.UNKNOWN for it in row))
            for operation, row in grid.rows
        )
        blocks += ["### Correctness", table(("operation", *grid.types), sums)]
        bad = [(_said(STATES[case.state]), *row) for case, row in validation_tables.not_right_rows(library.cases)]
        blocks += [table(validation_tables.NOT_RIGHT_HEAD, bad)] if bad else []
    if library.speeds:
        rows = map(validation_tables.speed_row, library.speeds)
        blocks += ["### Speed", LEADS["speed"], table(validation_tables.SPEED_HEAD, rows)]
        wire = list(validation_tables.wire_rows(library.speeds))
        blocks += ["### On the fiber", LEADS["wire"], table(validation_tables.WIRE_HEAD, wire)] if wire else []
    if library.cells:
        cells = (
            (
                cell.fault,
                _said(OUTCOMES[cell.outcome]),
                *validation_tables.fault_facts(cell),
                cell.detail or formats.UNKNOWN,
            )
            for cell in library.cells
        )
        head = ("fault", "outcome", *validation_tables.FAULT_FACTS, "detail")
        blocks += ["### Under faults", LEADS["faults"], table(head, cells)]
    return blocks
