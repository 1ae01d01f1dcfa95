"""Every rank-second in one class: against numbers worked out by hand, and against simulated jobs that keep the books.

The simulation (:func:`simulate`) adds each stretch of time to a class while it makes the records, so it shares no code
with the analysis, which has the records alone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
from builders.jobs import faults, step
from builders.jobs import rank as rank_log
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis import attempt_history
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.fields import Malformed
from testbed.core.records.rank_log import CheckpointRecord, EndRecord, JobRecord, RankLog, StepRecord

GAP, OPTIMIZER = 0.001, 0.01


@dataclass
class Attempt:
    """``steps`` done by all ranks, ``more`` by rank 0 alone; then ``stall_s`` until it is detected to have failed,
    ``restart_s`` until the next one begins, and ``prelude_s`` before this one's first step."""

    steps: int
    prelude_s: float = 0.05
    more: bool = False
    stall_s: float = 2.0
    restart_s: float = 3.0
    slow: range = range(0)
    slow_s: float = 0.0
    """Added to the network's part of the steps whose index in this attempt is in ``slow``, during a fault."""


@dataclass
class Job:
    compute_s: tuple[float, ...] = (0.06, 0.06)
    network_s: float = 0.03
    attempts: tuple[Attempt, ...] = (Attempt(100),)
    every: int = 0
    checkpoint_s: tuple[float, ...] = (0.0, 0.0)
    killed: bool = False
    """Whether rank 1 records no end."""


@dataclass
class Books:
    logs: list[RankLog]
    windows: list[FaultWindow] = field(default_factory=list)
    detected: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    wall_s: float = 0.0

    @property
    def world(self) -> int:
        return len(self.logs)

    def evidence(self) -> JobEvidence:
        return evaluate(attempt_history.fenced(self.logs), self.windows, None, self.detected)


def simulate(job: Job) -> Books:
    """Run the job; a later attempt resumes from the newest checkpoint of the one before."""
    world, last = len(job.compute_s), len(job.attempts) - 1
    resumes, done = [0], 0
    for attempt in job.attempts[:-1]:
        done = resumes[-1] + attempt.steps
        resumes.append(done // job.every * job.every if job.every else 0)
    planned = resumes[-1] + job.attempts[-1].steps
    rows: list[dict[str, list]] = [{"jobs": [], "steps": [], "checkpoints": [], "ends": []} for _ in range(world)]
    books, now = Books([]), 100.0
    for index, attempt in enumerate(job.attempts):
        number = index + 1
        for rank, row in enumerate(rows):
            first = JobRecord(now, rank, world, f"n-{rank}", "east", "ddp", 1, 1, planned, number, resumes[index])
            row["jobs"].append(first)
        books.seconds["detection_and_restart" if index else "begin_and_end"] += world * attempt.prelude_s
        now += attempt.prelude_s
        saved = [0.0] * world
        for at in range(attempt.steps + attempt.more):
            step = resumes[index] + at + 1
            alone = at == attempt.steps
            counts = not alone and all(step <= later for later in resumes[index + 1 :])
            gap = GAP if at else 0.0
            begins = [now + saved[rank] + gap for rank in range(world)]
            ready = [begin + compute for begin, compute in zip(begins, job.compute_s, strict=True)]
            slow_s = attempt.slow_s if at in attempt.slow else 0.0
            sync = max(ready) + job.network_s + slow_s
            # What the checkpoint of the slowest kept all from, beside one's own.
            waited = [max(saved) - own for own in saved]
            for rank, row in enumerate(rows):
                if alone and rank:
                    books.seconds["checkpoint"] += saved[rank]
                    books.seconds["detection_and_restart"] += sync + OPTIMIZER - now - saved[rank]
                    continue
                row["steps"].append(
                    StepRecord(step, begins[rank], ready[rank], sync, sync + OPTIMIZER, 10, 1.0, attempt=number)
                )
                books.seconds["checkpoint"] += saved[rank]
                if counts:
                    books.seconds["begin_and_end"] += gap
                    books.seconds["productive"] += job.compute_s[rank] + OPTIMIZER
                    books.seconds["checkpoint"] += waited[rank]
                    books.seconds["exposed_communication"] += sync - slow_s - ready[rank] - waited[rank]
                    books.seconds["slowed_by_faults"] += slow_s
                else:
                    books.seconds["lost_work"] += sync + OPTIMIZER - begins[rank] + gap
            if slow_s and (at == attempt.slow.start):
                books.windows.append(FaultWindow(f"f{number}", "cut", "north", (), now + 1e-4, now + 2e-4))
            now = sync + OPTIMIZER
            if slow_s:
                books.windows[-1] = replace(books.windows[-1], ended_t=now - 1e-4)
            saved = [0.0] * world
            if job.every and step % job.every == 0 and step < planned and not alone:
                saved = list(job.checkpoint_s)
                for rank, row in enumerate(rows):
                    row["checkpoints"].append(CheckpointRecord(now + saved[rank], step, 1, saved[rank], number))
        if index == last:
            books.seconds["begin_and_end"] += 0.02 * world
            now += 0.02
        else:
            # The last checkpoint of an attempt, if no step followed.
            books.seconds["checkpoint"] += sum(saved)
            books.seconds["detection_and_restart"] += world * (attempt.stall_s + attempt.restart_s) - sum(saved)
            books.detected[number] = now + attempt.stall_s
            now += attempt.stall_s + attempt.restart_s
    for rank, row in enumerate(rows):
        if rank != 1 or not job.killed:
            row["ends"].append(EndRecord(now, "ok", "", planned, last + 1))
        books.logs.append(RankLog(rank, *(tuple(row[name]) for name in ("jobs", "steps", "ends", "checkpoints"))))
    books.wall_s = now - 100.0
    return books


def test_rank_seconds_of_what_a_pass_waited_for_are_exposed() -> None:
    """10 steps of 0.1 s: 0.08 s until gradients are ready, of which 0.05 s waiting, as a stage of a pipeline does."""

    def waiting(number: int, begin: float, blocked_s: float, *seconds: float) -> StepRecord:
        times = dict(zip(("t_ready", "t_sync", "t_end"), (begin + after for after in seconds), strict=True))
        return StepRecord.from_dict({"step": number, "t_begin": begin, **times, "tokens": 10, "blocked_s": blocked_s})

    done = [waiting(number, number / 10, 0.05, 0.08, 0.09, 0.1) for number in range(10)]
    assert (done[0].compute_s, done[0].exposed_s) == (pytest.approx(0.04), pytest.approx(0.06))
    seconds = evaluate([rank_log(0, done, "ok 1.0", world=1, planned=10)], []).rank_seconds
    assert (seconds.productive_s, seconds.exposed_communication_s) == pytest.approx((0.4, 0.6))
    with pytest.raises(Malformed, match="waited longer than it took"):
        waiting(1, 0, 2, 1, 1, 1)


@pytest.mark.parametrize(("took_s", "goodput"), [(0.0, 1.0), (1.0, 10 / 19), (5.0, 10 / 55)])
def test_rank_seconds_of_a_checkpoint_are_in_the_wall_time_and_not_in_goodput(took_s: float, goodput: float) -> None:
    """100 steps of 0.1 s, a checkpoint after every tenth but the last."""
    t, done, saved = 0.0, list[StepRecord](), list[CheckpointRecord]()
    for number in range(1, 101):
        done.append(step(number, t, t + 0.1, ready=t + 0.06, sync=t + 0.09))
        t += 0.1
        if number % 10 == 0 and number < 100 and took_s:
            t += took_s
            saved.append(CheckpointRecord(t, number, 1, took_s))
    logs = [replace(rank_log(index, done, f"ok {t!r}", planned=100), checkpoints=tuple(saved)) for index in range(2)]
    evidence = evaluate(logs, [])
    assert (evidence.goodput, evidence.median_step_s) == pytest.approx((goodput, 0.1))
    seconds = evidence.rank_seconds
    assert seconds.checkpoint_s == pytest.approx(2 * 9 * took_s)
    assert (seconds.productive_s, seconds.exposed_communication_s) == pytest.approx((2 * 7.0, 2 * 3.0))


def test_rank_seconds_of_a_peers_wait_for_a_longer_checkpoint_are_checkpoint_too() -> None:
    """Rank 1 saves for a second, rank 0 not at all: rank 0's exposed time grows by a second that is no network's."""
    evidence = simulate(Job(every=10, checkpoint_s=(0.0, 1.0))).evidence()
    assert evidence.rank_seconds.checkpoint_s == pytest.approx(2 * 9 * 1.0)
    assert evidence.rank_seconds.exposed_communication_s == pytest.approx(2 * 100 * 0.03)
    assert sum(times.exposed_s for times in evidence.rank_times) == pytest.approx(2 * 100 * 0.03 + 9.0)


def test_rank_seconds_of_a_checkpoint_are_not_put_down_to_a_fault_beside_it() -> None:
    """A fault that costs nothing, just before a checkpoint of a second."""
    books = simulate(Job(every=10, checkpoint_s=(1.0, 1.0)))
    end_t = books.logs[0].steps[49].t_end
    books.windows = faults(f"{end_t - 0.05!r}..{end_t + 0.01!r}")
    evidence = books.evidence()
    (fault,) = evidence.faults
    assert fault.longest_gap_s == pytest.approx(0.1 + GAP)
    assert (fault.back_s, fault.recovered) == (0.0, True)
    assert evidence.rank_seconds.slowed_by_faults_s == pytest.approx(0.0, abs=1e-3)


def test_rank_seconds_of_a_restart() -> None:
    """25 steps, five of them beyond the checkpoint; 2 s until that is detected, 3 s until 80 steps more begin."""
    books = simulate(Job(attempts=(Attempt(25), Attempt(80)), every=10, checkpoint_s=(0.5, 0.5)))
    evidence = books.evidence()
    assert [(span.attempt, span.restart) for span in evidence.spans] == [(1, False), (1, True), (2, False)]
    first, restart, second = (span.seconds for span in evidence.spans)
    assert first.lost_work_s == pytest.approx(2 * 5 * 0.101)
    assert first.detection_and_restart_s == pytest.approx(2 * 2.0)
    assert restart.total_s == restart.detection_and_restart_s == pytest.approx(2 * 3.0)
    assert second.detection_and_restart_s == pytest.approx(2 * 0.05), "before its first step it restarts"
    assert first.begin_and_end_s == pytest.approx(2 * (0.05 + 19 * GAP))
    assert evidence.goodput == pytest.approx(100 * 0.1 / books.wall_s)


def test_rank_seconds_of_a_job_that_failed_for_good_are_detection_without_a_restart() -> None:
    end = EndRecord(simulate(Job()).logs[0].ends[0].t + 30.0, "failed", "timeout", 100)
    logs = [replace(log, ends=(end,), jobs=(replace(log.jobs[0], steps=200),)) for log in simulate(Job()).logs]
    assert evaluate(logs, []).rank_seconds.detection_and_restart_s == pytest.approx(2 * 30.02)


def test_rank_seconds_of_a_rank_without_records_are_unattributed() -> None:
    books = simulate(Job(compute_s=(0.06, 0.06, 0.06), checkpoint_s=(0.0,) * 3))
    evidence = evaluate(books.logs[:2], [])
    assert evidence.goodput is None
    seconds = evidence.rank_seconds
    assert seconds.not_told_apart_s == pytest.approx(3 * books.wall_s, rel=0.02)
    assert seconds.total_s == pytest.approx(3 * books.wall_s)
    assert seconds.lost_work_s == 0, "nothing says that the steps do not count"


def test_rank_seconds_without_a_step_outside_the_faults_are_not_productive() -> None:
    evidence = evaluate(simulate(Job()).logs, faults("0.."))
    assert evidence.goodput is None
    seconds = evidence.rank_seconds
    assert seconds.productive_s == seconds.slowed_by_faults_s == 0
    assert seconds.not_told_apart_s == pytest.approx(2 * (100 * 0.1 + 99 * GAP))


def test_rank_seconds_of_a_class_are_reduced_by_what_it_took_too_long() -> None:
    """During a fault rank 0 computes twice as long, its peer waits: each is slowed in its own part."""
    quiet = [step(number, number - 1.0, number, ready=number - 0.4, sync=number - 0.1) for number in range(1, 11)]
    # 0.6 s more of compute, and 0.6 s more of waiting.
    slow = [step(11, 10.0, 11.6, ready=ready, sync=11.5) for ready in (11.2, 10.6)]
    logs = [rank_log(index, [*quiet, last], planned=11) for index, last in enumerate(slow)]
    seconds = evaluate(logs, faults("10.1..11.5")).rank_seconds
    assert (seconds.productive_s, seconds.exposed_communication_s) == pytest.approx((2 * 11 * 0.7, 2 * 11 * 0.3))
    assert seconds.slowed_by_faults_s == pytest.approx(2 * 0.6)


# ---- properties


def some_seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0.0, most, allow_nan=False).map(lambda it: round(it, 3))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    world = draw(st.integers(2, 4))
    every = draw(st.sampled_from([0, 3, 5]))
    attempts = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(6, 20))
        begin = draw(st.integers(2, steps - 2))
        attempts.append(
            Attempt(
                steps,
                prelude_s=0.01 + draw(some_seconds(1.0)),
                more=draw(st.booleans()),
                stall_s=6.0 + draw(some_seconds(3.0)),
                restart_s=0.01 + draw(some_seconds(3.0)),
                slow=range(begin, draw(st.integers(begin, steps - 1))),
                slow_s=draw(st.sampled_from([0.0, 0.02, 1.5])),
            )
        )
    attempts[-1].more = False
    compute_s = [0.06] * world
    if not every:  # with checkpoints of different lengths, all compute alike: then who waits for what is plain
        compute_s = [0.05 + draw(some_seconds(0.05)) for _ in range(world)]
    return Job(
        tuple(compute_s),
        0.01 + draw(some_seconds(0.1)),
        tuple(attempts),
        every,
        tuple(0.001 + draw(some_seconds(5.0)) for _ in range(world)),
        draw(st.booleans()),
    )


def check_partition(found: JobEvidence, world: int, began_t: float, ended_t: float) -> None:
    """Each rank-second has one class; the spans are the wall time."""
    wall_s = ended_t - began_t
    assert found.wall_s == pytest.approx(wall_s)
    if wall_s <= 0:
        assert found.spans == ()
        return
    assert found.rank_seconds.total_s == pytest.approx(world * wall_s, rel=1e-3)
    assert all(value >= -1e-9 for each in found.spans for value in each.seconds.by_class().values())
    at_t = began_t
    for each in found.spans:
        assert (each.began_t, each.seconds.total_s) == (at_t, pytest.approx(world * (each.ended_t - at_t), abs=1e-6))
        at_t = each.ended_t
    assert at_t == ended_t
    if found.goodput is not None:
        assert 0 <= found.goodput <= 1


@settings(max_examples=150, derandomize=True)
@given(jobs())
def test_rank_seconds_of_any_job_are_those_of_the_books(job: Job) -> None:
    books = simulate(job)
    found = books.evidence()
    check_partition(found, books.world, 100.0, max(it.t for log in books.logs for it in log.ends))
    total = books.world * books.wall_s
    assert sum(books.seconds.values()) == pytest.approx(total), "the simulation's own books"
    slowed = any(attempt.slow_s for attempt in job.attempts)
    for name, value in found.rank_seconds.by_class().items():
        expected = pytest.approx(books.seconds[name.removesuffix("_s")], abs=(2e-3 if slowed else 1e-6) * total)
        assert value == expected, (name, books.seconds)


def damaged(logs: list[RankLog], chance: random.Random) -> list[RankLog]:
    """Lose ranks, tear records out, and damage what checkpoints say of themselves."""
    lost = chance.choice([0.0, 0.02, 0.3])

    def torn(records: tuple) -> tuple:
        return tuple(it for it in records if chance.random() >= lost)

    def odd(it: CheckpointRecord) -> CheckpointRecord:
        return replace(it, took_s=chance.choice([it.took_s, None, -7.0, 1e9, it.took_s / 2]))

    kept = []
    for log in logs:
        if chance.random() < 0.1:
            continue
        steps = list(torn(log.steps))
        if chance.random() < 0.2:  # a record of an attempt that no job record tells of
            steps = [replace(it, attempt=it.attempt + (chance.random() < 0.1)) for it in steps]
        jobs = log.jobs if log is logs[0] else torn(log.jobs)
        kept.append(RankLog(log.rank, jobs, tuple(steps), torn(log.ends), tuple(map(odd, torn(log.checkpoints)))))
    return kept


@settings(max_examples=300, derandomize=True)
@given(jobs(), st.randoms(use_true_random=False), st.booleans())
def test_rank_seconds_of_damaged_records_have_one_class(job: Job, chance: random.Random, seen: bool) -> None:
    books = simulate(job)
    logs = damaged(books.logs, chance)
    if chance.random() < 0.5:
        logs = list(attempt_history.fenced(logs))
    begins = [log.jobs[0].t for log in logs if log.jobs]
    ends = [it.t for log in logs for it in log.ends] + [it.t_end for log in logs for it in log.steps]
    if not begins or not ends:
        assert evaluate(logs, books.windows).spans == ()
        return
    observed = max(ends) + 1.0 if seen else None
    found = evaluate(logs, books.windows, observed, books.detected)
    silent = any(len(log.ends) < len(log.jobs) for log in logs)
    check_partition(found, books.world, min(begins), observed if observed is not None and silent else max(ends))
