"""Losses at equal budgets: between two evaluations, never beyond them; tokens of the lineage that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import jobs

from testbed.core.analysis.equal_budgets import equal_budget, first_evaluated, loss_within
from testbed.core.analysis.heldout import HeldOut, held_out
from testbed.core.records.rank_log import EvaluationRecord, JobRecord, RankLog

CURVE = HeldOut((1, 2, 3), (10.0, 20.0, 40.0), (None, 50.0, 50.0), (5.0, 4.0, 3.0), (0, 0, 1), (100, 200, 300))


@pytest.mark.parametrize(
    ("column", "budget", "loss"),
    [
        pytest.param("t_s", 10.0, 5.0, id="at the first evaluation"),
        pytest.param("t_s", 25.0, 3.75, id="a quarter of the way between two evaluations"),
        pytest.param("t_s", 40.0, 3.0, id="at the last evaluation"),
        pytest.param("t_s", 9.99, None, id="before the first evaluation"),
        pytest.param("t_s", 40.01, None, id="after the last evaluation"),
        pytest.param("tokens", 150.0, 4.5, id="over tokens"),
        pytest.param("fiber_bytes", 50.0, 3.0, id="of evaluations with equal bytes the last one"),
        pytest.param("fiber_bytes", 49.0, None, id="an evaluation without bytes does not count"),
    ],
)
def test_a_loss_is_interpolated_and_never_extrapolated(column: str, budget: float, loss: float | None) -> None:
    assert loss_within(CURVE, column, budget) == loss


def test_between_two_evaluations_with_equal_bytes_the_later_one_is_left_behind() -> None:
    curve = replace(CURVE, fiber_bytes=(50.0, 50.0, 150.0))
    assert loss_within(curve, "fiber_bytes", 100.0) == pytest.approx((4.0 + 3.0) / 2)


def test_the_budget_is_the_shortest_run_s() -> None:
    shorter = replace(CURVE, t_s=(1.0, 2.0, 3.0))
    assert equal_budget([CURVE, shorter, HeldOut()], "t_s") == 3.0
    assert equal_budget([HeldOut()], "t_s") is None
    assert first_evaluated(CURVE, "fiber_bytes") == 50.0
    assert first_evaluated(HeldOut(), "t_s") is None


def test_a_curve_of_an_older_version_has_no_tokens() -> None:
    old = replace(CURVE, tokens=())
    assert equal_budget([old], "tokens") is None
    assert loss_within(old, "tokens", 100.0) is None


def test_tokens_are_of_all_ranks_and_a_step_that_ran_again_counts_once() -> None:
    """Steps of 10 tokens; the first attempt did six, the second resumed from the checkpoint after step 4."""

    def log(rank: int) -> RankLog:
        first = JobRecord(0.0, rank, 2, f"n-{rank}", "east", "ddp", 1, 1, 8)
        second = JobRecord(7.0, rank, 2, f"n-{rank}", "east", "ddp", 1, 1, 8, 2, 4)
        done = (*jobs.steps("6*1"), *jobs.steps("4*1", first=5, begin=8.0, attempt=2))
        evaluations = (EvaluationRecord(4.0, 4, 0.0, 3.0, 1, 0), EvaluationRecord(12.0, 8, 0.0, 2.0, 1, 0, attempt=2))
        return RankLog(rank, (first, second), done, evaluations=evaluations)

    found = held_out([log(0), log(1)], (), {}, 0.0)
    assert (found.step, found.tokens) == ((4, 8), (80, 160))
