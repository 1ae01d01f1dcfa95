"""Read the lines of a program's output by a :class:`~testbed.core.workload.progress_source.LinePattern`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from testbed.core.workload.progress_patterns import STEPS, repetitions
from testbed.core.workload.progress_source import LinePattern

__all__ = ["LONGEST", "LineParser", "number_of", "plain"]

LONGEST: Final = 1000
"""Characters of a line that patterns see: what a pattern costs can grow with a power of the line's length."""

_FEW_REPETITIONS: Final = 2
"""A pattern with no more takes a second at most on a line of LONGEST characters."""
_FIRST_BEGIN, _LONGER, _MOST_LONGER = 12, 1.5, 48

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*+[A-Za-z]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[()][A-Z0-9])")
"""Control sequences of ECMA-48: colours, erasing, moves of the cursor, and titles."""
_UP: Final = re.compile(r"\x1b\[\d*A\s*$")
"""Moving up again ends each drawing of a nested tqdm bar."""


def plain(line: str) -> str:
    """Return the first :data:`LONGEST` characters of a line without control sequences.

    A final move up is kept as ``\\x1b[A``: it tells a nested progress bar from the one that counts steps.
    """
    if "\x1b" not in line:
        return line[:LONGEST]
    line = line[: 4 * LONGEST]  # colours can take most of a line
    return _ESCAPES.sub("", line)[:LONGEST] + ("\x1b[A" if _UP.search(line) else "")


def number_of(text: str) -> float | None:
    """Return the finite number that a program printed, ``16,384`` too; None for anything else."""
    try:
        number = float(text.strip().replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class LineParser:
    """Searches lines for the patterns, in order. Raises re.error for patterns that the schema has refused."""

    def __init__(self, lines: LinePattern) -> None:
        self._patterns = [re.compile(pattern) for pattern in lines.patterns]
        self._costly = [
            pattern
            for pattern in self._patterns
            if not lines.preset and repetitions(pattern.pattern) > _FEW_REPETITIONS
        ]
        groups = [set(pattern.groupindex) for pattern in self._patterns]
        self._every = lines.every or (0 if any(group & STEPS for group in groups) else 1)
        counting = next((index for index, group in enumerate(groups) if "train_loss" in group), 0)
        self._counting = counting if self._every else -1
        self._count = 0

    def tries(self, line: str) -> Iterator[None]:
        """Search ever longer beginnings of a line: a caller that sees one take long does not search the whole line.

        Only by those patterns whose cost may grow fast; presets are known not to.
        """
        text, length = plain(line), _FIRST_BEGIN
        while self._costly and length < len(text):
            for pattern in self._costly:
                pattern.search(text[:length])
            yield
            length = min(int(length * _LONGER), length + _MOST_LONGER)

    def read(self, line: str) -> Mapping[str, float] | None:
        """Return the numbers of the first pattern that matches, by group; None if none does.

        A group that took no part, or whose text is no finite number, is left out.
        """
        text = plain(line)
        for index, pattern in enumerate(self._patterns):
            if (match := pattern.search(text)) is None:
                continue
            numbers = {name: number_of(value) for name, value in match.groupdict().items() if value is not None}
            figures = {name: value for name, value in numbers.items() if value is not None}
            if self._every:
                figures = {name: value for name, value in figures.items() if name not in STEPS}
            if index == self._counting:
                self._count += 1
                figures["step"] = float(self._every * self._count)
            return figures
        return None
