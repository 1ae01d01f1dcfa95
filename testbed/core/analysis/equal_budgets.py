"""Held-out loss of several runs at equal tokens, equal time and equal bytes. Pure.

A *budget* is the most that all compared runs reached with an evaluation: the shortest run's. The loss at a budget is
interpolated between the two evaluations around it and never extrapolated: a run without an evaluation by then has none.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Final

from testbed.core.analysis.heldout import HeldOut

__all__ = ["BUDGETS", "equal_budget", "first_evaluated", "loss_within"]

BUDGETS: Final[Mapping[str, str]] = {"tokens": "tokens", "t_s": "time", "fiber_bytes": "bytes"}
"""Column of a curve -> the word for the budget."""


def equal_budget(curves: Sequence[HeldOut], column: str) -> float | None:
    """Return the least of the curves' last values; None if no curve has the column."""
    return min((points[-1][0] for curve in curves if (points := _points(curve, column))), default=None)


def first_evaluated(curve: HeldOut, column: str) -> float | None:
    """Return the budget that the first evaluation needed; None if the curve lacks the column."""
    points = _points(curve, column)
    return points[0][0] if points else None


def loss_within(curve: HeldOut, column: str, budget: float) -> float | None:
    """Return the loss at ``budget``; None where the curve has no evaluation before it, or none after it."""
    points = _points(curve, column)
    # Between exchanges no byte crosses a fiber: of evaluations with equal bytes the last one counts.
    index = bisect.bisect_right([x for x, _ in points], budget)
    if index == 0 or (index == len(points) and points[-1][0] < budget):
        return None
    x, loss = points[index - 1]
    if x == budget:
        return loss
    next_x, next_loss = points[index]
    return loss + (budget - x) / (next_x - x) * (next_loss - loss)


def _points(curve: HeldOut, column: str) -> list[tuple[float, float]]:
    # A curve of an older version has no tokens at all.
    values: Sequence[float | None] = getattr(curve, column) or (None,) * len(curve.loss)
    return [(x, loss) for x, loss in zip(values, curve.loss, strict=True) if x is not None]
