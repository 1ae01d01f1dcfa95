"""The least rate for a utilization, against the closed form of blocking exchanges."""

from __future__ import annotations

import math

import pytest
from builders.predicted_jobs import job, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction.prediction import predict
from testbed.core.prediction.required_rate import LEAST_BPS, least_of, least_rate_bps

BITS = 32 * 2**20


@settings(max_examples=20)
@given(st.floats(0.1, 0.95), st.integers(1, 20), st.floats(0, 0.5))
def test_a_blocking_exchange_needs_its_bits_in_the_time_left(target: float, every: int, delay_s: float) -> None:
    """H steps of 1 s at a utilization u leave H (1 / u - 1) seconds for two delays and all bits."""
    found = predict(job(f"diloco:every={every}", delay_s=delay_s, library=plain(2)), target=target)
    left_s = every * (1 / target - 1) - 2 * delay_s
    if left_s <= 0:
        assert found.rate_bps is None
        assert found.to_dict()["rate_bps"] is None
    else:
        assert found.rate_bps == pytest.approx(max(LEAST_BPS, BITS / left_s), rel=2e-4)
        assert found.utilization == pytest.approx(target, rel=1e-3)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20).map(sorted), st.floats(0, 100))
def test_the_least_value_of_a_grid_that_reaches(grid: list[float], bound: float) -> None:
    assert least_of(grid, lambda value: value >= bound) == next((it for it in grid if it >= bound), None)


@settings(max_examples=20)
@given(st.floats(1e4, 1e15))
def test_the_least_rate_of_a_step_function(bound_bps: float) -> None:
    found = least_rate_bps(lambda rate_bps: float(rate_bps >= bound_bps), 0.5)
    assert found is not None and bound_bps <= found <= bound_bps * (1 + 2e-4)
    assert least_rate_bps(lambda rate_bps: float(math.isinf(rate_bps) and bound_bps < 0), 0.5) is None
