"""The curve of held-out loss: of the lineage that counts, without the time of evaluations, against bytes as sampled."""

from __future__ import annotations

import pytest
from builders.wire_records import sample

from testbed.core.analysis.heldout import held_out, payload_until
from testbed.core.records.rank_log import EvaluationRecord, JobRecord, RankLog


def log(rank: int, site: str, *evaluations: EvaluationRecord, resumed: tuple[int, int] | None = None) -> RankLog:
    begins = [(100.0, 1, 0), *([(150.0, *resumed)] if resumed else [])]
    jobs = (
        JobRecord(t, rank, 4, f"{site}-{rank}", site, "ddp", None, None, 30, attempt, step)
        for t, attempt, step in begins
    )
    return RankLog(rank, jobs=tuple(jobs), evaluations=evaluations)


def evaluation(step: int, t: float, loss: float | None, windows: int = 10, took: float = 1.0, attempt: int = 1):
    return EvaluationRecord(t, step, took, loss, windows, step // 10, attempt)


def test_held_out_averages_ranks_of_a_site_by_windows_and_then_sites() -> None:
    logs = [
        log(0, "east", evaluation(10, 111.0, 3.0, 30), evaluation(20, 122.0, 2.0, 30)),
        log(1, "east", evaluation(10, 111.0, 5.0, 10), evaluation(20, 122.0, 2.0, 10)),
        log(2, "west", evaluation(10, 110.5, 4.5), evaluation(20, 122.0, 1.0)),
    ]
    found = held_out(logs, (), {}, began_t=100.0)
    assert found.step == (10, 20)
    assert found.loss == pytest.approx((4.0, 1.5)), "(30 x 3 + 10 x 5) / 40 = 3.5 in east, 4.5 in west"
    # 10 s until the first evaluation, which took 1 s that is no training, 21 - 1 s until the second.
    assert found.t_s == pytest.approx((10.0, 20.0))
    assert found.fiber_bytes == (None, None)
    assert found.version == (1, 2)


def test_held_out_leaves_out_a_point_without_all_shares() -> None:
    logs = [log(0, "east", evaluation(10, 111.0, 3.0)), log(1, "east", evaluation(10, 111.0, None))]
    assert held_out(logs, (), {}, 100.0).step == ()


def test_held_out_does_not_count_evaluations_of_a_lost_attempt() -> None:
    evaluations = (
        evaluation(10, 111.0, 3.0),
        evaluation(20, 122.0, 9.9),
        evaluation(20, 160.0, 2.0, attempt=2),
    )
    found = held_out([log(0, "east", *evaluations, resumed=(2, 12))], (), {}, 100.0)
    assert found.step == (10, 20)
    assert found.loss == (3.0, 2.0)


def test_payload_until_grows_evenly_between_samples_and_goes_on_when_a_counter_restarts() -> None:
    samples = [
        sample(t, count, segments=number) for t, count, number in ((0.0, 500, 5), (10.0, 20_500, 25), (20.0, 3_000, 3))
    ]
    until = payload_until(samples, {})
    assert until(-1.0) is None
    first = 20_000 - 66 * 20
    assert until(0.0) == 0.0
    assert until(5.0) == pytest.approx(first / 2)
    assert until(10.0) == pytest.approx(first)
    assert until(99.0) == pytest.approx(first + 3_000 - 66 * 3)
