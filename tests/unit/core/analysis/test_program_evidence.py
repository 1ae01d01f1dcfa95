"""The figures of a launched program from the steps that its ranks print, against oracles that share no code with them.

The oracles look at all times at once, where the testbed merges records one after the other.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import pytest
from builders.tables import table
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from testbed.core.analysis.program_evidence import ProgramEvidence, evaluate
from testbed.core.analysis.program_steps import ProgressMerge, merged, printing_ranks
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.progress_record import ProgressRecord
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_info import RunInfo

Prints = Sequence[tuple[float, int]]


def log(rank: int, prints: Prints, tokens_per_step: float | None = None) -> RankLog:
    def tokens(step: int, last: int | None) -> float | None:
        return None if last is None or tokens_per_step is None or step <= last else tokens_per_step * (step - last)

    before = [None, *(step for _, step in prints)]
    records = (ProgressRecord(t, step, tokens(step, last)) for (t, step), last in zip(prints, before, strict=False))
    return RankLog(rank, progress=tuple(records))


def logs_of(ranks: Sequence[Prints]) -> list[RankLog]:
    return [log(rank, prints) for rank, prints in enumerate(ranks)]


def counted_steps(ranks: Sequence[Prints], ended: dict[int, float] | None = None) -> list[tuple[int, float]]:
    return [(step.step, step.t) for step in merged(logs_of(ranks), ended or {})[1]]


def each_tenth(begin: float, first: int, last: int, every: int = 1) -> Prints:
    """Prints of a program with steps of 0.1 s that ends step ``first`` at ``begin``."""
    return [(begin + 0.1 * (step - first), step) for step in range(first, last + 1, every)]


def info(world: int, began_t: float, ended_t: float, statuses: Sequence[int | None] | None = None) -> RunInfo:
    workload = {
        **{"command": "x", "statuses": list(statuses or [0] * world)},
        **{"began_t": [began_t] * world, "ended_t": [ended_t] * world},
    }
    return RunInfo(status="finished", started_t=began_t, ended_t=ended_t, workload=workload)


def job_of(
    durations: Sequence[float], every: int = 1, world: int = 2, cut=None, statuses=None, closing=0.5
) -> ProgramEvidence:
    """All ranks in lockstep: step i ends at 10 + the sum of the first i durations; every ``every``-th is printed."""
    ends = [10.0 + it for it in itertools.accumulate(durations, initial=0.0)]
    prints = [(ends[step], step) for step in range(0, len(ends), every)]
    windows = [FaultWindow("f1", "cut", "north", ("north",), *cut)] if cut else []
    logs = [log(rank, prints, 100.0) for rank in range(world)]
    return evaluate(logs, info(world, 0.0, ends[-1] + closing, statuses), windows)


# ---- when a step counts


@st.composite
def prints_of_ranks(draw) -> list[Prints]:
    """Some ranks, each with rising steps at rising times; they may print different steps, or one step alone."""
    found: list[Prints] = []
    for _ in range(draw(st.integers(1, 4))):
        gaps = draw(st.lists(st.tuples(st.floats(0.001, 3.0), st.integers(1, 7)), max_size=12))
        begin = draw(st.floats(0.0, 5.0))
        times = itertools.accumulate((gap for gap, _ in gaps), initial=begin)
        steps = itertools.accumulate((step for _, step in gaps), initial=draw(st.integers(0, 5)))
        found.append(list(zip(times, steps, strict=True)) if draw(st.booleans()) or gaps else [])
    times_of_all = [t for prints in found for t, _ in prints]
    assume(len(set(times_of_all)) == len(times_of_all))
    return found


def counted_by_definition(ranks: list[Prints]) -> list[tuple[int, float]]:
    """Return (step, when every rank that prints steps had printed it or a later one), for each new such step."""
    most = max((len({step for _, step in each}) for each in ranks), default=0)
    printing = [each for each in ranks if len({step for _, step in each}) >= max(1, min(2, most))]
    if not printing:
        return []
    found: dict[int, float] = {}
    for t in sorted(t for each in printing for t, _ in each):
        reached = [max((step for at, step in each if at <= t), default=None) for each in printing]
        if None not in reached:
            found.setdefault(min(reached), t)
    return sorted(found.items())


@settings(max_examples=40)
@given(prints_of_ranks())
def test_merged_step_counts_when_every_rank_that_prints_steps_has_printed_it(ranks):
    assert counted_steps(ranks) == counted_by_definition(ranks)


@settings(max_examples=40)
@given(prints_of_ranks(), st.randoms(use_true_random=False))
def test_merged_line_printed_again_changes_nothing(ranks, chance):
    twice = [
        [(t + extra, step) for t, step in prints for extra in ((0.0, 0.0001) if chance.random() < 0.5 else (0.0,))]
        for prints in ranks
    ]
    once, again = (merged(logs_of(prints), {})[1] for prints in (ranks, twice))
    assert [(it.step, it.t, it.steps) for it in again] == [(it.step, it.t, it.steps) for it in once]


def test_merged_rank_whose_process_has_ended_holds_nothing_back():
    ranks = [(1, 1), (2, 2), (3, 3), (4, 4)], [(1.5, 1), (2.5, 2)]
    assert [step for step, _ in counted_steps(ranks)] == [1, 2]
    assert counted_steps(ranks, {1: 3.5}) == [(1, 1.5), (2, 2.5), (3, 3.5), (4, 4)]


def test_merged_line_of_one_process_that_comes_one_print_late_is_no_restart():
    merge, counted = merged([log(0, list(enumerate([1, 2, 1, 2, 3, 2, 3, 4, 3, 4])))], {})
    assert (merge.attempt, [it.step for it in counted]) == (1, [1, 2, 3, 4])


def test_merged_loss_of_a_later_line_about_the_same_step_counts_with_the_time_of_the_first():
    records = tuple(ProgressRecord(*fields) for fields in ((1.0, 1), (2.0, 2), (2.1, 2, None, 3.5), (3.0, 3)))
    counted = merged([RankLog(0, progress=records)], {})[1]
    assert [(it.step, it.t, it.train_loss) for it in counted] == [(1, 1.0, None), (2, 2.0, 3.5), (3, 3.0, 3.5)]


@settings(max_examples=40)
@given(prints_of_ranks())
def test_progress_merge_of_a_running_job_counts_what_the_finished_one_did(ranks):
    """Live, the ranks that print are known only as they do: from when all have printed twice, later steps agree."""
    logs = logs_of(ranks)
    merge = ProgressMerge()
    live = []
    for t, rank, record in sorted((it.t, each.rank, it) for each in logs for it in each.progress):
        if (counted := merge.take(rank, record)) is not None:
            live.append((counted.step, t))
    printing = printing_ranks(logs)
    known_t = max((each.progress[:2][-1].t for each in logs if each.rank in printing), default=0)
    whole = counted_steps(ranks)
    soon = max((step for step, t in live if t <= known_t), default=-1)
    assert [it for it in live if it[1] > known_t] == [it for it in whole if it[0] > soon and it[1] > known_t]
    assert [step for step, _ in live] == sorted(step for step, _ in live)


# ---- pace, gaps, goodput


@pytest.mark.parametrize(
    ("first", "every", "counted"), [(10, 10, 200), (2, 2, 200), (1, 1, 200), (0, 10, 201), (40, 10, 161)]
)
def test_evaluate_the_first_print_counts_the_steps_that_it_stands_for(first, every, counted):
    """One that prints each tenth step prints 10 first; 40 first is a program that resumed."""
    prints = each_tenth(10.0, first, 200, every)
    assert evaluate(logs_of([prints, prints]), info(2, 0.0, 35.0), []).job.steps_committed == counted


@settings(max_examples=40)
@given(st.lists(st.floats(0.05, 0.2), min_size=12, max_size=60), st.integers(1, 5))
def test_evaluate_step_times_and_throughput_are_the_time_between_prints_over_the_steps_between(durations, every):
    found = job_of(durations, every).job
    kept = len(durations) // every * every
    parts = [sum(durations[at : at + every]) for at in range(0, kept, every)]
    assert found.steps_committed == kept + 1
    assert [it.step_s for it in found.commits[1:]] == pytest.approx([it / every for it in parts])
    assert found.median_step_s == pytest.approx(statistics.median(parts) / every)
    assert found.tokens == 100 * kept
    # From the first print to the last one: what comes after is not known to be training.
    assert found.wall_s == pytest.approx(sum(durations[:kept]))
    assert found.tokens_per_s == pytest.approx(100 * kept / sum(durations[:kept]))
    assert found.goodput == pytest.approx(1.0)


@settings(max_examples=40)
@given(st.integers(1, 10), st.floats(3.0, 20.0), st.integers(0, 9))
def test_evaluate_stall_is_the_gap_however_seldom_the_program_prints(every, stall_s, where):
    """The ordinary steps between two prints are no part of it, to within their noise (none here)."""
    durations = [0.1] * 60
    durations[30 + where] += stall_s
    began = 10.0 + 3.0 + 0.1 * where + 0.05
    (fault,) = job_of(durations, every, cut=(began, began + stall_s)).job.faults
    assert fault.longest_gap_s == pytest.approx(stall_s + 0.1)
    assert (fault.recovered, fault.gap_at_most) == (True, False)


@table(
    "every, began_t, longest_s, at_most",
    {
        "of a program that prints every step a short gap is exact": (1, 13.35, 0.18, False),
        "of one that prints each second step it is at most that of two prints": (2, 13.3, 0.28, True),
        "of one that prints each tenth step likewise": (10, 13.3, 1.08, True),
    },
)
def test_evaluate_short_gap(every, began_t, longest_s, at_most):
    durations = [0.1] * 60
    durations[33] += 0.08
    (fault,) = job_of(durations, every, cut=(began_t, 13.5)).job.faults
    assert (fault.longest_gap_s, fault.gap_at_most) == (pytest.approx(longest_s), at_most)


@settings(max_examples=40)
@given(st.floats(2.0, 20.0))
def test_evaluate_stall_costs_goodput(stall_s):
    durations = [0.1] * 100
    durations[40] += stall_s
    job = job_of(durations, 1, cut=(14.05, 14.05 + stall_s)).job
    assert job.goodput == pytest.approx(10.0 / (10.0 + stall_s))


def test_evaluate_goodput_is_never_above_one_by_rounding():
    times = list(itertools.accumulate([0.1] * 40, initial=0.1))
    prints = [(t, step) for step, t in enumerate(times)]
    jobs = (evaluate([log(0, prints[:count])], info(1, 0.0, 6.0), []).job for count in range(5, 40))
    assert max(job.goodput for job in jobs) == 1.0


def test_evaluate_program_that_never_came_back_has_an_open_gap_to_its_end():
    found = job_of([0.1] * 40, cut=(13.95, None), statuses=[1, 137], closing=30.0)
    (fault,) = found.job.faults
    assert (fault.recovered, fault.gap_open, found.job.died) == (False, True, True)
    assert fault.longest_gap_s == pytest.approx(30.0)
    assert found.job.wall_s == pytest.approx(34.0)
    assert found.job.goodput == pytest.approx(4.0 / 34.0, rel=0.05)


def test_evaluate_program_that_ended_well_long_after_its_last_step_came_through():
    """It saved its model: the end of a program is no stall."""
    found = job_of([0.1] * 40, cut=(13.0, 13.4), closing=30.0)
    (fault,) = found.job.faults
    assert (fault.recovered, fault.gap_open) == (True, False)
    assert found.job.wall_s == pytest.approx(4.0)


def test_evaluate_fault_before_the_first_print_says_nothing_of_recovery():
    (fault,) = job_of([0.1] * 40, cut=(2.0, 6.0)).job.faults
    assert (fault.recovered, fault.longest_gap_s) == (None, None)


def test_evaluate_without_tokens_there_is_a_pace_but_no_throughput():
    job = evaluate([log(0, each_tenth(10.0, 0, 49))], info(1, 0.0, 15.0), []).job
    assert (job.tokens_per_s, job.goodput) == (None, pytest.approx(1.0))
    assert job.median_step_s == pytest.approx(0.1)


def test_evaluate_without_any_print_nothing_is_claimed():
    found = evaluate([RankLog(0), RankLog(1)], info(2, 0.0, 15.0), [FaultWindow("f", "cut", "n", ("n",), 3.0, 5.0)])
    assert (found.job.commits, found.job.goodput, found.job.recovery_s, found.job.wall_s) == ((), None, None, None)
    assert (found.attempts, found.printing, found.job.began_t, found.job.ended_t) == ((), (), 0.0, 15.0)


# ---- restarts inside the program


@st.composite
def restarted(draw) -> tuple[int, list[tuple[int, int]]]:
    """(steps a print, parts): each part prints from its first to its last step and goes back by more than one print."""
    every = draw(st.integers(1, 4))
    parts, first = [], 0
    for _ in range(draw(st.integers(1, 4))):
        last = first + every * draw(st.integers(3, 12))
        parts.append((first, last))
        first = max(0, last - every * draw(st.integers(2, 8)))
    return every, parts


@settings(max_examples=40)
@given(restarted(), st.integers(1, 3))
def test_evaluate_what_a_restart_undid_does_not_count_and_is_lost(job, world):
    every, parts = job
    prints: list[tuple[float, int]] = []
    t = 10.0
    for first, last in parts:
        for step in range(first, last + 1, every):
            t += 0.1 * every
            prints.append((t, step))
        t += 5.0
    # Ranks go back one after the other, up to half a print apart.
    logs = [log(rank, [(at + 0.04 * rank * every / world, step) for at, step in prints], 10.0) for rank in range(world)]
    found = evaluate(logs, info(world, 0.0, t), [])
    # By definition: a step counts as it was printed last, unless the program went back behind it later.
    went_on = [
        step for at, (when, step) in enumerate(prints) if not any(later <= step for _, later in prints[at + 1 :])
    ]
    assert [it.step for it in found.job.commits] == went_on
    lost = sum(last - (following - every) for (_, last), (following, _) in itertools.pairwise(parts) if following)
    lost += sum(last + 1 for (_, last), (following, _) in itertools.pairwise(parts) if not following)
    assert abs(found.job.steps_lost - lost) <= every * len(parts)
    assert len(found.attempts) == len(parts)
    assert sum(it.steps_committed for it in found.attempts) == found.job.steps_committed
    assert sum(it.steps_lost for it in found.attempts) == found.job.steps_lost
    assert all(it.time_to_resume_s == pytest.approx(5.0 + 0.1 * every, abs=0.05 * every) for it in found.attempts[:-1])


def test_evaluate_restart_has_its_fault_and_its_cost():
    prints = [*each_tenth(10.0, 0, 30), *each_tenth(18.1, 21, 60)]
    kill = FaultWindow("f1", "rank-kill", "1", (), 13.02, 13.03)
    found = evaluate(logs_of([prints, prints]), info(2, 0.0, 23.0), [kill])
    first, second = found.attempts
    assert (first.cause, first.steps_lost, first.steps_committed) == ("rank-kill 1", 10, 21)
    assert (second.resumed_from, second.steps_committed) == (20, 40)
    assert first.time_to_resume_s == pytest.approx(18.1 - 13.0)
    assert found.job.steps_lost == 10
    assert found.job.recovery_s == pytest.approx(18.1 - 12.0), "since the last step that counts, as with our own jobs"
    assert found.job.goodput == pytest.approx(60 * 0.1 / (22.0 - 10.0))
