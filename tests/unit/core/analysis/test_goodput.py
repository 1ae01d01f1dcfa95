"""Goodput, recovery and utilization against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from testbed.core.analysis.commits import commits
from testbed.core.analysis.goodput import evaluate
from testbed.core.analysis.host_noise import StallLog
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.uncertainty import of_faults
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord
from testbed.core.records.stalls import Stall


def step(number: int, begin: float, end: float, *, ready: float | None = None, sync: float | None = None, loss=1.0):
    ready = begin + 0.5 * (end - begin) if ready is None else ready
    return StepRecord(number, begin, ready, end if sync is None else sync, end, 10, loss)


def rank(index: int, steps, *, world: int = 2, t: float = 0.0, planned: int = 100, ends=()):
    job = JobRecord(t, index, world, f"n-{index}", "east", "ddp", 1, 1, planned)
    return RankLog(index, (job,), tuple(steps), tuple(ends))


def job_of(durations, world: int = 2):
    """``world`` ranks in lockstep, one step after the other."""
    times = [0.0]
    for duration in durations:
        times.append(times[-1] + duration)
    spans = list(pairwise(times))
    return [rank(r, [step(i, *span) for i, span in enumerate(spans, 1)], world=world) for r in range(world)]


def window(began: float, ended: float | None) -> FaultWindow:
    return FaultWindow("f1", "cut", "north", ("north",), began, ended)


def test_a_step_is_committed_at_the_latest_end_of_all_ranks():
    logs = [rank(0, [step(1, 0, 1.0)]), rank(1, [step(1, 0.25, 1.5, loss=3.0)])]
    (commit,) = commits(logs, 2)
    assert (commit.t, commit.duration_s, commit.tokens, commit.train_loss) == (1.5, 1.5, 20, 2.0)


def test_a_step_that_one_rank_did_not_finish_is_lost():
    logs = [rank(0, [step(1, 0, 1), step(2, 1, 2)]), rank(1, [step(1, 0, 1)])]
    evidence = evaluate(logs, [])
    assert [commit.step for commit in evidence.commits] == [1]
    assert (evidence.steps_lost, evidence.tokens) == (1, 20)


def test_a_step_run_again_after_a_restart_counts_once_as_it_was_run_last():
    rows = [step(1, 0, 1), step(2, 1, 2), step(2, 5, 6), step(3, 6, 7)]
    evidence = evaluate([rank(0, rows), rank(1, rows)], [])
    assert [(commit.step, commit.t) for commit in evidence.commits] == [(1, 1), (2, 6), (3, 7)]
    assert (evidence.steps_lost, evidence.tokens, evidence.wall_s) == (1, 60, 7)


def test_without_a_fault_goodput_is_one():
    evidence = evaluate(job_of([0.1] * 50), [])
    assert evidence.goodput == pytest.approx(1.0)
    assert (evidence.recovery_s, evidence.faults) == (None, ())


def test_goodput_is_never_above_one_by_rounding():
    assert max(evaluate(job_of([0.1] * steps), []).goodput for steps in range(5, 20)) == 1.0


def test_goodput_is_one_where_the_steps_during_a_fault_were_the_quicker_ones():
    # 20 steps of 0.11 s, 10 of 0.1 s during a fault that cost nothing, 10 of 0.11 s. A step's time counts once, at most
    # as it was: all 4.3 s were good, and the pace of 0.11 s makes them no more than that.
    evidence = evaluate(job_of([0.11] * 20 + [0.1] * 10 + [0.11] * 10), [window(2.21, 3.15)])
    assert evidence.goodput == pytest.approx(1.0)
    assert evidence.rank_seconds.slowed_by_faults_s == 0
    assert evidence.rank_seconds.good_s == pytest.approx(2 * 4.3)


def test_a_stall_costs_goodput_and_is_the_recovery():
    # 20 steps of 0.1 s, one that takes 3 s over a cut of 2 s, one slow one, 20 steps again.
    evidence = evaluate(job_of([0.1] * 20 + [3.0, 0.2] + [0.1] * 20), [window(2.05, 4.05)])
    (fault,) = evidence.faults
    assert fault.longest_gap_s == pytest.approx(3.0)
    assert fault.back_s == pytest.approx(5.3 - 2.05)
    assert fault.back_after_end_s == pytest.approx(5.3 - 4.05)
    assert fault.recovered is True
    assert evidence.median_step_s == pytest.approx(0.1)
    # 42 steps' worth of 0.1 s in 7.2 s of wall time: the slow step after the stall is the fault's cost as well.
    assert evidence.goodput == pytest.approx(4.2 / 7.2)


def test_the_stall_may_hit_the_step_after_the_one_in_progress():
    evidence = evaluate(job_of([0.1] * 20 + [0.1, 1.0] + [0.1] * 20), [window(2.05, 12.0)])
    assert evidence.faults[0].back_s == pytest.approx(3.2 - 2.05)


def test_a_fault_that_nothing_felt():
    evidence = evaluate(job_of([0.1] * 60), [window(2.05, 4.05)])
    assert evidence.faults[0].back_s == 0.0
    assert evidence.faults[0].longest_gap_s == pytest.approx(0.1)


def test_a_slow_step_long_after_the_fault_is_not_its_doing():
    evidence = evaluate(job_of([0.1] * 20 + [0.1] * 20 + [5.0] + [0.1] * 5), [window(1.05, 1.55)])
    assert evidence.faults[0].longest_gap_s == pytest.approx(0.1)


def test_a_gap_soon_after_a_fault_is_that_of_the_fault_that_stands_then():
    # The first ends at 2.55; the second begins at 2.65, and stalls the step from 2.6 to 5.6.
    first, second = window(2.05, 2.55), FaultWindow("f2", "cut", "south", ("south",), 2.65, 5.5)
    evidence = evaluate(job_of([0.1] * 26 + [3.0] + [0.1] * 30), [first, second])
    assert [fault.longest_gap_s for fault in evidence.faults] == pytest.approx([0.1, 3.0])
    assert [fault.back_s for fault in evidence.faults] == pytest.approx([0.0, 5.7 - 2.65])
    assert evidence.faults[0].back_after_end_s == 0.0


def test_faults_that_stand_at_once_have_their_gaps_in_common():
    first, second = window(2.05, 4.0), FaultWindow("f2", "cut", "south", ("south",), 2.15, 3.0)
    evidence = evaluate(job_of([0.1] * 21 + [3.0] + [0.1] * 30), [first, second])
    assert [fault.longest_gap_s for fault in evidence.faults] == pytest.approx([3.0, 3.0])


def test_a_fault_before_the_training_says_nothing_about_recovery():
    (fault,) = evaluate(job_of([0.1] * 20), [window(-9.0, -3.0)]).faults
    assert (fault.recovered, fault.longest_gap_s, fault.back_s) == (None, None, None)


def test_what_a_restart_cost_is_not_put_down_to_a_fault_after_which_the_job_went_on():
    """A harmless fault at 1.05, steps go on until 3.0, then a rank dies; the job goes on from step 10 at 6.0."""
    before = [step(i, 0.1 * (i - 1), 0.1 * i) for i in range(1, 31)]
    after = [replace(step(i, 6.0 + 0.1 * (i - 11), 6.0 + 0.1 * (i - 10)), attempt=2) for i in range(11, 41)]

    def both(index: int) -> RankLog:
        first = JobRecord(0.0, index, 2, f"n-{index}", "east", "ddp", 1, 1, 100)
        again = replace(first, t=5.9, attempt=2, resumed_from=10)
        return RankLog(index, (first, again), (*before, *after), ())

    harmless, kill = window(1.05, 1.15), FaultWindow("f2", "rank-kill", "1", (), 3.0, 3.001)
    evidence = evaluate([both(0), both(1)], [harmless, kill])
    assert evidence.steps_lost == 20
    assert [fault.longest_gap_s for fault in evidence.faults] == pytest.approx([0.1, 5.1])


def test_training_that_never_comes_back():
    logs = job_of([0.1] * 20)
    logs = [rank(log.rank, log.steps, ends=[EndRecord(32.0, "failed", "timeout", 20)]) for log in logs]
    evidence = evaluate(logs, [window(2.0, 12.0)])
    (fault,) = evidence.faults
    assert (fault.recovered, fault.back_s) == (False, None)
    assert fault.longest_gap_s == pytest.approx(30.0)
    assert evidence.wall_s == pytest.approx(32.0)
    assert evidence.failures == ("ranks 0, 1 failed at step 20: timeout",)


def test_an_unhealed_cut_that_stalls_is_found_even_if_one_more_step_came():
    logs = job_of([0.1] * 21)
    logs = [rank(log.rank, log.steps, ends=[EndRecord(32.1, "failed", "timeout", 21)]) for log in logs]
    (fault,) = evaluate(logs, [window(2.05, None)]).faults
    assert (fault.recovered, fault.longest_gap_s) == (False, pytest.approx(30.0))


@pytest.mark.parametrize(("planned", "status"), [(60, "ok"), (100, "stopped")])
def test_a_job_that_ends_during_a_fault_that_it_had_come_through(planned, status):
    ends = [EndRecord(6.1, status, "", 60)]
    logs = [rank(log.rank, log.steps, planned=planned, ends=ends) for log in job_of([0.1] * 60)]
    (fault,) = evaluate(logs, [window(2.05, None)], ended_t=9.0).faults
    assert (fault.recovered, fault.back_s) == (True, 0.0)


@pytest.mark.parametrize(("planned", "status", "recovered"), [(40, "ok", True), (100, "stopped", False)])
@pytest.mark.parametrize("until", [None, 9.0])
def test_a_job_with_all_its_steps_came_through_a_fault_that_outlasts_it(planned, status, recovered, until):
    """A straggler from the 20th step on: it is never back to its pace, but nothing is left to come back to."""
    steps = job_of([0.1] * 20 + [0.2] * 20)
    logs = [rank(log.rank, log.steps, planned=planned, ends=[EndRecord(6.1, status, "", 40)]) for log in steps]
    (fault,) = evaluate(logs, [window(2.05, until)], ended_t=9.5).faults
    assert (fault.recovered, fault.back_s, fault.gap_open) == (recovered, None, False)


def test_only_stalls_in_slow_steps_leave_open_whether_a_job_came_back():
    """The step in progress when the fault began is at the pace, and no later one is."""
    steps = job_of([0.1] * 21 + [0.2] * 20)
    logs = [rank(log.rank, log.steps, planned=100, ends=[EndRecord(6.1, "stopped", "", 41)]) for log in steps]
    job = evaluate(logs, [window(2.05, None)], ended_t=9.0)
    assert job.faults[0].recovered is False
    elsewhere, inside = Stall(0, 0.5, 0.03), Stall(0, 5.0, 0.2)
    assert of_faults(job, StallLog((elsewhere,), (), True)).faults[0].recovered is False
    assert of_faults(job, StallLog((elsewhere, inside), (), True)).faults[0].recovered is None


def test_a_fault_after_the_last_step_says_nothing_about_recovery():
    (fault,) = evaluate(job_of([0.1] * 20), [window(2.1, 2.2)], ended_t=2.3).faults
    assert (fault.recovered, fault.longest_gap_s) == (None, None)


def test_a_job_that_was_killed_lasts_until_it_was_seen_to_end():
    assert evaluate(job_of([0.1] * 20), [], ended_t=10.0).wall_s == pytest.approx(10.0)


def test_peer_wait_network_and_utilization():
    # Rank 0 is ready at 0.4 and waits for rank 1 until 0.6; both have their gradients at 0.9 and end at 1.0.
    logs = [rank(0, [step(1, 0, 1.0, ready=0.4, sync=0.9)]), rank(1, [step(1, 0, 1.0, ready=0.6, sync=0.9)])]
    first, second = evaluate(logs, []).rank_times
    assert (first.compute_s, first.peer_wait_s, first.network_s) == pytest.approx((0.5, 0.2, 0.3))
    assert (second.compute_s, second.peer_wait_s, second.network_s) == pytest.approx((0.7, 0.0, 0.3))
    assert evaluate(logs, []).compute_utilization == pytest.approx(1.2 / 2.0)


def test_peer_wait_is_at_most_what_was_exposed():
    logs = [rank(0, [step(1, 0, 1.0, ready=0.4, sync=0.5)]), rank(1, [step(1, 0, 1.0, ready=0.9, sync=0.95)])]
    assert evaluate(logs, []).rank_times[0].peer_wait_s == pytest.approx(0.1)


def test_train_loss_is_the_mean_of_ten_steps():
    rows = [step(i, i, i + 1, loss=float(i)) for i in range(1, 31)]
    evidence = evaluate([rank(0, rows), rank(1, rows)], [])
    assert (evidence.train_loss_first, evidence.train_loss_last) == (5.5, 25.5)


def test_a_short_job_has_no_step_in_both_means():
    for steps, first, last in ((1, 1.0, 1.0), (2, 1.0, 2.0), (5, 1.5, 4.5), (12, 3.5, 9.5)):
        rows = [step(i, i, i + 1, loss=float(i)) for i in range(1, steps + 1)]
        evidence = evaluate([rank(0, rows), rank(1, rows)], [])
        assert (evidence.train_loss_first, evidence.train_loss_last) == (first, last)


def test_nothing_is_invented_from_nothing():
    evidence = evaluate([], [window(1.0, 2.0)])
    assert evidence.goodput is evidence.wall_s is evidence.tokens_per_s is evidence.compute_utilization is None
    assert evidence.recovery_s is evidence.train_loss_first is evidence.median_step_s is None
    assert evidence.faults[0].recovered is None
