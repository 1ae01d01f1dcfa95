"""The HTML page of a validation: what its template, ``validation.html``, shows of verdict, matrix and detail."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.report import formats, html_page, noise_section
from testbed.core.report.report_table import Table
from testbed.core.report.validation import validation_tables
from testbed.core.report.validation.validation_figures import figures
from testbed.core.report.validation.validation_matrix import (
    LEGEND,
    OUTCOMES,
    VERDICTS,
    Mark,
    anchor,
    headline,
    matrix,
)
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.result import Cell, LibraryResult, Validation

__all__ = ["html"]

_CHANGES = {"worse": Mark("bad", "✗", "worse"), "better": Mark("good", "✓", "better")}

_SHOWN_CASES = 60
"""Cases shown of one library that are not right; the rest is in validate.json."""


@dataclass(frozen=True)
class _Fault:
    """A library under one fault; ``place`` is its id on the page."""

    place: str
    name: str
    outcome: Mark
    summary: str
    facts: tuple[tuple[str, str], ...]
    detail: str
    errors: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Library:
    """One library; ``place`` is its id on the page."""

    place: str
    name: str
    title: str
    verdict: Mark
    facts: str
    why: tuple[str, ...]
    more_reasons: str
    correctness: Table | None
    not_right: Table | None
    more_cases: str
    speed: Table | None
    wire: Table | None
    faults: tuple[_Fault, ...]


@dataclass(frozen=True)
class _Changes:
    """The comparison with the baseline."""

    lead: str
    worse: Table | None
    better: Table | None
    better_count: str
    notes: tuple[str, ...]


def html(validation: Validation, comparison: BaselineComparison | None = None) -> str:
    """Return the whole page; ``comparison`` is the one with the baseline."""
    verdict = VERDICTS[validation.verdict]
    eyebrow = (
        f"testbed validate, suite {validation.suite}",
        validation.topology,
        formats.moment(validation.started_unix_s),
    )
    regressions = len(comparison.regressions) if comparison else 0
    outcomes = {OUTCOMES[cell.outcome].word for library in validation.libraries for cell in library.cells}
    return html_page.render(
        "validation.html",
        figures(validation),
        title=f"Validation on {validation.topology}: {verdict.word}",
        eyebrow=" · ".join(each for each in eyebrow if each),
        validation=validation,
        headline=headline(validation),
        noisy=noise_section.sentence(validation.noise),
        verdict=verdict,
        badge={"holds": "pass", "does not hold": "fail"}.get(validation.verdict, "unknown"),
        regressions=formats.plural(regressions, "regression") if regressions else "",
        matrix=matrix(validation),
        legend=tuple((mark, meaning) for mark, meaning in LEGEND if mark.word in outcomes) if outcomes else (),
        changes=_changes(comparison) if comparison else None,
        leads=validation_tables.leads(validation),
        noise=validation_tables.NOISY if validation.certified and validation.noisy else "",
        libraries=tuple(_library(each) for each in validation.libraries),
        links=validation_tables.links_table(validation),
        host_facts=validation_tables.facts(validation),
    )


def _changes(comparison: BaselineComparison) -> _Changes:
    count = len(comparison.regressions)
    lead = f"{formats.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."
    against = formats.moment(comparison.against_unix_s)
    head = validation_tables.CHANGES_HEAD
    rows = tuple((_CHANGES[kind], *rest) for kind, *rest in validation_tables.change_rows(comparison))
    return _Changes(
        lead=f"{lead} The baseline is of {against}." if against else lead,
        worse=Table.of(head, rows[:count], "Regressions"),
        better=Table.of(head, rows[count:], "Improvements"),
        better_count=formats.count(len(rows) - count),
        notes=tuple(comparison.notes),
    )


def _library(library: LibraryResult) -> _Library:
    took = f"took {formats.duration(library.took_s)}" if library.took_s else ""
    place = anchor("library", library.name)
    more = len(library.why) - 1
    bad = tuple(validation_tables.not_right_rows(library.cases))
    return _Library(
        place=place,
        name=library.name,
        title=library.title,
        verdict=VERDICTS[library.verdict],
        facts=" · ".join(each for each in (library.name, library.version, took) if each),
        why=tuple(library.why),
        more_reasons=formats.plural(more, "more reason") if more > 0 else "",
        correctness=validation_tables.grid_table(library.cases, f"Correctness of {library.title}"),
        not_right=Table.of(
            validation_tables.NOT_RIGHT_HEAD, bad[:_SHOWN_CASES], f"Incorrect cases of {library.title}", (3,)
        ),
        more_cases=formats.count(len(bad) - _SHOWN_CASES) if len(bad) > _SHOWN_CASES else "",
        speed=validation_tables.speed_table(library.speeds),
        wire=validation_tables.wire_table(library.speeds),
        faults=tuple(_fault(cell, anchor(place, cell.fault)) for cell in library.cells),
    )


def _fault(cell: Cell, place: str) -> _Fault:
    return _Fault(
        place=place,
        name=cell.fault,
        outcome=OUTCOMES[cell.outcome],
        summary=validation_tables.summary(cell),
        facts=tuple(zip(validation_tables.FAULT_FACTS, validation_tables.fault_facts(cell), strict=True)),
        detail=cell.detail,
        errors=tuple(validation_tables.error_rows(cell)),
    )
