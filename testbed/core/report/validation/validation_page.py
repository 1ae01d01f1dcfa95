"""The page of a validation: the verdict, the matrix, and behind each of its fields the detail."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.core.report import formats, parts
from testbed.core.report.markup import Markup, element
from testbed.core.report.validation import validation_tables
from testbed.core.report.validation.validation_figures import figures
from testbed.core.report.validation.validation_matrix import (
    LEGEND,
    OUTCOMES,
    STATES,
    VERDICTS,
    Entry,
    Mark,
    anchor,
    headline,
    matrix,
    too_fast,
)
from testbed.core.validation.baseline import Comparison
from testbed.core.validation.result import Cell, LibraryResult, Speed, Validation

__all__ = ["LEADS", "html"]

_SHOWN_CASES = 60
"""Of one library's cases that are not right; the rest is in validate.json."""

LEADS = {
    "speed": (
        "Time = last finish − common start. The bound is what physics leaves: one one-way delay, and the bytes that"
        " must cross at the certified rate; efficiency = bound ÷ median. Bandwidths as nccl-tests define them."
    ),
    "wire": (
        "Bytes of one operation on each fiber, by the emulator's counters. What must cross is what no algorithm can"
        " do without, toward the site that gets most."
    ),
    "faults": "Times count from the beginning of the fault, which began after a stated share of the bytes had crossed.",
    "links": "As certified before the validation.",
}


def html(validation: Validation, comparison: Comparison | None = None) -> str:
    """The whole file; ``comparison`` is what a baseline says of it."""
    plots = figures(validation)
    body = element(
        "body",
        _top(validation, comparison),
        element(
            "main",
            _matrix(validation),
            _changes(comparison),
            _side_by_side(validation),
            *(_library(each) for each in validation.libraries),
            _links(validation),
            element("section", element("h2", "Versions and machine"), parts.facts(validation_tables.facts(validation))),
        ),
        element(
            "footer", element("p", "Made from validate.json alone; the same facts are in validate.md and junit.xml.")
        ),
        *parts.scripts(plots),
        element("script", parts.asset("conformance.js")),
    )
    verdict = VERDICTS[validation.verdict].word
    return parts.page(f"Validation on {validation.topology}: {verdict}", body, ("page.css", "conformance.css"))


def _top(validation: Validation, comparison: Comparison | None) -> Markup:
    said = (
        f"testbed validate, suite {validation.suite}",
        validation.topology,
        formats.moment(validation.started_unix_s),
    )
    badge = {"holds": "pass", "does not hold": "fail"}.get(validation.verdict, "unknown")
    regressions = len(comparison.regressions) if comparison else 0
    return element(
        "header",
        element("p", " · ".join(each for each in said if each), class_="eyebrow"),
        _banner(validation),
        element("h1", headline(validation)),
        element("p", _mark(VERDICTS[validation.verdict], class_=f"badge {badge}"), class_="badges"),
        element(
            "p",
            f"✗ {formats.plural(regressions, 'regression')} against the baseline; see below.",
            class_="finding",
        )
        if regressions
        else None,
        element("ul", *(_answer(each) for each in validation.libraries), class_="answers"),
        class_="top",
    )


def _banner(validation: Validation) -> Markup | None:
    said = []
    if not validation.certified:
        said.append(
            "Uncertified: the fibers were not measured to be within tolerance. Trust no number of this page to tell"
            " what real fiber would do."
        )
    if validation.interrupted:
        said.append("Interrupted: it was ended before all was asked. What is missing was not run.")
    return element("p", " ".join(said), class_="banner", role="alert") if said else None


def _answer(library: LibraryResult) -> Markup:
    why = library.why[0] if library.why else "nothing speaks against it"
    more = len(library.why) - 1
    return element(
        "li",
        element("span", _mark(VERDICTS[library.verdict]), class_="answer"),
        element("a", library.name, href=f"#{anchor('library', library.name)}", class_="question"),
        element(
            "span",
            element("span", why, class_="clamped"),
            element("span", f"and {formats.plural(more, 'more reason')}", class_="more") if more > 0 else None,
            class_="text",
        ),
    )


def _mark(mark: Mark, class_: str = "") -> Markup:
    sign = element("span", mark.sign, class_="sign", aria_hidden="true") if mark.sign else None
    return element("span", sign, mark.word, class_=f"mark {mark.kind} {class_}".strip())


def _matrix(validation: Validation) -> Markup | None:
    if not validation.libraries:
        return None
    head = element(
        "tr",
        element("th", "", scope="col"),
        *(
            element("th", element("a", each.name, href=f"#{anchor('library', each.name)}"), scope="col")
            for each in validation.libraries
        ),
    )
    rows = (
        element("tr", element("th", row.title, scope="row"), *(_entry(entry) for entry in row.entries))
        for row in matrix(validation)
    )
    table = element("table", element("thead", head), element("tbody", *rows), class_="matrix", aria_label="Matrix")
    shown = {cell.outcome for library in validation.libraries for cell in library.cells}
    signs = {OUTCOMES[outcome].word for outcome in shown}
    legend = (
        element("div", element("dt", _mark(mark)), element("dd", said)) for mark, said in LEGEND if mark.word in signs
    )
    return element(
        "section",
        element("h2", "At a glance"),
        element("div", table, class_="scroll framed"),
        element("details", element("summary", "What the words mean"), element("dl", *legend, class_="legend"))
        if signs
        else None,
    )


def _entry(entry: Entry) -> Markup:
    note = element("span", entry.note, class_="note") if entry.note else None
    if not entry.anchor:
        return element("td", element("span", "not asked", class_="note"), class_="field absent")
    link = element("a", _mark(entry.mark), note, href=f"#{entry.anchor}", title=entry.detail or None)
    return element("td", link, class_=f"field {entry.mark.kind}")


def _changes(comparison: Comparison | None) -> Markup | None:
    if comparison is None:
        return None
    count = len(comparison.regressions)
    said = f"{formats.plural(count, 'regression')} beyond noise." if count else "No regression beyond noise."
    against = formats.moment(comparison.against_unix_s)
    rows = [(_mark(_CHANGES[row[0]]), *row[1:]) for row in validation_tables.change_rows(comparison)]
    worse, better = rows[:count], rows[count:]
    return element(
        "section",
        element("h2", "Against the baseline"),
        element("p", f"{said}{f' The baseline is of {against}.' if against else ''}", class_="lead"),
        parts.table(validation_tables.CHANGES_HEAD, worse, (), "Regressions") if worse else None,
        element(
            "details",
            element("summary", f"What became better: {formats.count(len(better))}"),
            parts.table(validation_tables.CHANGES_HEAD, better, (), "Improvements"),
        )
        if better
        else None,
        element("ul", *(element("li", note) for note in comparison.notes), class_="notes")
        if comparison.notes
        else None,
        id="baseline",
    )


_CHANGES = {"worse": Mark("bad", "✗", "worse"), "better": Mark("good", "✓", "better")}


def _side_by_side(validation: Validation) -> Markup | None:
    plots = figures(validation)
    if not plots:
        return None
    instead = "The plots need JavaScript; the tables below have the same numbers."
    return element(
        "section",
        element("h2", "Speed, side by side"),
        element("p", LEADS["speed"], class_="lead"),
        parts.plots(plots, instead),
    )


def _library(library: LibraryResult) -> Markup:
    took = formats.duration(library.took_s) if library.took_s else ""
    said = (library.name, library.version, f"took {took}" if took else "")
    place = anchor("library", library.name)
    return element(
        "section",
        element("h2", library.title, " ", _mark(VERDICTS[library.verdict])),
        element("p", " · ".join(each for each in said if each), class_="lead"),
        element("ul", *(element("li", each) for each in library.why), class_="why") if library.why else None,
        _correctness(library, f"{place}-correctness") if library.cases else None,
        *(_speed(library.speeds, f"{place}-speed") if library.speeds else ()),
        *(_faults(library, place) if library.cells else ()),
        id=place,
        class_="library",
    )


def _correctness(library: LibraryResult, place: str) -> Markup:
    grid = validation_tables.grid(library.cases)
    rows = [
        (
            operation,
            *(
                element("span", each.sign, " ", each.word, class_=f"mark {each.kind}") if each else formats.UNKNOWN
                for each in sums
            ),
        )
        for operation, sums in grid.rows
    ]
    bad = list(validation_tables.not_right_rows(library.cases))
    listed = [(_mark(STATES[case.state]), *row) for case, row in bad[:_SHOWN_CASES]]
    more = len(bad) - len(listed)
    return element(
        "div",
        element("h3", "Correctness"),
        parts.table(("operation", *grid.types), rows, (), f"Correctness of {library.title}"),
        parts.table(validation_tables.NOT_RIGHT_HEAD, listed, (3,), f"What was not right of {library.title}")
        if listed
        else None,
        element("p", f"And {formats.count(more)} more, in validate.json.", class_="lead") if more else None,
        id=place,
    )


def _speed(speeds: Iterable[Speed], place: str) -> Iterable[Markup]:
    listed = tuple(speeds)
    rows = []
    for speed in listed:
        row = validation_tables.speed_row(speed)
        rows.append((*row[:5], _bar(speed, row[5]), row[6]))
    yield element("h3", "Speed", id=place)
    yield parts.table(validation_tables.SPEED_HEAD, rows, (1, 2, 3, 4), "Speed")
    wire = list(validation_tables.wire_rows(listed))
    if wire:
        yield element("h3", "On the fiber")
        yield element("p", LEADS["wire"], class_="lead")
        yield parts.table(validation_tables.WIRE_HEAD, wire, (1, 3, 4), "On the fiber")


def _bar(speed: Speed, said: str) -> Markup:
    width = min(1.0, max(0.0, speed.efficiency)) if speed.efficiency == speed.efficiency else 0.0
    filled = element("span", class_="filled", style=f"width:{width * 100:.0f}%")
    kind = "bad" if too_fast(speed) else "plain"
    return element(
        "span", element("span", filled, class_="bar", aria_hidden="true"), said, class_=f"efficiency mark {kind}"
    )


def _faults(library: LibraryResult, place: str) -> Iterable[Markup]:
    yield element("h3", "Under faults")
    yield element("p", LEADS["faults"], class_="lead")
    for cell in library.cells:
        yield _fault(cell, anchor(place, cell.fault))


def _fault(cell: Cell, place: str) -> Markup:
    mark = OUTCOMES[cell.outcome]
    listed = zip(validation_tables.FAULT_FACTS, validation_tables.fault_facts(cell), strict=True)
    quotes = (element("li", f"{who}: ", element("code", text)) for who, text in validation_tables.error_rows(cell))
    return element(
        "details",
        element(
            "summary",
            element("span", cell.fault, class_="fault"),
            _mark(mark),
            element("span", validation_tables.summary(cell), class_="note"),
        ),
        parts.facts(listed),
        element("p", cell.detail) if cell.detail else None,
        element("p", "In its own words:", class_="lead") if cell.errors else None,
        element("ul", *quotes, class_="errors") if cell.errors else None,
        id=place,
        class_="cell",
        open="open" if mark.kind == "worst" else None,
    )


def _links(validation: Validation) -> Markup | None:
    rows = list(validation_tables.link_rows(validation))
    if not rows:
        return None
    said = LEADS["links"] if validation.certified else "Not certified: outside tolerance, or not measured."
    return element(
        "section",
        element("h2", "Fibers"),
        element("p", said, class_="lead"),
        parts.table(validation_tables.LINKS_HEAD, rows, (1, 2), "Fibers"),
    )
