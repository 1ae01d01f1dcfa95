"""Confidence interval of a mean of paired differences, by Student's t.

Few seeds are the rule here, so the normal distribution would claim too much: of three differences the 95 % interval is
4.30 standard errors wide on each side, not 1.96. Whole degrees of freedom have a closed form of the distribution
(Abramowitz and Stegun, 26.7.3 and 26.7.4), which is inverted by bisection: no library is needed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from testbed.core.analysis.noise.inside_noise import Range

__all__ = ["CONFIDENCE", "LEAST_DIFFERENCES", "paired_interval", "t_quantile"]

CONFIDENCE: Final = 0.95
LEAST_DIFFERENCES: Final = 3
"""Of two differences the interval is 12.7 standard errors wide on each side, which says nothing."""


def paired_interval(differences: Sequence[float]) -> Range | None:
    """Return the 95 % interval of the mean of ``differences``; None of fewer than three.

    None, too, if one is infinite or not a number.
    """
    if len(differences) < LEAST_DIFFERENCES or not all(map(math.isfinite, differences)):
        return None
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    reach = t_quantile((1 + CONFIDENCE) / 2, len(differences) - 1) * error
    return Range(mean - reach, mean + reach)


def t_quantile(share: float, freedom: int) -> float:
    """Return the value below which Student's t lies with probability ``share``, for ``freedom`` degrees of freedom.

    Args:
        share: 0.5 to less than 1.
        freedom: 1 or more.

    >>> round(t_quantile(0.975, 2), 6), round(t_quantile(0.975, 9), 6)
    (4.302653, 2.262157)
    """
    within = 2 * share - 1
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _within(middle, freedom) < within:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability that abs(t) is at most sqrt(freedom) * tan(angle)."""
    square = math.cos(angle) ** 2
    odd = freedom % 2
    # The series begins with cos for odd degrees of freedom, with 1 for even ones; each term is the last one times
    # cos² and a ratio of neighboring numbers.
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for number in range(2 + odd, freedom, 2):
        term *= square * (number - 1) / number
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
