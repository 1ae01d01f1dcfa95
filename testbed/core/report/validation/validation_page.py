"""The page of a validation: verdict, matrix, and the detail behind the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from testbed.core.report import formats, html_page, noise_section
from testbed.core.report.blocks import (
    Badge,
    Banner,
    Block,
    Bullets,
    Details,
    Facts,
    Heading,
    Legend,
    Mark,
    Page,
    Picture,
    Plots,
    Section,
    Table,
    Text,
)
from testbed.core.report.validation import validation_tables
from testbed.core.report.validation.validation_figures import figures
from testbed.core.report.validation.validation_matrix import (
    LEGEND,
    OUTCOMES,
    VERDICTS,
    anchor,
    headline,
    matrix,
)
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.result import Cell, LibraryResult, Validation

__all__ = ["html", "page"]

_CHANGES = {"worse": Mark("bad", "✗", "worse"), "better": Mark("good", "✓", "better")}
_BADGES = {"holds": "pass", "does not hold": "fail"}
_SOURCE = "Built from validate.json alone; validate.md and junit.xml hold the same facts."
_INSTEAD = "The plots need JavaScript; the tables below have the same numbers."

_SHOWN_CASES = 60
"""Cases shown of one library that are not right; the rest is in validate.json."""


@dataclass(frozen=True)
class _LibraryVerdict:
    """A library in the page's header; ``anchor`` is the id of its section."""

    anchor: str
    name: str
    verdict: Mark
    why: str
    more_reasons: str


@dataclass(frozen=True)
class _FaultCell:
    """A library under one fault; ``anchor`` is its id on the page."""

    anchor: str
    name: str
    outcome: Mark
    summary: str
    facts: Facts
    detail: str
    errors: tuple[tuple[str, str], ...]


def html(validation: Validation, comparison: BaselineComparison | None = None) -> str:
    return html_page.render(page(validation, comparison))


def page(validation: Validation, comparison: BaselineComparison | None = None) -> Page:
    """Return the page; ``comparison`` is the one with the baseline."""
    verdict = VERDICTS[validation.verdict]
    started = formats.moment(validation.started_unix_s)
    eyebrow = (f"testbed validate, suite {validation.suite}", validation.topology, started)
    sections = (
        _at_a_glance(validation),
        _against_baseline(comparison) if comparison else None,
        _speed(validation),
        *(_library(library, validation) for library in validation.libraries),
        _fibers(validation),
        Section.of("Versions and machine", Facts(validation_tables.facts(validation))),
    )
    return Page(
        kind="validation",
        title=f"Validation on {validation.topology}: {verdict.word}",
        eyebrow=" · ".join(filter(None, eyebrow)),
        headline=headline(validation),
        banners=tuple(_banners(validation)),
        badge=Badge(_BADGES.get(validation.verdict, "unknown"), verdict.word, verdict.sign),
        header=tuple(_header(validation, comparison)),
        sections=tuple(section for section in sections if section is not None),
        source=_SOURCE,
        scripts=("unfold.js",),
    )


def _banners(validation: Validation) -> Iterator[Banner]:
    if not validation.certified:
        short = "Uncertified: the fibers were not measured to be within tolerance."
        yield Banner(f"{short} Do not take any number on this page as a prediction for real fiber.", "alert", short)
    if validation.interrupted:
        yield Banner("Interrupted: the validation ended early. What is missing was not run.", "alert")
    if noise := noise_section.sentence(validation.noise):
        yield Banner(noise)
    elif validation.certified and validation.noisy:
        yield Banner(f"Noisy host. {validation_tables.NOISY}")


def _header(validation: Validation, comparison: BaselineComparison | None) -> Iterator[Block]:
    if comparison and comparison.regressions:
        regressions = formats.plural(len(comparison.regressions), "regression")
        yield Text(f"✗ {regressions} against the baseline; see below.", "finding")
    libraries = []
    for library in validation.libraries:
        why = library.why[0] if library.why else "no failure was found"
        others = formats.plural(len(library.why) - 1, "more reason") if len(library.why) > 1 else ""
        verdict = VERDICTS[library.verdict]
        libraries.append(_LibraryVerdict(anchor("library", library.name), library.name, verdict, why, others))
    yield Picture("libraries.html", {"libraries": libraries})


def _at_a_glance(validation: Validation) -> Section | None:
    if not validation.libraries:
        return None
    rows = matrix(validation)
    head = ("", *(library.name for library in validation.libraries))
    table = Table(head, [(row.title, *row.entries) for row in rows], "Matrix")
    libraries = [(library.name, anchor("library", library.name)) for library in validation.libraries]
    outcomes = {OUTCOMES[cell.outcome].word for library in validation.libraries for cell in library.cells}
    legend = [(mark, meaning) for mark, meaning in LEGEND if mark.word in outcomes]
    return Section.of(
        "At a glance",
        Picture("matrix.html", {"libraries": libraries, "rows": rows}, table),
        Legend(legend, "Legend"),
    )


def _speed(validation: Validation) -> Section | None:
    plots = figures(validation)
    if not any(library.speeds for library in validation.libraries):
        return None
    lead = Text(validation_tables.leads(validation)["speed"])
    return Section.of("Speed, side by side", lead, Plots(lambda: plots, _INSTEAD), on_page=bool(plots))


def _against_baseline(comparison: BaselineComparison) -> Section:
    count = len(comparison.regressions)
    against = formats.moment(comparison.against_unix_s)
    lead = f"{formats.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."
    head = validation_tables.CHANGES_HEAD
    rows = tuple((_CHANGES[kind], *cells) for kind, *cells in validation_tables.change_rows(comparison))
    worse, better = Table.of(head, rows[:count], "Regressions"), Table.of(head, rows[count:], "Improvements")
    blocks = (
        Text(f"{lead} The baseline is of {against}." if against else lead),
        worse,
        Details(better, f"Improvements: {formats.count(len(rows) - count)}") if better else None,
        Bullets(comparison.notes) if comparison.notes else None,
    )
    return Section("Against the baseline", tuple(block for block in blocks if block is not None), anchor="baseline")


def _library(library: LibraryResult, validation: Validation) -> Section:
    place = anchor("library", library.name)
    return Section(
        library.title,
        tuple(block for block in _library_blocks(library, validation, place) if block is not None),
        mark=VERDICTS[library.verdict],
        anchor=place,
        css="library",
    )


def _library_blocks(library: LibraryResult, validation: Validation, place: str) -> Iterator[Block | None]:
    leads = validation_tables.leads(validation)
    duration = f"took {formats.duration(library.took_s)}" if library.took_s else ""
    yield Text(" · ".join(filter(None, (library.name, library.version, duration))))
    if library.why:
        yield Bullets(library.why, "why")
    if grid := validation_tables.grid_table(library.cases, f"Correctness of {library.title}"):
        yield Heading("Correctness", f"{place}-correctness")
        yield grid
        bad = tuple(validation_tables.not_right_rows(library.cases))
        label = f"Incorrect cases of {library.title}"
        yield Table.of(validation_tables.NOT_RIGHT_HEAD, bad[:_SHOWN_CASES], label, (3,))
        if len(bad) > _SHOWN_CASES:
            yield Text(f"And {formats.count(len(bad) - _SHOWN_CASES)} more, in validate.json.")
    if speed := validation_tables.speed_table(library.speeds):
        yield from (Heading("Speed", f"{place}-speed"), speed)
    if wire := validation_tables.wire_table(library.speeds):
        yield from (Heading("On the fiber"), Text(leads["wire"]), wire)
    if library.cells:
        yield from (Heading("Under faults"), Text(leads["faults"]))
        rows = [
            (cell.fault, OUTCOMES[cell.outcome], *facts, cell.detail or formats.UNKNOWN)
            for cell in library.cells
            for facts in [validation_tables.fault_facts(cell)]
        ]
        head = ("fault", "outcome", *validation_tables.FAULT_FACTS, "detail")
        cells = [_fault_cell(cell, anchor(place, cell.fault)) for cell in library.cells]
        yield Picture("fault_cells.html", {"faults": cells}, Table(head, rows, "Under faults"))


def _fault_cell(cell: Cell, place: str) -> _FaultCell:
    return _FaultCell(
        anchor=place,
        name=cell.fault,
        outcome=OUTCOMES[cell.outcome],
        summary=validation_tables.summary(cell),
        facts=Facts(tuple(zip(validation_tables.FAULT_FACTS, validation_tables.fault_facts(cell), strict=True))),
        detail=cell.detail,
        errors=tuple(validation_tables.error_rows(cell)),
    )


def _fibers(validation: Validation) -> Section | None:
    lead = validation_tables.leads(validation)["links"]
    uncertified = "Not certified: outside tolerance, or not measured."
    table = validation_tables.links_table(validation)
    return Section.of("Fibers", table, lead=lead if validation.certified else uncertified)
