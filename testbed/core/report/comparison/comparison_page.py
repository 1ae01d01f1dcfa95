"""The page of two runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.core.report import formats, html_page
from testbed.core.report.answers import Answer
from testbed.core.report.blocks import Block, Bullets, Details, Facts, Noted, Page, Picture, Section, Table, Text
from testbed.core.report.comparison import comparison_figures, comparison_words
from testbed.core.report.comparison.comparison import Compared, InputPair, SideBySide
from testbed.core.report.comparison.side import SECTIONS, Quantity, Side

__all__ = ["html", "page"]

_SOURCE = "Built from the two run directories alone, which it does not change; comparison.json holds the same facts."


@dataclass(frozen=True)
class _Card:
    """The head of a side."""

    letter: str
    name: str
    folder: str
    kind: str
    badge: str
    verdict: str
    headline: str
    began: str


def html(compared: SideBySide) -> str:
    return html_page.render(page(compared))


def page(compared: SideBySide) -> Page:
    title = f"{compared.a.name} beside {compared.b.name}"
    quantities = tuple(_quantities(compared))
    sections = (
        _inputs(compared),
        _answers(compared),
        *quantities[:1],
        _over_time(compared),
        *quantities[1:],
        _changes(compared),
    )
    return Page(
        kind="comparison",
        title=title,
        eyebrow="testbed report, two runs",
        headline=title,
        header=tuple(_header(compared)),
        sections=tuple(section for section in sections if section is not None),
        source=_SOURCE,
    )


def _header(compared: SideBySide) -> Iterator[Block]:
    yield Text(comparison_words.inputs_lead(compared), "first")
    yield Text(comparison_words.verdict_lead(compared), "first")
    cards = (_card("A", compared.a), _card("B", compared.b))
    rows = [(card.letter, card.name, card.verdict, card.headline) for card in cards]
    yield Picture("sides.html", {"cards": cards}, Table(("", "run", "verdict", "result"), rows))
    if conditions := tuple(comparison_words.conditions(compared)):
        yield Bullets(conditions)


def _card(letter: str, side: Side) -> _Card:
    return _Card(
        letter=letter,
        name=side.name,
        folder=side.folder,
        kind=side.kind,
        badge=side.verdict,
        verdict=comparison_words.VERDICTS[side.verdict],
        headline=side.headline,
        began=formats.moment(side.started_unix_s),
    )


def _inputs(compared: SideBySide) -> Section | None:
    groups = Counter(same.group for same in compared.same)
    counts = ", ".join(f"{count} of {group}" for group, count in groups.items())
    differing = _input_table(compared.differing, "Inputs that differ")
    return Section.of(
        "What differs in the inputs",
        differing or Text("Nothing that both run directories tell.", ""),
        Details(
            _input_table(compared.one_sided, "Inputs that one run tells"),
            f"Told by one run only: {len(compared.one_sided)}",
        ),
        Details(
            Facts([(same.name, same.value) for same in compared.same]) if compared.same else None,
            f"The same in both: {counts}",
        ),
    )


def _input_table(pairs: tuple[InputPair, ...], label: str) -> Table | None:
    rows = (
        (Noted(pair.name, pair.group), *(formats.UNKNOWN if value is None else value for value in (pair.a, pair.b)))
        for pair in pairs
    )
    return Table.of(("input", "A", "B"), rows, label, css="pairs")


def _answers(compared: SideBySide) -> Section | None:
    rows = ((pair.question, _answer(pair.a), _answer(pair.b)) for pair in compared.answers)
    return Section.of("Answers", Table.of(("question", "A", "B"), rows, "Answers", css="pairs answered"))


def _answer(answer: Answer | None) -> object:
    return "not asked" if answer is None else Noted(answer.answer, answer.text, verdict=True)


def _quantities(compared: SideBySide) -> Iterator[Section]:
    lead = comparison_words.NOISE
    for key, pairs in compared.sections.items():
        table = Table.of(("", "A", "B", "B against A"), map(_row, pairs), SECTIONS[key], css="pairs quantities")
        if section := Section.of(SECTIONS[key], table, lead=lead):
            yield section
            lead = ""


def _row(pair: Compared) -> tuple[object, ...]:
    beyond = "note beyond" if pair.judgement == "beyond the noise" else "note"
    return (
        pair.name,
        _value(pair.a),
        _value(pair.b),
        Noted(comparison_words.against(pair), comparison_words.JUDGED[pair.judgement], beyond),
    )


def _value(quantity: Quantity | None) -> Noted:
    parts, stalls = comparison_words.range_text(quantity), comparison_words.uncertainty_text(quantity)
    details = (
        f"parts {parts}" if parts else "",
        f"{stalls} by stalls of the host" if stalls else "",
        quantity.detail if quantity else "",
    )
    return Noted(comparison_words.value(quantity), ", ".join(filter(None, details)))


def _over_time(compared: SideBySide) -> Section | None:
    pairs = comparison_figures.pairs(compared.a, compared.b)
    picture = Picture("beside.html", {"pairs": pairs}, figures=comparison_figures.placed(pairs))
    lead = "Both plots of a row have the same axes, unless only one of them is logarithmic."
    return Section.of("Over time", picture, lead=lead) if pairs else None


def _changes(compared: SideBySide) -> Section | None:
    rows = (
        (f"{change.library}: {change.what}", change.before, change.after, change.kind) for change in compared.changes
    )
    table = Table.of(("what", "A", "B", ""), rows, "Changes", css="pairs")
    return Section.of("Changes from A to B beyond noise", table)
