"""Goodput, utilization, and recovery from faults: against numbers worked out by hand, then properties of any job."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import durations, faults, rank, ranks, step, steps
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis.commits import commits
from testbed.core.analysis.cut_impact import impacts
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.analysis.noise.uncertainty import of_faults
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import EndRecord, RankLog
from testbed.core.records.stalls import Stall

# ---- recovery

STATES = {"recovered": (True, False), "slow": (False, False), "open": (False, True), "outside": (None, False)}
"""Whether a job recovered from a fault, and whether its longest gap is open; ``outside`` of the training."""


def recovery(text: str) -> tuple[list[float | None], str]:
    """Return the figures and the state in ``"3 3.25 - recovered"``; a dash stands for None."""
    *figures, state = text.split()
    return [None if it == "-" else float(it) for it in figures], state


# Of each fault: the longest gap, the time back since its beginning, the same since its end, and the state of recovery.
# ``fields``: arguments of evaluate, and the planned steps.
@table(
    "job, end, windows, fields, recoveries",
    {
        "a stall is the recovery": ("20*.1 3 .2 20*.1", "", "2.05..4.05", {}, "3 3.25 1.25 recovered"),
        "the step after the one in progress stalls": ("21*.1 1 20*.1", "", "2.05..12", {}, "1 1.15 0 recovered"),
        "nothing felt the fault": ("60*.1", "", "2.05..4.05", {}, "0.1 0 0 recovered"),
        "a slow step long after it is not its doing": ("40*.1 5 5*.1", "", "1.05..1.55", {}, "0.1 0 0 recovered"),
        "a gap soon after a fault is that of the fault that stands then": (
            "26*.1 3 30*.1", "", "2.05..2.55 2.65..5.5", {}, "0.1 0 0 recovered; 3 3.05 0.2 recovered",
        ),
        "faults that stand at once have their gaps in common": (
            "21*.1 3 30*.1", "", "2.05..4 2.15..3", {}, "3 3.15 1.2 recovered; 3 - - recovered",
        ),
        "a fault before the training": ("20*.1", "", "-9..-3", {}, "- - - outside"),
        "a fault after the last step": ("20*.1", "", "2.1..2.2", {"ended_t": 2.3}, "- - - outside"),
        "a fault after the last planned step": (
            "20*.1", "ok 2.1", "2.2..3", {"seen_t": 9, "planned": 20}, "- - - outside",
        ),
        "training never comes back": ("20*.1", "failed 32", "2..12", {}, "30 - - open"),
        "one more step comes before an unhealed cut stalls": ("21*.1", "failed 32.1", "2.05..", {}, "30 - - open"),
        "a job that dies leaves a gap as long as it was observed": (
            "20*.1", "failed 10.2", "2.05..", {"seen_t": 43.2}, "41.2 - - open",
        ),
        "a death within a step of the fault is inside the training": (
            "20*.1", "failed 2.12", "2.1..", {"seen_t": 5}, "3 - - open",
        ),
        "ranks that record no end died if the run says that the job failed": (
            "20*.1", "", "2.1..", {"ended_t": 2.2, "seen_t": 9, "failed": True}, "7 - - open",
        ),
        "else it is a plain stop": ("20*.1", "", "2.1..", {"ended_t": 2.2, "seen_t": 9}, "- - - outside"),
        "a death long after a fault is not of that fault": (
            "60*.1", "failed 6.1", "2.05..2.5", {"seen_t": 60}, "0.1 0 0 recovered",
        ),
        "a fault after the death": ("20*.1", "failed 4", "2.05.. 5..6", {"seen_t": 9}, "7 - - open; - - - outside"),
        "an orderly stop during a fault that the job recovered from": (
            "60*.1", "stopped 6.1", "2.05..", {"seen_t": 60}, "0.1 0 - recovered",
        ),
        "the same with an earlier end of the run": (
            "60*.1", "stopped 6.1", "2.05..", {"ended_t": 9, "planned": 100}, "0.1 0 - recovered",
        ),
        "the last planned step during a fault that the job recovered from": (
            "60*.1", "ok 6.1", "2.05..", {"ended_t": 9, "planned": 60}, "0.1 0 - recovered",
        ),
        # A straggler from the 20th step on: never back to its pace.
        "all steps of a straggler leave nothing to come back to": (
            "20*.1 20*.2", "ok 6.1", "2.05..", {"ended_t": 9.5, "planned": 40}, "0.2 - - recovered",
        ),
        "nor if its fault ends after that": (
            "20*.1 20*.2", "ok 6.1", "2.05..9", {"ended_t": 9.5, "planned": 40}, "0.2 - 0 recovered",
        ),
        "a straggler that is stopped has not recovered": (
            "20*.1 20*.2", "stopped 6.1", "2.05..", {"ended_t": 9.5}, "0.2 - - slow",
        ),
        "nor if its fault ends after the stop": (
            "20*.1 20*.2", "stopped 6.1", "2.05..9", {"ended_t": 9.5}, "0.2 - 0 slow",
        ),
        "a stop within five steps of the last one is none of a stalled job": (
            "20*.1", "stopped 2.49", "1.95..", {}, "0.1 0 - recovered",
        ),
        "a job that is stopped five steps after its last one had stalled": (
            "20*.1", "stopped 2.51", "1.95..", {}, "0.51 - - open",
        ),
        "the time back is not that of a later fault": (
            "20*.1 .5 15*.15 5 20*.1", "ok 12", "2.05..2.45 4.8..9", {"planned": 57},
            "0.5 - - recovered; 5 5.05 0.85 recovered",
        ),
        "the time back is unknown once another fault has begun that still stands": (
            "20*.1 .5 15*.15 40*.1", "ok 8.9", "2.05..2.45 4..", {"planned": 76},
            "0.5 - - recovered; 0.15 0.85 - recovered",
        ),
        "without it the time back is measured": (
            "20*.1 .5 15*.15 40*.1", "ok 8.9", "2.05..2.45", {"planned": 76}, "0.5 2.8 2.4 recovered",
        ),
        "a fault that ends as it begins is no other fault to itself": (
            "20*.1 3 20*.1", "ok 7", "2.05..2.05", {"planned": 41}, "3 3.05 3.05 recovered",
        ),
        "faults that end together have the same time back": (
            "20*.1 3 20*.1", "ok 8", "2.05..4 2.06..4.002", {"planned": 41},
            "3 3.05 1.1 recovered; 3 3.04 1.098 recovered",
        ),
        "no time back of its own while another fault keeps training down": (
            "20*.1 6 20*.1", "ok 11", "2.05..4 2.06..7.8", {"planned": 41},
            "6 - - recovered; 6 6.04 0.3 recovered",
        ),
    },
)  # fmt: skip
def test_evaluate_recovery(job, end, windows, fields, recoveries) -> None:
    observed = {"planned": 1000, **fields}
    logs = ranks(job, end, planned=observed.pop("planned"))
    evidence = evaluate(logs, faults(windows), **observed)
    expected = [recovery(text) for text in recoveries.split("; ")]
    for fault, (seconds, state) in zip(evidence.faults, expected, strict=True):
        figures = [fault.longest_gap_s, fault.back_s, fault.back_after_end_s]
        assert figures == pytest.approx(seconds, abs=1e-9)
        assert (fault.recovered, fault.gap_open) == STATES[state]
    gaps = [seconds[0] for seconds, _ in expected]
    assert evidence.recovery_s == pytest.approx(max((gap for gap in gaps if gap is not None), default=None))
    assert evidence.recovery_open is any(state == "open" for _, state in expected)
    assert evidence.died is (fields.get("failed", False) or end.startswith("failed"))
    # Training ended there, and so does goodput's wall time.
    ended_t = float(end.split()[1]) if end else fields.get("ended_t", 0.0)
    assert evidence.wall_s == pytest.approx(max(ended_t, evidence.commits[-1].t))


@pytest.mark.parametrize("seen_t", [4.0, 4.9, 5.5, 60.0])
def test_evaluate_open_gap_is_not_decided_by_a_fault_after_the_death(seen_t) -> None:
    """A fault that ended two steps before the last one is the only one near, also if another began after the death."""
    first, second = evaluate(ranks("20*.1", "failed 4"), faults("1.5..1.85 5..6"), seen_t=seen_t).faults
    assert (first.gap_open, first.recovered, second.gap_open) == (True, False, False)


@pytest.mark.parametrize("count", range(5, 40))
def test_evaluate_open_gap_does_not_depend_on_how_long_it_was_seen(count) -> None:
    last_t = steps(f"{count}*.1")[-1].t_end
    dead = ranks(f"{count}*.1", f"failed {last_t + 0.01}")
    for edge_t in (last_t, last_t - 0.3):
        for ended_t in (math.nextafter(edge_t, 0.0), edge_t, math.nextafter(edge_t, math.inf)):
            windows = [FaultWindow("a", "cut", "a", ("a",), ended_t - 0.2, ended_t)]
            seen = [last_t + 0.01 + longer_s for longer_s in (0.0, 0.37, 1.0, 2.0, 40.0)]
            assert len({evaluate(dead, windows, seen_t=t).faults[0].gap_open for t in seen}) == 1


def restarted(seconds: str, again: str, begin: float, resumed: int, ends=(), world: int = 2) -> list[RankLog]:
    """A second attempt continues after step ``resumed`` at time ``begin``."""
    done = (*steps(seconds), *steps(again, resumed + 1, begin, attempt=2))
    logs = [rank(index, done, world=world, planned=40) for index in range(world)]
    second: Any = {"t": begin - 0.1, "attempt": 2, "resumed_from": resumed}
    return [replace(log, jobs=(*log.jobs, replace(log.jobs[0], **second)), ends=ends) for log in logs]


def test_evaluate_restart_closes_the_gap() -> None:
    ends = (EndRecord(3.0, "failed", "timeout", 20), EndRecord(8.6, "ok", "", 40, attempt=2))
    evidence = evaluate(restarted("20*.1", "25*.1", 6.0, 15, ends, world=1), faults("2.05..2.9"), seen_t=99.0)
    assert (evidence.died, evidence.faults[0].gap_open, evidence.faults[0].recovered) == (False, False, True)


def test_evaluate_does_not_put_a_restart_down_to_a_fault_after_which_the_job_went_on() -> None:
    """A harmless fault at 1.05, steps go on until 3.0, then a rank dies; the job goes on from step 10 at 6.0."""
    evidence = evaluate(restarted("30*.1", "30*.1", 6.0, 10), faults("1.05..1.15 3.0..3.001"))
    assert evidence.steps_lost == 20
    assert [fault.longest_gap_s for fault in evidence.faults] == pytest.approx([0.1, 5.1])


def test_of_faults_leaves_recovery_open_only_for_stalls_in_slow_steps() -> None:
    """The step in progress when the fault began is at the pace, and no later one is."""
    job = evaluate(ranks("21*.1 20*.2", "stopped 6.1", planned=100), faults("2.05.."), ended_t=9.0)
    assert job.faults[0].recovered is False
    elsewhere, inside = Stall(0, 0.5, 0.03), Stall(0, 5.0, 0.2)
    assert of_faults(job, StallLog((elsewhere,), (), True)).faults[0].recovered is False
    assert of_faults(job, StallLog((elsewhere, inside), (), True)).faults[0].recovered is None


def test_impacts_of_a_cut_that_ends_the_job_are_no_closed_gap() -> None:
    (impact,) = impacts(ranks("20*.1", "failed 4"), faults("2.05..3"), 9.0)
    assert (impact.gap_open, impact.came_back, impact.longest_gap_s) == (True, False, pytest.approx(7.0))


# ---- commits, goodput, utilization, loss


def test_commits_have_the_latest_end_of_all_ranks() -> None:
    (commit,) = commits([rank(0, [step(1, 0, 1.0)]), rank(1, [step(1, 0.25, 1.5, loss=3.0)])], 2)
    assert (commit.t, commit.duration_s, commit.tokens, commit.train_loss) == (1.5, 1.5, 20, 2.0)


def test_evaluate_step_that_one_rank_did_not_finish_is_lost() -> None:
    evidence = evaluate([rank(0, steps("1 1")), rank(1, steps("1"))], [])
    assert ([commit.step for commit in evidence.commits], evidence.steps_lost, evidence.tokens) == ([1], 1, 20)


def test_evaluate_step_run_again_after_a_restart_counts_once_as_it_was_run_last() -> None:
    rows = [*steps("1 1"), *steps("1 1", 2, 5)]
    evidence = evaluate([rank(0, rows), rank(1, rows)], [])
    assert [(commit.step, commit.t) for commit in evidence.commits] == [(1, 1), (2, 6), (3, 7)]
    assert (evidence.steps_lost, evidence.tokens, evidence.wall_s) == (1, 60, 7)


@table(
    "seconds, windows, goodput, slowed_s, good_s",
    {
        "without a fault all is good": ("50*.1", "", 1.0, 0.0, 10.0),
        # 42 steps' worth of 0.1 s in 7.2 s: the slow step after the stall is the fault's cost as well.
        "a stall costs goodput": ("20*.1 3 .2 20*.1", "2.05..4.05", 4.2 / 7.2, 6.0, 8.4),
        # A step's time counts once, at most as it was, and the pace of 0.11 s makes them no more than that.
        "the steps during a fault were the quicker ones": ("20*.11 10*.1 10*.11", "2.21..3.15", 1.0, 0.0, 8.6),
    },
)
def test_evaluate_goodput(seconds, windows, goodput, slowed_s, good_s) -> None:
    evidence = evaluate(ranks(seconds), faults(windows))
    classes = evidence.rank_seconds
    assert (evidence.goodput, classes.good_s) == pytest.approx((goodput, good_s))
    assert classes.slowed_by_faults_s == (pytest.approx(slowed_s) if slowed_s else 0)
    assert evidence.median_step_s == pytest.approx(durations(seconds)[0])
    if not windows:
        assert (evidence.recovery_s, evidence.faults) == (None, ())


def test_evaluate_goodput_is_never_above_one_by_rounding() -> None:
    assert max(evaluate(ranks(f"{count}*.1"), []).goodput for count in range(5, 20)) == 1.0


def test_evaluate_failures_of_several_ranks_are_one_sentence() -> None:
    assert evaluate(ranks("20*.1", "failed 32"), []).failures == ("ranks 0, 1 failed at step 20: timeout",)


def test_evaluate_job_that_was_killed_lasts_until_it_was_seen_to_end() -> None:
    assert evaluate(ranks("20*.1"), [], ended_t=10.0).wall_s == pytest.approx(10.0)


@table(
    "ready, sync, waits, network, utilization",
    {
        # Rank 0 is ready at 0.4 and waits for rank 1 until 0.6; both have their gradients at 0.9 and end at 1.0.
        "a rank waits for its peer, then both for the network": (
            (0.4, 0.6), (0.9, 0.9), (0.2, 0.0), (0.3, 0.3), 1.2 / 2.0,
        ),
        "a wait is at most what was exposed": ((0.4, 0.9), (0.5, 0.95), (0.1, 0.0), (0.0, 0.05), 1.85 / 2.0),
    },
)  # fmt: skip
def test_evaluate_peer_wait_network_and_utilization(ready, sync, waits, network, utilization) -> None:
    logs = [rank(index, [step(1, 0, 1.0, ready=ready[index], sync=sync[index])]) for index in range(2)]
    evidence = evaluate(logs, [])
    assert [times.peer_wait_s for times in evidence.rank_times] == pytest.approx(waits)
    assert [times.network_s for times in evidence.rank_times] == pytest.approx(network)
    computed = [1.0 - end + begin for begin, end in zip(ready, sync, strict=True)]
    assert [times.compute_s for times in evidence.rank_times] == pytest.approx(computed)
    assert evidence.compute_utilization == pytest.approx(utilization)


@pytest.mark.parametrize(
    ("count", "first", "last"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (5, 1.5, 4.5), (12, 3.5, 9.5), (30, 5.5, 25.5)]
)
def test_evaluate_train_loss_is_the_mean_of_ten_steps_and_no_step_is_in_both_means(count, first, last) -> None:
    rows = [step(number, number, number + 1, loss=float(number)) for number in range(1, count + 1)]
    evidence = evaluate([rank(0, rows), rank(1, rows)], [])
    assert (evidence.train_loss_first, evidence.train_loss_last) == (first, last)


def test_evaluate_without_records_has_no_figures() -> None:
    evidence = evaluate([], faults("1..2"))
    assert evidence.goodput is evidence.wall_s is evidence.tokens_per_s is evidence.compute_utilization is None
    assert evidence.recovery_s is evidence.train_loss_first is evidence.median_step_s is None
    assert evidence.faults[0].recovered is None


# ---- of any job: the oracle is the definition, by brute force on its own list of times


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[float], str, float, list[FaultWindow], float]:
    slow = st.lists(st.sampled_from([0.1, 0.1, 0.1, 0.15, 0.7, 3.0]), min_size=1, max_size=40)
    seconds = [0.1] * draw(st.integers(5, 20)) + draw(slow)
    status = draw(st.sampled_from(["ok", "failed", "stopped"]))
    ended_t = sum(seconds) + draw(st.sampled_from([0.01, 0.3, 2.0, 9.0]))
    windows: list[FaultWindow] = []
    for t in sorted(draw(st.lists(st.floats(0.0, sum(seconds) + 12.0, allow_nan=False), max_size=5))):
        length_s = draw(st.none() | st.sampled_from([0.05, 0.5, 3.0, 20.0]))
        name = f"f{len(windows)}"
        windows.append(FaultWindow(name, "cut", name, (name,), t, None if length_s is None else t + length_s))
    return seconds, status, ended_t, windows, ended_t + draw(st.sampled_from([0.0, 1.0, 40.0]))


def evidence_of(job, longer_s: float = 0.0) -> JobEvidence:
    seconds, status, ended_t, windows, seen_t = job
    planned = len(seconds) if status == "ok" else 1000
    return evaluate(ranks(seconds, f"{status} {ended_t!r}", planned=planned), windows, seen_t=seen_t + longer_s)


@settings(max_examples=400)
@given(jobs())
def test_evaluate_gaps_and_recoveries_of_any_job(job) -> None:
    """An open gap is at least as long as was seen, and never recovered. A fault that stands when the job dies is never
    recovered. No fault after the end of training is measured. A time back ends before any later fault begins.
    """
    seconds, status, ended_t, windows, seen_t = job
    last_t = sum(seconds)
    for window, fault in zip(windows, evidence_of(job).faults, strict=True):
        if fault.gap_open:
            assert fault.longest_gap_s >= (seen_t if status == "failed" else ended_t) - last_t - 1e-9
            assert (fault.recovered, fault.back_s, fault.back_after_end_s) == (False, None, None)
            assert status != "ok"
        else:
            assert fault.recovered is not False or fault.back_s is None
        if status == "failed" and window.began_t <= ended_t and (window.ended_t is None or window.ended_t > last_t):
            assert (fault.recovered, fault.gap_open) == (False, True)
        if window.began_t > ended_t:
            assert (fault.recovered, fault.longest_gap_s, fault.gap_open) == (None, None, False)
        if window.ended_t is not None and fault.back_after_end_s:
            later_t = min((other.began_t for other in windows if other.began_t > window.ended_t), default=math.inf)
            assert window.ended_t + fault.back_after_end_s <= later_t + 1e-9


@settings(max_examples=300)
@given(jobs(), st.floats(0.1, 100.0))
def test_evaluate_of_a_dead_job_that_is_observed_for_longer_only_lengthens_its_open_gaps(job, longer_s) -> None:
    before, after = evidence_of(job), evidence_of(job, longer_s)
    assert after.goodput == before.goodput
    for fault, longer in zip(before.faults, after.faults, strict=True):
        assert fault.gap_open == longer.gap_open
        assert longer.longest_gap_s >= fault.longest_gap_s if fault.gap_open else longer == fault
