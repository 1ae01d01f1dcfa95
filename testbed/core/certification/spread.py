"""Summary statistics of a sample: minimum, median, 99th percentile, and a spread that single outliers do not move."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.json_record import JsonRecord

__all__ = ["SIGMAS_OF_DEVIATION", "Spread", "median_deviation"]

SIGMAS_OF_DEVIATION: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class Spread(JsonRecord):
    """Minimum, median and 99th percentile of a sample, in the sample's unit."""

    min: float
    median: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread | None:
        """Return None for an empty sample. The percentile is the nearest rank, so it is always a measured value."""
        if not samples:
            return None
        ordered = sorted(samples)
        return cls(ordered[0], statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1])


def median_deviation(samples: Sequence[float]) -> float:
    """Return the median of the distances from the median (MAD). A standard deviation would reflect only the host's
    scheduler, which delays one packet in a hundred by milliseconds. Raises StatisticsError without samples."""
    middle = statistics.median(samples)
    return statistics.median(abs(sample - middle) for sample in samples)
