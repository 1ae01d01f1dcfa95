"""What all pages are made of: one self-contained HTML file with style, script and plots inline.

A page opens offline and asks nothing of the network, which its own content security policy enforces.

plotly.js comes as its basic bundle (1.2 MB; lines and bars are all that is drawn), kept in ``assets`` with its licence,
because plotly's Python package ships the full one alone, which would put 4.8 MB into every report.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Sequence
from importlib import resources

from testbed.core.report.figures import Figure
from testbed.core.report.markup import Markup, element

__all__ = ["asset", "facts", "page", "plots", "scripts", "table"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


def page(title: str, body: Markup, styles: Sequence[str] = ("page.css",)) -> str:
    """The whole file; ``styles`` are names of assets."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        *(element("style", asset(name)) for name in styles),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@functools.cache
def asset(name: str) -> Markup:
    return Markup((resources.files(__package__) / "assets" / name).read_text(encoding="utf-8"))


def scripts(figures: Sequence[Figure]) -> Iterable[Markup]:
    """What draws the plots; nothing where there are none."""
    if not figures:
        return
    # Inside a script element only "</" and "<!--" can end or bend it, and JSON may write "<" as an escape.
    data = json.dumps({figure.id: figure.spec for figure in figures}, separators=(",", ":")).replace("<", "\\u003c")
    yield element("script", Markup(data), type="application/json", id="figures")
    yield element("script", asset("plotly-basic.min.js"))
    yield element("script", asset("page.js"))


def plots(figures: Sequence[Figure], instead: str, wide: Collection[str] = ()) -> Markup:
    """A grid of plots; those whose id is in ``wide`` take its whole width. ``instead`` is said without JavaScript."""
    drawn = (
        element(
            "figure",
            element("h3", figure.title),
            element("figcaption", figure.summary),
            element("div", id=figure.id, class_="plot", role="img", aria_label=figure.summary),
            class_="wide" if figure.id in wide else None,
        )
        for figure in figures
    )
    return Markup(element("div", *drawn, class_="plots") + element("noscript", instead))


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = (), caption: str = ""
) -> Markup:
    """Columns ``numbers`` are right-aligned; a wide table scrolls by itself, not with the page."""
    right = set(numbers)

    def cell(tag: str, index: int, value: object) -> Markup:
        scope = "col" if tag == "th" else None
        return element(tag, value, class_="number" if index in right else None, scope=scope)

    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *(cell("th", index, each) for index, each in enumerate(head)))),
            element(
                "tbody", *(element("tr", *(cell("td", index, each) for index, each in enumerate(row))) for row in rows)
            ),
            aria_label=caption or None,
        ),
        class_="scroll",
    )


def facts(listed: Iterable[tuple[str, str]]) -> Markup:
    """Names and values."""
    items = (element("div", element("dt", name), element("dd", value)) for name, value in listed)
    return element("dl", *items, class_="facts")
