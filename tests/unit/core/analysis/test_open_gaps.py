"""Gaps between commits that no step ended, and whose aftermath is whose: by hand, then properties of any job."""

from __future__ import annotations

import dataclasses
import math
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis.cut_impact import impacts
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord

PACE_S = 0.1


def fault(name: str, began_t: float, ended_t: float | None) -> FaultWindow:
    return FaultWindow(name, "cut", name, (name,), began_t, ended_t)


def job(durations: list[float], status: str, ended_t: float, planned: int = 1000, ranks: int = 2) -> list[RankLog]:
    """A job whose ranks take steps of these durations together from time 0, and end at ``ended_t``."""
    times = [0.0]
    for duration in durations:
        times.append(times[-1] + duration)
    steps = tuple(
        StepRecord(number, begin, (begin + end) / 2, end, end, 10, 1.0)
        for number, (begin, end) in enumerate(pairwise(times), 1)
    )
    ends = (EndRecord(ended_t, status, "", len(steps)),) if status else ()
    return [
        RankLog(rank, (JobRecord(0.0, rank, ranks, f"n-{rank}", "east", "ddp", 1, 1, planned),), steps, ends)
        for rank in range(ranks)
    ]


# ---- by hand


def test_a_job_that_dies_soon_after_its_last_step_leaves_a_gap_as_long_as_it_was_observed():
    # 20 steps to 2.0, a fault at 2.05, all ranks fail at 10.2; the run is observed until 43.2.
    found = evaluate(job([PACE_S] * 20, "failed", 10.2), [fault("a", 2.05, None)], seen_t=43.2)
    (told,) = found.faults
    assert told.gap_open
    assert told.longest_gap_s == pytest.approx(41.2)
    assert (told.recovered, told.back_s, told.back_after_end_s) == (False, None, None)
    assert found.recovery_open
    assert found.died
    assert found.wall_s == pytest.approx(10.2), "training ended there, and so does goodput's wall time"


def test_a_death_within_a_step_of_the_fault_is_no_fault_outside_the_training():
    (told,) = evaluate(job([PACE_S] * 20, "failed", 2.12), [fault("a", 2.1, None)], seen_t=5.0).faults
    assert (told.recovered, told.gap_open) == (False, True)
    assert told.longest_gap_s == pytest.approx(3.0)


def test_ranks_that_record_no_end_died_where_the_run_says_that_the_job_failed():
    logs = job([PACE_S] * 20, "", 0.0)
    windows = [fault("a", 2.1, None)]
    assert evaluate(logs, windows, 2.2, seen_t=9.0, failed=True).faults[0].longest_gap_s == pytest.approx(7.0)
    assert evaluate(logs, windows, 2.2, seen_t=9.0).faults[0].recovered is None, "a plain stop, as far as is known"


@pytest.mark.parametrize("steps", range(5, 40))
def test_whose_an_open_gap_is_does_not_depend_on_how_long_it_was_seen(steps):
    *_, last_t = accumulate([PACE_S] * steps, initial=0.0)
    dead = job([PACE_S] * steps, "failed", last_t + 0.01)
    for edge_t in (last_t, last_t - 3 * PACE_S):
        for ended_t in (math.nextafter(edge_t, 0.0), edge_t, math.nextafter(edge_t, math.inf)):
            windows = [fault("a", ended_t - 0.2, ended_t)]
            seen = [last_t + 0.01 + more_s for more_s in (0.0, 0.37, 1.0, 2.0, 40.0)]
            assert len({evaluate(dead, windows, seen_t=t).faults[0].gap_open for t in seen}) == 1


def test_an_orderly_stop_during_a_fault_that_was_come_through_leaves_no_gap():
    (told,) = evaluate(job([PACE_S] * 60, "stopped", 6.1), [fault("a", 2.05, None)], seen_t=60.0).faults
    assert (told.recovered, told.gap_open) == (True, False)


def test_a_death_long_after_a_fault_is_not_of_that_fault():
    found = evaluate(job([PACE_S] * 60, "failed", 6.1), [fault("a", 2.05, 2.5)], seen_t=60.0)
    assert (found.faults[0].recovered, found.faults[0].gap_open) == (True, False)
    assert found.faults[0].longest_gap_s == pytest.approx(PACE_S)
    assert not found.recovery_open


def test_a_fault_after_the_death_is_outside_the_training():
    first, second = evaluate(
        job([PACE_S] * 20, "failed", 4.0), [fault("a", 2.05, None), fault("b", 5.0, 6.0)], seen_t=9.0
    ).faults
    assert first.gap_open
    assert (second.recovered, second.gap_open, second.longest_gap_s) == (None, False, None)


@pytest.mark.parametrize("seen_t", [4.0, 4.9, 5.5, 60.0])
def test_a_fault_after_the_death_does_not_decide_whose_the_open_gap_is(seen_t):
    """A fault that ended two steps before the last one is the only one near, also if another began after the death."""
    windows = [fault("a", 1.5, 1.85), fault("b", 5.0, 6.0)]
    first, second = evaluate(job([PACE_S] * 20, "failed", 4.0), windows, seen_t=seen_t).faults
    assert (first.gap_open, first.recovered) == (True, False)
    assert second.gap_open is False


def test_a_fault_after_the_last_planned_step_is_outside_the_training():
    (told,) = evaluate(job([PACE_S] * 20, "ok", 2.1, planned=20), [fault("a", 2.2, 3.0)], seen_t=9.0).faults
    assert (told.recovered, told.gap_open, told.longest_gap_s) == (None, False, None)


def test_a_restart_closes_the_gap():
    before = [StepRecord(n, PACE_S * (n - 1), PACE_S * n, PACE_S * n, PACE_S * n, 10, 1.0) for n in range(1, 21)]
    again = [StepRecord(n, 6 + PACE_S * (n - 16), 6 + PACE_S * (n - 15), 6 + PACE_S * (n - 15), 6 + PACE_S * (n - 15),
                        10, 1.0, attempt=2) for n in range(16, 41)]  # fmt: skip
    first = JobRecord(0.0, 0, 1, "n-0", "east", "ddp", 1, 1, 40)
    second = dataclasses.replace(first, t=5.8, attempt=2, resumed_from=15)
    ends = (EndRecord(3.0, "failed", "timeout", 20), EndRecord(8.6, "ok", "", 40, attempt=2))
    log = RankLog(0, (first, second), (*before, *again), ends)
    found = evaluate([log], [fault("a", 2.05, 2.9)], seen_t=99.0)
    assert not found.died
    assert (found.faults[0].gap_open, found.faults[0].recovered) == (False, True)


def test_the_time_back_after_an_end_is_not_that_of_a_later_fault():
    # The first ends at 2.55; steps stay at 0.15 s until the second stalls one from 4.8 to 9.8.
    durations = [PACE_S] * 20 + [0.5] + [0.15] * 15 + [5.0] + [PACE_S] * 20
    first, second = evaluate(
        job(durations, "ok", 12.0, planned=len(durations)), [fault("a", 2.05, 2.45), fault("b", 4.8, 9.0)]
    ).faults
    assert first.back_after_end_s is None, "it was not back when the second began"
    assert first.back_s is None
    assert first.recovered is True
    assert second.back_after_end_s == pytest.approx(0.85)


def test_the_time_back_after_an_end_is_unknown_once_another_fault_has_begun_even_if_that_one_still_stands():
    # Back to its pace at 4.85 s, when the second has stood since 4 s.
    durations = [PACE_S] * 20 + [0.5] + [0.15] * 15 + [PACE_S] * 40
    windows = [fault("a", 2.05, 2.45), fault("b", 4.0, None)]
    first, _ = evaluate(job(durations, "ok", 8.9, planned=len(durations)), windows).faults
    assert first.back_after_end_s is None
    (alone,) = evaluate(job(durations, "ok", 8.9, planned=len(durations)), windows[:1]).faults
    assert alone.back_after_end_s == pytest.approx(2.4)


def test_a_fault_that_ends_as_it_begins_is_no_other_fault_to_itself():
    durations = [PACE_S] * 20 + [3.0] + [PACE_S] * 20
    (told,) = evaluate(job(durations, "ok", 7.0, planned=41), [fault("a", 2.05, 2.05)]).faults
    assert told.back_after_end_s == pytest.approx(3.05)


@pytest.mark.parametrize(("silent_steps", "stalled"), [(4.9, False), (5.1, True)])
def test_a_job_that_is_stopped_five_steps_after_its_last_one_had_stalled(silent_steps, stalled):
    ended_t = 2.0 + silent_steps * PACE_S
    (told,) = evaluate(job([PACE_S] * 20, "stopped", ended_t), [fault("a", 1.95, None)]).faults
    assert (told.gap_open, told.recovered) == (stalled, not stalled)


def test_faults_that_end_together_have_the_same_time_back():
    durations = [PACE_S] * 20 + [3.0] + [PACE_S] * 20
    windows = [fault("a", 2.05, 4.0), fault("b", 2.06, 4.002)]
    first, second = evaluate(job(durations, "ok", 8.0, planned=41), windows).faults
    assert first.back_after_end_s == pytest.approx(1.1)
    assert second.back_after_end_s == pytest.approx(1.098)


def test_a_fault_that_ends_while_another_keeps_training_down_has_no_time_back_of_its_own():
    durations = [PACE_S] * 20 + [6.0] + [PACE_S] * 20
    first, second = evaluate(
        job(durations, "ok", 11.0, planned=41), [fault("a", 2.05, 4.0), fault("b", 2.06, 7.8)]
    ).faults
    assert (first.back_after_end_s, first.recovered) == (None, True)
    assert second.back_after_end_s == pytest.approx(0.3)


def test_a_cut_that_ends_the_audit_s_job_is_never_a_closed_gap():
    (told,) = impacts(job([PACE_S] * 20, "failed", 4.0), [fault("a", 2.05, 3.0)], 9.0)
    assert (told.gap_open, told.came_back) == (True, False)
    assert told.longest_gap_s == pytest.approx(7.0)


# ---- of any job: the oracle is the definition, by brute force on its own list of times

DURATIONS = st.lists(st.sampled_from([PACE_S, PACE_S, PACE_S, 0.15, 0.7, 3.0]), min_size=1, max_size=40)


@st.composite
def jobs(draw) -> tuple[list[float], str, float, int, list[FaultWindow], float]:
    durations = [PACE_S] * draw(st.integers(5, 20)) + draw(DURATIONS)
    last_t = sum(durations)
    status = draw(st.sampled_from(["ok", "failed", "stopped"]))
    ended_t = last_t + draw(st.sampled_from([0.01, 0.3, 2.0, 9.0]))
    planned = len(durations) if status == "ok" else 1000
    began = draw(st.lists(st.floats(0.0, last_t + 12.0, allow_nan=False), max_size=5))
    windows = []
    for number, t in enumerate(sorted(began)):
        lasts = draw(st.none() | st.sampled_from([0.05, 0.5, 3.0, 20.0]))
        windows.append(fault(f"f{number}", t, None if lasts is None else t + lasts))
    return durations, status, ended_t, planned, windows, ended_t + draw(st.sampled_from([0.0, 1.0, 40.0]))


def evidence(case) -> JobEvidence:
    durations, status, ended_t, planned, windows, seen_t = case
    return evaluate(job(durations, status, ended_t, planned), windows, seen_t=seen_t)


@settings(max_examples=400, deadline=None)
@given(jobs())
def test_gaps_and_recoveries_of_any_job(case):
    """An open gap is at least as long as was seen, and never recovered. A fault that stands when the job dies is never
    recovered. No fault after the end of training is measured. A time back ends before any later fault begins.
    """
    durations, status, ended_t, _, windows, seen_t = case
    last_t = sum(durations)
    for window, told in zip(windows, evidence(case).faults, strict=True):
        if told.gap_open:
            seen_s = (seen_t if status == "failed" else ended_t) - last_t
            assert told.longest_gap_s >= seen_s - 1e-9
            assert told.recovered is False
            assert told.back_s is told.back_after_end_s is None
            assert status != "ok"
        else:
            assert told.recovered is not False or told.back_s is None
        if status == "failed" and window.began_t <= ended_t and (window.ended_t is None or window.ended_t > last_t):
            assert (told.recovered, told.gap_open) == (False, True)
        if window.began_t > ended_t:
            assert (told.recovered, told.longest_gap_s, told.gap_open) == (None, None, False)
        if window.ended_t is not None and told.back_after_end_s is not None:
            later = min((other.began_t for other in windows if other.began_t > window.ended_t), default=math.inf)
            if told.back_after_end_s > 0:
                assert window.ended_t + told.back_after_end_s <= later + 1e-9


@settings(max_examples=300, deadline=None)
@given(jobs(), st.floats(0.1, 100.0))
def test_observing_a_dead_job_for_longer_only_lengthens_its_open_gaps(case, more_s):
    durations, status, ended_t, planned, windows, seen_t = case
    before = evidence(case)
    after = evaluate(job(durations, status, ended_t, planned), windows, seen_t=seen_t + more_s)
    assert after.goodput == before.goodput
    for one, other in zip(before.faults, after.faults, strict=True):
        assert one.gap_open == other.gap_open
        if one.gap_open:
            assert other.longest_gap_s >= one.longest_gap_s
        else:
            assert dataclasses.replace(other, window=one.window) == one
