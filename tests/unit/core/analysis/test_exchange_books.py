"""Commits, peer waits and the books of jobs that exchange every H steps, against a simulation that keeps its own books.

Two sites of some ranks; a step waits for the ranks of the site, every H-th for those of both. The simulation shares no
code with the analysis: it adds each stretch of time to a class while it makes the records.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis import attempt_history
from testbed.core.analysis.commits import commits
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.peer_waits import peer_waits
from testbed.core.analysis.rank_times import rank_times
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import CheckpointRecord, EndRecord, JobRecord, RankLog, StepRecord
from testbed.core.training.layout import Layout, Tensor
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

SITE_S, OPTIMIZER_S, EXCHANGE_S, GAP_S = 0.004, 0.01, 0.3, 0.001


@dataclass(frozen=True)
class Job:
    """``attempts``: steps that each one runs; all but the last fail, the last too if ``dies``."""

    every: int = 10
    compute_s: tuple[float, ...] = (0.05, 0.06, 0.07, 0.05)
    ranks_of_site: int = 2
    attempts: tuple[int, ...] = (40,)
    checkpoint_every: int = 0
    checkpoint_s: tuple[float, ...] = (0.0,) * 4
    dies: bool = False
    more_steps: int = 0
    slow_s: float = 0.0
    """Added to one exchange, during a fault."""


@dataclass
class Books:
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peer_wait_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    logs: list[RankLog] = field(default_factory=list)
    detected: dict[int, float] = field(default_factory=dict)
    windows: list[FaultWindow] = field(default_factory=list)
    committed: int = 0
    lost: int = 0
    wall_s: float = 0.0

    def evidence(self) -> JobEvidence:
        return evaluate(attempt_history.fenced(self.logs), self.windows, None, self.detected)


def simulate(job: Job) -> Books:
    world, last = len(job.compute_s), len(job.attempts) - 1
    site = [rank // job.ranks_of_site for rank in range(world)]
    resumes = [0]
    for count in job.attempts[:-1]:
        done = resumes[-1] + count
        resumes.append(done // job.checkpoint_every * job.checkpoint_every if job.checkpoint_every else 0)
    final = resumes[-1] + job.attempts[-1]
    planned = final + job.more_steps if job.dies else final
    # What the last exchange took up; a job that ends in order ends with one.
    committed = final if final == planned else final // job.every * job.every
    books = Books(committed=committed)
    rows: list[dict[str, list]] = [{"jobs": [], "steps": [], "ends": [], "checkpoints": []} for _ in range(world)]
    now = 100.0
    for index, count in enumerate(job.attempts):
        number = index + 1
        at = [now + 0.05] * world
        saved = [0.0] * world
        for rank, row in enumerate(rows):
            row["jobs"].append(
                JobRecord(
                    now, rank, world, f"n{rank}", f"site{site[rank]}", "diloco", 100, 400, planned, number,
                    resumes[index], strategy="diloco", options={"every": job.every, "replica": "site"},
                )
            )  # fmt: skip
        books.seconds["detection_and_restart" if index else "begin_and_end"] += 0.05 * world
        for step in range(resumes[index] + 1, resumes[index] + count + 1):
            counts = step <= committed and all(step <= later for later in resumes[index + 1 :])
            first = step == resumes[index] + 1
            begins = [at[rank] + saved[rank] + (0.0 if first else GAP_S) for rank in range(world)]
            ready = [begin + own for begin, own in zip(begins, job.compute_s, strict=True)]
            mates = [[r for r in range(world) if site[r] == site[rank]] for rank in range(world)]
            alone = job.ranks_of_site == 1
            sync = [max(ready[r] for r in mates[rank]) + (0.0 if alone else SITE_S) for rank in range(world)]
            stepped = [t + OPTIMIZER_S for t in sync]
            ends = list(stepped)
            slow_s = 0.0
            if step % job.every == 0 or step == planned:
                slow_s = job.slow_s if index == last and step == job.every else 0.0
                ends = [max(stepped) + EXCHANGE_S + slow_s] * world
                if slow_s:
                    books.windows.append(FaultWindow("f1", "cut", "north", (), max(stepped) + 0.01, ends[0] - 0.01))
            for rank, row in enumerate(rows):
                row["steps"].append(
                    StepRecord(
                        step, begins[rank], ready[rank], sync[rank], ends[rank], 10, 1.0, attempt=number,
                        t_stepped=stepped[rank],
                    )
                )  # fmt: skip
                books.seconds["checkpoint"] += saved[rank]
                in_site = max(ready[r] for r in mates[rank]) - ready[rank]
                across = max(stepped) - stepped[rank] if ends[rank] > stepped[rank] else 0.0
                books.peer_wait_s[rank] += in_site + across
                gap = 0.0 if first else GAP_S
                took = ends[rank] - begins[rank] + gap
                if counts:
                    own = job.compute_s[rank] + OPTIMIZER_S
                    books.seconds["begin_and_end"] += gap
                    books.seconds["productive"] += own
                    books.seconds["exposed_communication"] += took - gap - own - slow_s
                    books.seconds["slowed_by_faults"] += slow_s
                else:
                    books.seconds["lost_work"] += took
            at, saved = ends, [0.0] * world
            books.lost += not counts
            if job.checkpoint_every and step % job.checkpoint_every == 0 and step < planned:
                saved = list(job.checkpoint_s)
                for rank, row in enumerate(rows):
                    row["checkpoints"].append(CheckpointRecord(at[rank] + saved[rank], step, 1, saved[rank], number))
        now = max(at) + 5.0
        if index < last or job.dies:
            books.seconds["checkpoint"] += sum(saved)
            books.seconds["detection_and_restart"] += sum(now - t for t in at) - sum(saved)
            books.detected[number] = now
            for row in rows:
                row["ends"].append(EndRecord(now, "failed", "gone", None, number))
        else:
            books.seconds["begin_and_end"] += sum(now - t for t in at)
            for row in rows:
                row["ends"].append(EndRecord(now, "ok", "", planned, number))
        if index < last:
            books.seconds["detection_and_restart"] += 2.0 * world
            now += 2.0
    for rank, row in enumerate(rows):
        books.logs.append(RankLog(rank, *(tuple(row[name]) for name in ("jobs", "steps", "ends", "checkpoints"))))
    books.wall_s = now - 100.0
    return books


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    every = draw(st.sampled_from([2, 3, 5, 8]))
    ranks_of_site = draw(st.integers(1, 2))
    count = draw(st.integers(1, 3))
    dies = draw(st.booleans())
    return Job(
        every=every,
        ranks_of_site=ranks_of_site,
        compute_s=tuple(draw(st.sampled_from([0.05, 0.06, 0.08])) for _ in range(2 * ranks_of_site)),
        attempts=(*(draw(st.integers(2 * every, 30)) for _ in range(count - 1)), draw(st.integers(31, 45))),
        checkpoint_every=draw(st.sampled_from([0, 5])) if count > 1 else 0,
        checkpoint_s=(draw(st.sampled_from([0.0, 0.7])),) * (2 * ranks_of_site),
        dies=dies,
        more_steps=draw(st.integers(1, 9)) if dies else 0,
    )


@settings(max_examples=60, derandomize=True)
@given(jobs())
def test_evaluate_any_job_that_exchanges_seldom_as_its_books(job: Job) -> None:
    books = simulate(job)
    found = books.evidence()
    total = len(job.compute_s) * books.wall_s
    assert sum(books.seconds.values()) == pytest.approx(total), "the simulation's own books"
    assert found.rank_seconds.total_s == pytest.approx(total)
    for name, value in found.rank_seconds.by_class().items():
        assert value == pytest.approx(books.seconds[name.removesuffix("_s")], abs=1e-6 * total), name
    assert (found.steps_committed, found.steps_lost) == (books.committed, books.lost)
    assert found.complete is not job.dies
    for each in found.rank_times:
        if job.checkpoint_s[0] == 0 or not job.checkpoint_every:
            assert each.peer_wait_s == pytest.approx(books.peer_wait_s[each.rank]), each.rank
        assert each.network_s >= -1e-9


DYING = Job(every=10, attempts=(47,), dies=True, more_steps=100)


def test_evaluate_steps_since_the_last_exchange_are_lost_if_the_job_dies() -> None:
    books = simulate(DYING)
    found = books.evidence()
    assert (found.steps_committed, found.steps_lost, found.tokens) == (40, 7, 40 * 4 * 10)
    assert found.rank_seconds.lost_work_s > 4 * 7 * 0.06
    (attempt,) = attempt_history.evaluate(books.logs, (), (), found)
    assert (attempt.steps_committed, attempt.steps_lost) == (40, 7)


STOPPED = {"t": 1.0, "status": "stopped", "reason": "its step did not end within 2 s", "step": 47}


@table(
    "ends, committed",
    {
        "all ranks stopped": (None, 47),
        "one rank did not come to the exchange": ((), 40),
        "one rank was forced to stop": ((EndRecord.from_dict(STOPPED),), 40),
        "one rank stopped in order": ((EndRecord.from_dict({**STOPPED, "parameters_sha256": "…"}),), 47),
    },
)
def test_evaluate_job_that_was_asked_to_stop_ends_with_an_exchange(ends, committed) -> None:
    logs = simulate(DYING).logs
    stopped = [replace(log, ends=(EndRecord(log.ends[0].t, "stopped", "", 47),)) for log in logs]
    if ends is not None:
        stopped[3] = replace(stopped[3], ends=ends)
    assert evaluate(stopped, []).steps_committed == committed


@table("steps, lost", {"25 steps, resumed after step 25": (25, 0), "28 steps, resumed after step 25": (28, 3)})
def test_evaluate_steps_before_a_checkpoint_are_committed_by_an_exchange_of_the_next_attempt(steps, lost) -> None:
    """Of H = 10; the checkpoint after step 25 has what steps 21 to 25 did, and step 30 exchanges it."""
    found = simulate(Job(every=10, attempts=(steps, 15), checkpoint_every=5)).evidence()
    assert (found.steps_committed, found.steps_lost) == (40, lost)


class _Weighted(Twin):
    """Fragments of a tenth and of nine tenths, exchanged after steps 5 and 10 of every ten."""

    name = "weighted"
    summary = "a test"

    def operations(self, step: int) -> tuple[Operation, ...]:
        return ()

    def equal(self, step: int) -> tuple[Equal, ...]:
        return ()

    def committed(self, step: int) -> float:
        rounds, within = divmod(step, 10)
        return 10 * rounds + (0.1 * 5 if within >= 5 else 0.0)


@pytest.mark.parametrize(("steps", "counted"), [(34, 30), (35, 30), (39, 30), (40, 40)])
def test_commits_count_a_fragment_by_its_share_in_whole_steps(steps: int, counted: int) -> None:
    books = simulate(Job(every=1000, attempts=(steps,), dies=True, more_steps=100))
    twin = _Weighted({}, Layout(("a", "a", "b", "b"), (Tensor("model", 100),), steps=140))
    assert len(commits(books.logs, 4, twin)) == counted
    assert twin.committed(35) == 30.5


def test_rank_times_wait_for_the_site_in_a_step_and_for_all_after_the_exchange() -> None:
    """Rank 2 is slow: its mate waits for it in each step, the other site only every tenth."""
    books = simulate(Job(every=10, compute_s=(0.05, 0.05, 0.09, 0.05), attempts=(20,)))
    own = {times.rank: times for times in books.evidence().rank_times}
    assert own[3].peer_wait_s == pytest.approx(20 * 0.04)
    assert own[2].peer_wait_s == 0
    # The other site is ten times 0.04 s ahead when it comes to the exchange, and waits there.
    assert own[0].peer_wait_s == pytest.approx(2 * 10 * 0.04)
    assert own[0].network_s == pytest.approx(20 * SITE_S + 2 * EXCHANGE_S)
    of_all = next(times for times in rank_times(books.logs, None) if times.rank == 0)
    assert of_all.peer_wait_s != pytest.approx(own[0].peer_wait_s), "not all ranks wait for all"


class _Late(Twin):
    """What ranks 0 and 1 send after each fourth step is used two steps later."""

    name = "late"
    summary = "a test"

    def operations(self, step: int) -> tuple[Operation, ...]:
        return (Operation("all_reduce", (0, 1), 400, "pseudo-gradients", "x", 0, lands=2),) if step % 4 == 0 else ()

    def equal(self, step: int) -> tuple[Equal, ...]:
        return ()


def test_peer_waits_for_what_lands_later_end_when_the_peers_had_begun_it() -> None:
    """Rank 1 is 0.5 s behind: what both began after step 4 lands on rank 0 after step 6, 0.3 s after rank 1 began."""

    def row(number: int, behind: float) -> StepRecord:
        begin = behind + number / 10
        late = 0.34 if number == 6 and not behind else 0.0
        stepped = begin + 0.06
        return StepRecord(number, begin, begin + 0.05, begin + 0.05, stepped + late, 1, t_stepped=stepped)

    logs = [RankLog(rank, (), tuple(row(n, behind) for n in range(1, 9))) for rank, behind in enumerate((0.0, 0.5))]
    twin = _Late({}, Layout(("a", "b"), (Tensor("model", 100),), steps=100))
    waits = peer_waits(logs, twin)
    assert [it.after_s for it in waits[0]] == pytest.approx([0, 0, 0, 0, 0, 0.3, 0, 0])
    assert sum(it.total_s for it in waits[1]) == 0


def test_evaluate_exchange_outside_the_faults_is_no_slowdown_and_no_stall() -> None:
    """A short fault over one exchange that is as long as the others; then one that holds it up for 2 s."""
    books = simulate(Job(every=10, attempts=(80,)))
    exchange = books.logs[0].steps[39]
    books.windows = [FaultWindow("f1", "jitter", "north", (), exchange.t_stepped + 0.01, exchange.t_end - 0.01)]
    found = books.evidence()
    assert found.rank_seconds.slowed_by_faults_s == pytest.approx(0.0, abs=1e-6)
    (fault,) = found.faults
    assert (fault.back_s, fault.recovered) == (0.0, True)
    step_s = found.median_step_s
    assert step_s is not None
    assert fault.longest_gap_s == pytest.approx(step_s, rel=0.3)
    held = simulate(Job(every=10, attempts=(80,), slow_s=2.0))
    found = held.evidence()
    assert found.rank_seconds.slowed_by_faults_s == pytest.approx(4 * 2.0, rel=0.01)
    (fault,) = found.faults
    assert fault.longest_gap_s == pytest.approx(2.0 + step_s, rel=0.1)
    assert fault.recovered is True
    assert found.rank_seconds.slowed_by_faults_s == pytest.approx(held.seconds["slowed_by_faults"], rel=0.01)


def test_step_record_of_a_former_version_has_no_exchange_after_the_step() -> None:
    old = {"step": 1, "t_begin": 1.0, "t_ready": 1.5, "t_sync": 1.7, "t_end": 2.0, "tokens": 8}
    record = StepRecord.from_dict(old)
    assert (record.t_stepped, record.after_s) == (2.0, 0.0)
    assert (record.compute_s, record.exposed_s) == pytest.approx((0.8, 0.2))
    record = StepRecord.from_dict(old | {"t_stepped": 1.8})
    assert (record.compute_s, record.exposed_s) == pytest.approx((0.6, 0.4))
    assert replace(record, t_end=2.5).after_s == pytest.approx(0.7)
