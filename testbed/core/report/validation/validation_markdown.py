"""A validation as Markdown: the matrix and the tables of the page, for a pull request or a job's summary."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.report import formats, noise_section
from testbed.core.report.markdown import escape, section, table
from testbed.core.report.report_table import Table
from testbed.core.report.validation import validation_tables
from testbed.core.report.validation.validation_matrix import OUTCOMES, VERDICTS, Entry, headline, matrix
from testbed.core.report.validation.validation_tables import leads
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.result import LibraryResult, Validation

__all__ = ["markdown"]


def markdown(validation: Validation, comparison: BaselineComparison | None = None) -> str:
    """Return the whole of ``validate.md``."""
    verdict = VERDICTS[validation.verdict]
    blocks = [f"# {verdict.sign} {escape(headline(validation))}"]
    if not validation.certified:
        blocks.append("**Uncertified: the fibers were not measured to be within tolerance.**")
    elif validation.noisy:
        blocks.append(f"**Noisy host. {validation_tables.NOISY}**")
    if validation.interrupted:
        blocks.append("**Interrupted: what is missing was not run.**")
    if noisy := noise_section.sentence(validation.noise):
        blocks.append(f"**{escape(noisy)}**")
    rows = matrix(validation)
    if validation.libraries:
        head = ("", *(escape(each.name) for each in validation.libraries))
        blocks.append(table(Table(head, [(row.title, *(_entry(entry) for entry in row.entries)) for row in rows])))
    if comparison is not None:
        blocks += ["## Against the baseline", *_changes(comparison)]
    for each in validation.libraries:
        blocks += _library(each, leads(validation))
    blocks += section("## Fibers", shown=validation_tables.links_table(validation))
    blocks += ["## Versions and machine", table(Table(("fact", "value"), validation_tables.facts(validation)))]
    return "\n\n".join(blocks) + "\n"


def _entry(entry: Entry) -> str:
    said = str(entry.mark) if entry.anchor else formats.UNKNOWN
    return f"{said} ({entry.note})" if entry.note else said


def _changes(comparison: BaselineComparison) -> list[str]:
    count = len(comparison.regressions)
    blocks = [f"{formats.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."]
    rows = validation_tables.change_rows(comparison)
    blocks += section(shown=Table.of(validation_tables.CHANGES_HEAD, rows, ""))
    blocks += [f"Note: {escape(note)}." for note in comparison.notes]
    return blocks


def _library(library: LibraryResult, told: Mapping[str, str]) -> list[str]:
    title = f"{library.title} {library.version}".rstrip()
    blocks = [f"## {escape(title)}: {VERDICTS[library.verdict].word}"]
    if library.why:
        blocks.append("\n".join(f"- {escape(each)}" for each in library.why))
    blocks += section("### Correctness", shown=validation_tables.grid_table(library.cases, ""))
    bad = validation_tables.not_right_rows(library.cases)
    blocks += section(shown=Table.of(validation_tables.NOT_RIGHT_HEAD, bad, ""))
    blocks += section("### Speed", told["speed"], shown=validation_tables.speed_table(library.speeds))
    blocks += section("### On the fiber", told["wire"], shown=validation_tables.wire_table(library.speeds))
    if library.cells:
        cells = (
            (
                cell.fault,
                OUTCOMES[cell.outcome],
                *validation_tables.fault_facts(cell),
                cell.detail or formats.UNKNOWN,
            )
            for cell in library.cells
        )
        head = ("fault", "outcome", *validation_tables.FAULT_FACTS, "detail")
        blocks += ["### Under faults", told["faults"], table(Table(head, tuple(cells)))]
    return blocks
