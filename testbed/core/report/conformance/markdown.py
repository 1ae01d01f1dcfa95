"""A validation as Markdown: the matrix and the tables of the page, for a pull request or a job's summary."""

from __future__ import annotations

from testbed.core.conformance.baseline import Comparison
from testbed.core.conformance.result import LibraryResult, Validation
from testbed.core.report import words
from testbed.core.report.conformance import tables
from testbed.core.report.conformance.matrix import OUTCOMES, STATES, VERDICTS, Entry, Mark, headline, matrix
from testbed.core.report.conformance.page import LEADS
from testbed.core.report.markdown import escape, table

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
        blocks += ["## Fibers", table(tables.LINKS_HEAD, tables.link_rows(validation))]
    blocks += ["## Versions and machine", table(("fact", "value"), tables.facts(validation))]
    return "\n\n".join(blocks) + "\n"


def _said(mark: Mark) -> str:
    return f"{mark.sign} {mark.word}".strip()


def _entry(entry: Entry) -> str:
    said = _said(entry.mark) if entry.anchor else words.UNKNOWN
    return f"{said} ({entry.note})" if entry.note else said


def _changes(comparison: Comparison) -> list[str]:
    count = len(comparison.regressions)
    blocks = [f"{words.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."]
    rows = list(tables.change_rows(comparison))
    if rows:
        blocks.append(table(tables.CHANGES_HEAD, rows))
    blocks += [f"Note: {escape(note)}." for note in comparison.notes]
    return blocks


def _library(library: LibraryResult) -> list[str]:
    title = f"{library.title} {library.version}".rstrip()
    blocks = [f"## {escape(title)}: {VERDICTS[library.verdict].word}"]
    if library.why:
        blocks.append("\n".join(f"- {escape(each)}" for each in library.why))
    if library.cases:
        grid = tables.grid(library.cases)
        sums = (
            (operation, *(f"{it.sign} {it.word}" if it else words.UNKNOWN for it in row))
            for operation, row in grid.rows
        )
        blocks += ["### Correctness", table(("operation", *grid.types), sums)]
        bad = [(_said(STATES[case.state]), *row) for case, row in tables.not_right_rows(library.cases)]
        blocks += [table(tables.NOT_RIGHT_HEAD, bad)] if bad else []
    if library.speeds:
        rows = map(tables.speed_row, library.speeds)
        blocks += ["### Speed", LEADS["speed"], table(tables.SPEED_HEAD, rows)]
        wire = list(tables.wire_rows(library.speeds))
        blocks += ["### On the fiber", LEADS["wire"], table(tables.WIRE_HEAD, wire)] if wire else []
    if library.cells:
        cells = (
            (cell.fault, _said(OUTCOMES[cell.outcome]), *tables.fault_facts(cell), cell.detail or words.UNKNOWN)
            for cell in library.cells
        )
        head = ("fault", "outcome", *tables.FAULT_FACTS, "detail")
        blocks += ["### Under faults", LEADS["faults"], table(head, cells)]
    return blocks
