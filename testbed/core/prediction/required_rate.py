"""The least rate at which a strategy reaches a compute utilization. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["GREATEST_BPS", "LEAST_BPS", "least_of", "least_rate_bps"]

LEAST_BPS: Final = 1e3
GREATEST_BPS: Final = 1e16
"""Rates between which the least one is looked for."""


def least_rate_bps(utilization: Callable[[float], float], target: float, tolerance: float = 1e-4) -> float | None:
    """Return the least payload rate at which ``utilization``, which never falls with it, is ``target``.

    It is within a share of ``tolerance``.

    None if even infinite rate does not reach the target: then it is distance, software or a slow site that limits.
    """
    if utilization(math.inf) < target:
        return None
    low, high = LEAST_BPS, GREATEST_BPS
    if utilization(low) >= target:
        return low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if utilization(middle) >= target:
            high = middle
        else:
            low = middle
    return high


def least_of(grid: Sequence[float], reaches: Callable[[float], bool]) -> float | None:
    """Return the least value of an ascending ``grid`` that ``reaches``, which holds from some value on."""
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        if reaches(grid[middle]):
            high = middle
        else:
            low = middle + 1
    return grid[low] if low < len(grid) else None
