"""Violations of the steady state that stalls of the host may account for.

A rate is over the last :data:`~testbed.core.experiment.steady.WINDOW_S` seconds. If stalls took a share s of it, the
rate without them is up to 1 / (1 - s) times as high; the window with the most stalls counts. The time of a step is
uncertain by the stalls since the step began. Stalls do not affect counts of ranks and links, nor train_loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.core.analysis.host_noise import StallLog
from testbed.core.analysis.inside_noise import Range
from testbed.core.experiment import steady
from testbed.core.experiment.expect import parse
from testbed.core.units import Unreadable

__all__ = ["within_noise"]

_RATES = ("tokens_per_s", "steps_per_s")
_TIMES = ("step_seconds",)
_WINDOWS = 200
"""Maximum number of windows examined per violation."""


def within_noise(text: str, bound: float | None, violations: Sequence[steady.Violation], noise: StallLog) -> bool:
    """Return whether stalls may account for every violation of a condition."""
    try:
        condition = parse(text, steady.METRICS, of_before=True)
    except Unreadable:
        return False
    if bound is None or not violations or not noise.stalls:
        return False

    def meets(value: float) -> bool:
        before = bound / condition.bound if condition.of_before and condition.bound else None
        return condition.holds(value, before) is True

    for violation in violations:
        reach = _reach(condition.metric, violation, noise)
        if reach is None or not (meets(reach.low) or meets(reach.high)):
            return False
    return True


def _reach(metric: str, violation: steady.Violation, noise: StallLog) -> Range | None:
    """Return the range of the worst value of a violation; None if stalls do not affect it, or it is unknown."""
    value, began_t, ended_t = violation.measured, violation.began_t, violation.ended_t
    if value is None:
        return None
    if metric in _RATES:
        share = _most_uncertain_s(began_t, ended_t, steady.WINDOW_S, noise) / steady.WINDOW_S
        return Range(value / (1 + share), value / (1 - share) if share < 1 else math.inf)
    if metric in _TIMES:
        by_s = _most_uncertain_s(began_t, ended_t, max(value, 1e-3), noise)
        return Range(value - by_s, value + by_s)
    return None


def _most_uncertain_s(began_t: float, ended_t: float, window_s: float, noise: StallLog) -> float:
    """Return the greatest uncertainty of a window that ends within a violation."""
    step_s = max(window_s / 8, (ended_t - began_t) / _WINDOWS)
    ends = [began_t + index * step_s for index in range(math.ceil((ended_t - began_t) / step_s))]
    return max(noise.uncertainty_s(end_t - window_s, end_t) for end_t in (*ends, ended_t))
