"""A page of a report as a value: sections of blocks, which the HTML page, Markdown and the terminal show alike.

``blocks.html`` has a branch for each type of block, :mod:`~testbed.core.report.markdown` a case. Only a page shows
plots and legends; of a picture the other forms show its table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from testbed.core.report.figures.plotly_figure import Figure

__all__ = [
    "Badge",
    "Banner",
    "Block",
    "Bullets",
    "Code",
    "Details",
    "Facts",
    "Heading",
    "Kind",
    "Legend",
    "Mark",
    "Noted",
    "Page",
    "Picture",
    "Plots",
    "Section",
    "Table",
    "Text",
    "tone",
]

_GOOD = frozenset({"yes", "certified", "held", "ok"})
_BAD = frozenset({"no", "outside tolerance", "did not hold", "bad"})

Kind = Literal["good", "fair", "bad", "worst", "unknown", "absent", "plain"]
"""Good; tolerable; bad; wrong without an error; unknown; absent; a number without a judgement."""


@dataclass(frozen=True)
class Mark:
    """A verdict, by color, sign and word."""

    kind: Kind
    sign: str
    word: str

    def __str__(self) -> str:
        return f"{self.sign} {self.word}".strip()


@dataclass(frozen=True)
class Noted:
    """A cell with a second, smaller line. ``css`` is the class of the note, ``verdict`` colors the text."""

    text: str
    note: str = ""
    css: str = "note"
    verdict: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Table:
    """Columns ``numbers`` are right-aligned on the page, column ``verdicts`` has the color of its words.

    A cell is text, or a value whose ``str()`` is its text. ``label`` names the table for a screen reader. ``css`` is
    its class on the page; with ``pairs``, a narrow screen shows the name of its column beside each cell.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    label: str = ""
    numbers: Collection[int] = ()
    verdicts: int | None = None
    css: str = ""

    @staticmethod
    def of(
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        label: str,
        numbers: Iterable[int] = (),
        verdicts: int | None = None,
        css: str = "",
    ) -> Table | None:
        """Return the table; None if there are no rows."""
        listed = tuple(rows)
        return Table(head, listed, label, frozenset(numbers), verdicts, css) if listed else None


@dataclass(frozen=True)
class Heading:
    text: str
    anchor: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; ``css`` is its class on the page."""

    text: str
    css: str = "lead"


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]
    css: str = "notes"


@dataclass(frozen=True)
class Code:
    """Text to copy as it is."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Details:
    """A table or facts that open at a click on ``summary``."""

    content: Table | Facts | None
    summary: str


@dataclass(frozen=True)
class Legend:
    """Names, or marks, with their meanings."""

    entries: Sequence[tuple[str | Mark, str]]
    summary: str = "What these numbers mean"


@dataclass(frozen=True)
class Plots:
    """``instead`` is shown without JavaScript; plots whose id is in ``wide`` take the whole width.

    ``draw`` is called by the page only: plots of a long run take as long as all other blocks together.
    """

    draw: Callable[[], Sequence[Figure]]
    instead: str
    wide: Collection[str] = ()

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return self.draw()


@dataclass(frozen=True)
class Picture:
    """A template of the page with its variables, and the same as a table for the other forms.

    The page loads ``figures`` as data of plots that the template places.
    """

    template: str
    values: Mapping[str, object] = field(default_factory=dict)
    table: Table | None = None
    figures: Sequence[Figure] = ()


Block = Heading | Text | Bullets | Code | Facts | Details | Legend | Plots | Picture | Table


@dataclass(frozen=True)
class Section:
    """``lead`` explains the blocks; ``anchor`` and ``css`` are the id and class of its element on the page.

    ``line`` is its summary for a terminal. ``on_page``: the page shows the same elsewhere if not.
    """

    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    line: str = ""
    mark: Mark | None = None
    anchor: str = ""
    css: str = ""
    on_page: bool = True

    @staticmethod
    def of(
        title: str,
        *blocks: Block | None,
        lead: str = "",
        line: str = "",
        mark: Mark | None = None,
        anchor: str = "",
        css: str = "",
        on_page: bool = True,
    ) -> Section | None:
        """Return the section without empty blocks: those whose first field is empty. None if none is left."""
        shown = tuple(block for block in blocks if block is not None and next(iter(vars(block).values())))
        return Section(title, shown, lead, line, mark, anchor, css, on_page) if shown or line else None

    @property
    def page_blocks(self) -> tuple[Block, ...]:
        """The blocks that the page shows; none if it has nothing but headings and legends."""
        blocks = tuple(block for block in self.blocks if not isinstance(block, Plots) or block.figures)
        return blocks if self.on_page and any(not isinstance(block, Heading | Legend) for block in blocks) else ()


@dataclass(frozen=True)
class Badge:
    """The verdict below the title; ``css`` is pass, fail or unknown."""

    css: str
    word: str
    sign: str = ""


@dataclass(frozen=True)
class Banner:
    """A warning above the title. ``short`` is its text in Markdown, if that differs."""

    text: str
    role: Literal["alert", "note"] = "note"
    short: str = ""


@dataclass(frozen=True)
class Page:
    """``kind`` is the class of the page's body, ``title`` the name of its window, ``scripts`` are assets.

    Only the page shows ``source``: what it was built from. The other forms show ``summary`` instead of the eyebrow.
    """

    kind: Literal["run", "validation", "comparison", "ways"]
    title: str
    eyebrow: str
    headline: str
    header: tuple[Block, ...]
    sections: tuple[Section, ...]
    source: str
    summary: str = ""
    footer: tuple[str, ...] = ()
    banners: tuple[Banner, ...] = ()
    badge: Badge | None = None
    scripts: tuple[str, ...] = ()


def tone(verdict: str) -> str:
    """Return yes, no or unknown, the CSS class of a verdict such as ``did not hold: 1 packet dropped``."""
    word = verdict.partition(":")[0]
    return "yes" if word in _GOOD else "no" if word in _BAD else "unknown"
