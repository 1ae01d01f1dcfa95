"""Quantiles of Student's t against its density, integrated; intervals against how often they hold the true mean."""

from __future__ import annotations

import math
import random

import pytest

from testbed.core.analysis.noise.paired_interval import paired_interval, t_quantile


def share_below(t: float, freedom: int, intervals: int = 20_000) -> float:
    """Return the distribution by Simpson's rule over the density of Student's t."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    width = t / intervals
    total = 0.0
    for index in range(intervals + 1):
        weight = 1 if index in (0, intervals) else 4 if index % 2 else 2
        total += weight * scale * (1 + (index * width) ** 2 / freedom) ** (-(freedom + 1) / 2)
    return 0.5 + total * width / 3


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 199])
@pytest.mark.parametrize("share", [0.9, 0.975, 0.995])
def test_a_quantile_is_exact_to_a_millionth(share: float, freedom: int) -> None:
    quantile = t_quantile(share, freedom)
    assert share_below(quantile - 1e-6, freedom) < share < share_below(quantile + 1e-6, freedom)


@pytest.mark.parametrize(
    ("freedom", "exact"),
    [
        pytest.param(1, math.tan(math.pi * 0.475), id="1 degree of freedom: the Cauchy distribution"),
        pytest.param(2, 0.95 / math.sqrt(2 * 0.975 * 0.025), id="2 degrees of freedom: an algebraic function"),
        pytest.param(4, 2.7764451051977987, id="4 degrees of freedom: as tables have it"),
    ],
)
def test_a_quantile_with_a_formula_of_its_own_is_that(freedom: int, exact: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(exact, abs=1e-9)


def test_the_median_is_0_and_many_degrees_of_freedom_are_nearly_normal() -> None:
    assert t_quantile(0.5, 7) == pytest.approx(0.0, abs=1e-12)
    assert t_quantile(0.975, 100_000) == pytest.approx(1.959988, abs=1e-5)


@pytest.mark.parametrize(
    ("differences", "interval"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([0.03, 0.032], None, id="two seeds are too few"),
        pytest.param([1.0, 2.0, 3.0], (2 - 4.30265273 / math.sqrt(3), 2 + 4.30265273 / math.sqrt(3)), id="three seeds"),
        pytest.param([0.5, 0.5, 0.5], (0.5, 0.5), id="equal differences have a width of 0"),
    ],
)
def test_an_interval_needs_three_differences(differences: list[float], interval: tuple[float, float] | None) -> None:
    assert paired_interval(differences) == (None if interval is None else pytest.approx(interval, abs=1e-8))


def test_95_of_100_intervals_hold_the_true_mean() -> None:
    drawn = random.Random(34)
    held = 0
    for _ in range(4000):
        interval = paired_interval([drawn.gauss(1.0, 3.0) for _ in range(3)])
        assert interval is not None
        held += interval.low <= 1.0 <= interval.high
    assert held / 4000 == pytest.approx(0.95, abs=0.014)  # 4 standard errors


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_differences_that_are_not_finite_have_no_interval(value: float) -> None:
    assert paired_interval([0.1, 0.2, 0.3, value]) is None
