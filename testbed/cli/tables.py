"""Tables and verdicts as values of rich, and plain JSON data; nothing here prints."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, OverflowMethod
    from rich.containers import Lines

Row = list[str | Text]

GOOD, BAD, UNSURE = "green", "bold red", "yellow"
_WORDS = {
    GOOD: ("ok", "up", "yes", "pass", "certified", "training", "waiting", "finished", "viable", "holds"),
    BAD: (
        "bad", "down", "no", "fail", "does not hold", "missing", "degraded", "dead", "failed", "not viable",
        "outside tolerance",
    ),
    UNSURE: (
        "limited", "unknown", "building", "kept", "interrupted", "running", "costly", "biased", "stopped", "stopping",
        "lost", "noisy host", "certified, noisy host", "another user's", "not told", "not measured",
        "not measurable on this host now",
    ),
}  # fmt: skip
_STYLES = {word: style for style, verdicts in _WORDS.items() for word in verdicts}


def verdict(word: str) -> Text:
    """Return a verdict in its colour."""
    return Text(word, style=_STYLES.get(word, ""))


def table(heads: Sequence[str], rows: Iterable[Row], *, right: Sequence[str] = (), title: str = "") -> Table:
    """Build a table; ``right`` names the right-aligned (numeric) columns. Text wraps and is never truncated."""
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", overflow="fold", no_wrap=False)
    for row in rows:
        made.add_row(*map(Cell.of, row))
    return made


def plain(value: Any) -> Any:
    """Convert a dataclass, or a sequence of them, to JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return value


_PLACES = re.compile(r"(?<=[a-z0-9][-:/])(?=[a-z0-9])|(?<=[a-z0-9])(?=[-:/.][a-z])", re.ASCII)
"""Around the dash, colon or slash within a name, and before the dot of a key or file; not within a number."""


class Cell(Text):
    """As rich's Text, but a name that is wider than its column breaks at a dash rather than within a word."""

    @classmethod
    def of(cls, text: str | Text) -> Cell:
        """Return ``text`` as a cell, with its styles."""
        return cls(text) if isinstance(text, str) else cls(text.plain, style=text.style, spans=list(text.spans))

    def wrap(
        self,
        console: Console,
        width: int,
        *,
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        tab_size: int = 8,
        no_wrap: bool | None = None,
    ) -> Lines:
        """Return the lines of at most ``width`` columns."""
        cuts = [] if no_wrap else sorted(_cuts(self.plain, width))
        # A line break at each cut makes rich's own wrapping see two words.
        text = Text("\n", end="").join(self.divide(cuts)) if cuts else Text.copy(self)
        text.justify, text.overflow, text.end = self.justify, self.overflow, self.end
        return Text.wrap(text, console, width, justify=justify, overflow=overflow, tab_size=tab_size, no_wrap=no_wrap)


def _cuts(plain: str, width: int) -> set[int]:
    """Return where to break the words of ``plain`` that are wider than ``width``: as late as possible each time."""
    cuts: set[int] = set()
    for word in re.finditer(r"\S+", plain):
        began = word.start()
        breaks = [place.start() for place in _PLACES.finditer(plain, word.start(), word.end())]
        while word.end() - began > width:
            fit = [column for column in breaks if began < column <= began + width]
            if not fit:  # no name has such a part: rich folds it
                later = [column for column in breaks if column > began]
                if not later:
                    break
                fit = later[:1]
            began = fit[-1]
            cuts.add(began)
    return cuts
