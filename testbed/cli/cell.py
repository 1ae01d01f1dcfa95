"""Text of a table's cell that breaks a long name at a dash rather than in the middle of a word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, OverflowMethod
    from rich.containers import Lines

__all__ = ["Cell"]

_PLACES = re.compile(r"(?<=[a-z0-9][-:/])(?=[a-z0-9])|(?<=[a-z0-9])(?=[-:/.][a-z])", re.ASCII)
"""Around the dash, colon or slash within a name, and before the dot of a key or file; not within a number."""


class Cell(Text):
    """As rich's Text, but a word that is wider than its column breaks where the parts of a name meet."""

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
        places = [it.start() for it in _PLACES.finditer(plain, word.start(), word.end())]
        while word.end() - began > width:
            fit = [it for it in places if began < it <= began + width]
            if not fit:  # no name has such a part: rich folds it
                later = [it for it in places if it > began]
                if not later:
                    break
                fit = later[:1]
            began = fit[-1]
            cuts.add(began)
    return cuts
