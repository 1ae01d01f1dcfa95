"""The HTML page of a comparison: what its template, ``comparison.html``, shows of two runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from testbed.core.report import formats, html_page
from testbed.core.report.comparison import comparison_figures, comparison_words
from testbed.core.report.comparison.comparison import Compared, SideBySide
from testbed.core.report.comparison.side import SECTIONS, Side

__all__ = ["html"]


@dataclass(frozen=True)
class _Row:
    """One quantity in words."""

    name: str
    a: str
    b: str
    note_a: str
    note_b: str
    against: str
    judged: str
    beyond: bool


@dataclass(frozen=True)
class _Card:
    """The head of a side. ``page`` is where its own report is, or was."""

    letter: str
    name: str
    folder: str
    kind: str
    badge: str
    verdict: str
    headline: str
    began: str


def html(found: SideBySide) -> str:
    """Return the whole page."""
    plots = comparison_figures.pairs(found.a, found.b)
    return html_page.render(
        "comparison.html",
        comparison_figures.placed(plots),
        title=f"{found.a.name} beside {found.b.name}",
        cards=(_card("A", found.a), _card("B", found.b)),
        lead=comparison_words.inputs_lead(found),
        verdicts=comparison_words.verdict_lead(found),
        conditions=tuple(comparison_words.conditions(found)),
        differing=found.differing,
        one_sided=found.one_sided,
        same=tuple(Counter(it.group for it in found.same).items()),
        same_inputs=found.same,
        noise=comparison_words.NOISE,
        answers=found.answers,
        sections=tuple((SECTIONS[key], tuple(_row(it) for it in rows)) for key, rows in found.sections.items() if rows),
        changes=found.changes,
        plots=plots,
    )


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


def _row(pair: Compared) -> _Row:
    def note(side: str) -> str:
        quantity = pair.a if side == "a" else pair.b
        reach = comparison_words.range_text(quantity)
        uncertainty = comparison_words.uncertainty_text(quantity)
        details = (
            f"parts {reach}" if reach else "",
            f"{uncertainty} by stalls of the host" if uncertainty else "",
            quantity.detail if quantity else "",
        )
        return ", ".join(detail for detail in details if detail)

    return _Row(
        name=pair.name,
        a=comparison_words.value(pair.a),
        b=comparison_words.value(pair.b),
        note_a=note("a"),
        note_b=note("b"),
        against=comparison_words.against(pair),
        judged=comparison_words.JUDGED[pair.judgement],
        beyond=pair.judgement == "beyond the noise",
    )
