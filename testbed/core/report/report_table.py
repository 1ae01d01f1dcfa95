"""A table of a report as a value, which the HTML page and Markdown both show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Table", "tone"]

_GOOD = frozenset({"yes", "certified", "held", "ok"})
_BAD = frozenset({"no", "outside tolerance", "did not hold", "bad"})


@dataclass(frozen=True)
class Table:
    """Columns ``numbers`` are right-aligned on the page, column ``verdicts`` has the color of its words.

    A cell is text, or a value whose ``str()`` is its text. ``label`` names the table for a screen reader.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    label: str = ""
    numbers: Collection[int] = ()
    verdicts: int | None = None

    @staticmethod
    def of(
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        label: str,
        numbers: Iterable[int] = (),
        verdicts: int | None = None,
    ) -> Table | None:
        """Return the table; None if there are no rows."""
        listed = tuple(rows)
        return Table(head, listed, label, frozenset(numbers), verdicts) if listed else None


def tone(verdict: str) -> str:
    """Return yes, no or unknown, the CSS class of a verdict such as ``did not hold: 1 packet dropped``."""
    word = verdict.partition(":")[0]
    return "yes" if word in _GOOD else "no" if word in _BAD else "unknown"
