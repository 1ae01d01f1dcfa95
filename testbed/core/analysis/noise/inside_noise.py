"""The noise inside one run: how far equal parts of it differ from each other.

A run is one sample of itself: how much another run of the same thing would differ is not in its records. What they
have is how much the run differs from itself over time. The parts are contiguous, because a host's load comes and goes
in seconds: neighboring steps are alike, so the spread of single steps would claim too much certainty for a median.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["LEAST_IN_A_PART", "PARTS", "Range", "apart", "range_of_parts"]

PARTS = 8
"""Of two runs that are alike, with independent parts, the ranges of 8 parts each are apart once in 6435 times: of the
12,870 ways to deal 16 ranks to two runs, two give one run the 8 lowest."""

LEAST_IN_A_PART = 5
"""The median of fewer values is no more than one of them."""


class Range(NamedTuple):
    """The least and the greatest value that the parts of a run have."""

    low: float
    high: float


def range_of_parts(
    values: Sequence[float],
    least: int = LEAST_IN_A_PART,
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> Range | None:
    """Return the range of ``middle`` over :data:`PARTS` parts of ``values``, which are in the order of time.

    None if a part would have fewer than ``least`` values.
    """
    if len(values) < PARTS * least:
        return None
    edges = [len(values) * part // PARTS for part in range(PARTS + 1)]
    middles = [middle(values[begin:end]) for begin, end in itertools.pairwise(edges)]
    return Range(min(middles), max(middles))


def apart(one: Range, other: Range) -> bool:
    """Return whether all parts of one run are below all parts of the other."""
    return one.high < other.low or other.high < one.low
