"""Quantile tables of jitter, compared with samples of the distributions that Impairment documents."""

from __future__ import annotations

import statistics

import pytest
from contract.measuring import distance, drawn
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.physics.distribution import ENTRIES, offsets_s, quantiles, share_of_table
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("count", [ENTRIES, 1000])
def test_a_table_is_distributed_as_documented(distribution: str, count: int) -> None:
    table, expected = quantiles(distribution, count), drawn(distribution, 50_000)
    assert len(table) == count and list(table) == sorted(table)
    assert distance(table, expected) < 2.69 / 50_000**0.5 + 1 / count
    assert statistics.fmean(table) == pytest.approx(statistics.fmean(expected), abs=0.02)
    assert statistics.pstdev(table) == pytest.approx(statistics.pstdev(expected), rel=0.03)
    assert -DISTRIBUTIONS[distribution] - 1e-9 <= table[0]
    assert table[-1] <= 4.0


def test_the_two_parts_of_paretonormal_are_independent() -> None:
    """Else the variances would not add up."""
    parts = [scale**2 * statistics.pvariance(quantiles(name)) for scale, name in ((0.25, "normal"), (0.75, "pareto"))]
    assert statistics.pvariance(quantiles("paretonormal")) == pytest.approx(sum(parts), rel=0.01)


def test_one_entry_is_the_median() -> None:
    assert quantiles("normal", 1)[0] == pytest.approx(0, abs=1e-3)


@given(st.floats(1e-3, 1 - 1e-3))
def test_shares_are_met(share: float) -> None:
    found = share_of_table(share)
    assert found is not None
    held, total = found
    assert ENTRIES // 2 < total <= ENTRIES
    assert abs(held / total - share) <= 0.01 * min(share, 1 - share)


@pytest.mark.parametrize("share", [1e-5, 1 - 1e-5, 1e-9])
def test_shares_that_no_table_has_are_refused(share: float) -> None:
    assert share_of_table(share) is None
    with pytest.raises(ValueError, match="reorder"):
        offsets_s(Impairment(reorder=share, reorder_by_s=1e-3))


def test_held_back_ones_have_jitter_too() -> None:
    both = offsets_s(
        Impairment(
            1.0, jitter_s=0.1, jitter_distribution="uniform", jitter_reorders=True, reorder=0.25, reorder_by_s=0.5
        )
    )
    late = [offset for offset in both if offset > 0.25]
    assert len(late) / len(both) == 0.25
    assert (min(late), max(late)) == pytest.approx((0.4, 0.6), abs=1e-4)
    assert statistics.fmean(late) == pytest.approx(0.5, abs=1e-4)


def test_nothing_asked_for_is_no_table() -> None:
    assert offsets_s(Impairment(delay_s=1.0)) == ()
