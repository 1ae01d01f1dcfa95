"""What faults cost, aftermath included: the difference in rank-seconds to the same job without them, to 1e-6.

:func:`run` is a plain loop over steps and ranks. It knows when ranks wait for each other under an exchange rule, and
shares no code with the analysis, which has the records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord

GAP_S, OPTIMIZER_S, SITE_S, COLD_S = 0.001, 0.01, 0.004, 0.3


@dataclass(frozen=True)
class Slow:
    """Compute of ``ranks`` takes ``factor`` times as long from ``begin_t`` to ``end_t``."""

    ranks: tuple[int, ...]
    begin_t: float
    end_t: float
    factor: float = 2.0
    type: str = "slow"


@dataclass(frozen=True)
class Jam:
    """Exchanges between sites that begin from ``begin_t`` to ``end_t`` take ``extra_s`` longer."""

    begin_t: float
    end_t: float
    extra_s: float = 1.5
    type: str = "jam"


@dataclass(frozen=True)
class Rule:
    """Exchange ``name`` among each of ``groups`` after the steps for which ``due`` holds, and after the last one.

    It takes ``seconds`` from when the last member was ready. Members need it ``lands`` steps later.
    """

    name: str
    due: Callable[[int], bool]
    groups: tuple[tuple[int, ...], ...]
    seconds: float
    lands: int = 0
    at_end: bool = True


@dataclass(frozen=True)
class Job:
    strategy: str
    options: dict[str, Any]
    rules: tuple[Rule, ...]
    steps: int = 80
    compute_s: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1)
    sites: tuple[str, ...] = ("a", "a", "b", "b")
    layers: int = 1
    lock_step: bool = False
    """Whether the gradients of all ranks are summed in each step, not only those of a site."""
    fails: tuple[int, int, int] | None = None
    """The last step before a failure, the step of the checkpoint, and how many exchanges after it are cold."""


def duration(compute_s: float, begin_t: float, slows: Sequence[Slow]) -> float:
    """Return how long a computation takes that begins then, at a speed that changes at the edges of ``slows``."""
    t, left = begin_t, compute_s
    edges = sorted({edge for fault in slows for edge in (fault.begin_t, fault.end_t)})
    for edge in [*edges, float("inf")]:
        if edge <= t:
            continue
        factor = 1.0
        for fault in slows:
            if fault.begin_t <= t < fault.end_t:
                factor *= fault.factor
        if t + left * factor <= edge:
            return t + left * factor - begin_t
        left -= (edge - t) / factor
        t = edge
    raise AssertionError


@dataclass
class Ran:
    logs: list[RankLog]
    wall_s: float
    windows: list[FaultWindow] = field(default_factory=list)
    detected: dict[int, float] = field(default_factory=dict)

    @property
    def rank_seconds(self) -> float:
        return len(self.logs) * self.wall_s

    def evidence(self) -> JobEvidence:
        return evaluate(self.logs, self.windows, None, self.detected)


def run(job: Job, *faults: Slow | Jam) -> Ran:
    world = len(job.compute_s)
    everyone = tuple(range(world))
    sites = [tuple(r for r in everyone if job.sites[r] == name) for name in dict.fromkeys(job.sites)]
    records: list[list[StepRecord]] = [[] for _ in everyone]
    jobs: list[list[JobRecord]] = [[] for _ in everyone]
    now = [100.05] * world
    started_t = 100.0
    pending: dict[tuple[str, int], dict[int, float]] = {}
    detected: dict[int, float] = {}
    attempt, step, cold = 1, 1, 0

    def begin_attempt(resumed: int) -> None:
        for rank in everyone:
            jobs[rank].append(
                JobRecord(
                    started_t, rank, world, f"n{rank}", job.sites[rank], job.strategy, 120, 480, job.steps, attempt,
                    resumed, strategy=job.strategy, options=job.options, tokens=10,
                    compute={"kind": "declared", "layers": job.layers},
                )
            )  # fmt: skip

    begin_attempt(0)
    fresh = True
    while step <= job.steps:
        begins = [now[r] + (0.0 if fresh else GAP_S) for r in everyone]
        fresh = False
        slows = [[fault for fault in faults if isinstance(fault, Slow) and r in fault.ranks] for r in everyone]
        ready = [begins[r] + duration(job.compute_s[r], begins[r], slows[r]) for r in everyone]
        synced = [0.0] * world
        for group in [everyone] if job.lock_step else sites:
            last_t = max(ready[r] for r in group)
            for r in group:
                synced[r] = last_t + SITE_S + (jam(faults, last_t) if job.lock_step else 0.0)
        stepped = [t + OPTIMIZER_S for t in synced]
        at = list(stepped)
        last = step == job.steps
        for rule in job.rules:
            if rule.due(step) or (last and rule.at_end):
                pending[rule.name, step] = dict(enumerate(at))
            for name, begun in sorted(pending):
                if name == rule.name and (step == begun + rule.lands or last):
                    reached = pending.pop((name, begun))
                    for group in rule.groups:
                        start_t = max(reached[r] for r in group)
                        extra_s = jam(faults, start_t) + (COLD_S if cold else 0.0)
                        arrived_t = start_t + rule.seconds + extra_s
                        for r in group:
                            at[r] = max(at[r], arrived_t)
                    cold -= cold > 0
        for r in everyone:
            records[r].append(
                StepRecord(
                    step, begins[r], ready[r], synced[r], at[r], 10, 1.0, attempt=attempt, t_stepped=stepped[r]
                )
            )  # fmt: skip
        now = at
        if job.fails and attempt == 1 and step == job.fails[0]:
            detected[1] = max(now) + 2.0
            attempt, step, cold, started_t, fresh = 2, job.fails[1], job.fails[2], max(now) + 5.0, True
            pending.clear()
            begin_attempt(step)
            now = [started_t + 0.05] * world
        step += 1
    end_t = max(now) + 0.02
    logs = [
        RankLog(r, tuple(jobs[r]), tuple(records[r]), (EndRecord(end_t, "ok", "", job.steps, attempt),))
        for r in everyone
    ]
    windows = [FaultWindow(f"f{n}", fault.type, "x", (), fault.begin_t, fault.end_t) for n, fault in enumerate(faults)]
    return Ran(logs, end_t - 100.0, windows, detected)


def jam(faults: Sequence[Slow | Jam], t: float) -> float:
    return sum(fault.extra_s for fault in faults if isinstance(fault, Jam) and fault.begin_t <= t < fault.end_t)


def every(count: int, offset: int = 0) -> Callable[[int], bool]:
    return lambda step: step % count == offset


ALL = ((0, 1, 2, 3),)
DDP = Job("ddp", {}, (), lock_step=True)
DILOCO = Job("diloco", {"every": 10, "replica": "site"}, (Rule("all", every(10), ALL, 0.2),))
UNEQUAL = replace(DILOCO, compute_s=(0.1, 0.1, 0.13, 0.12), steps=83)
TIERS = Job(
    "multi-tier",
    {"every": 5, "every_regions": 20, "regions": [["a", "b"], ["c", "d"]]},
    (Rule("region", every(5), ((0, 1), (2, 3)), 0.05), Rule("regions", every(20), ALL, 0.3)),
    sites=("a", "b", "c", "d"),
    compute_s=(0.1, 0.12, 0.1, 0.11),
    steps=120,
)


def streaming(overlap: int, seconds: float = 0.25, **fields: Any) -> Job:
    rules = tuple(Rule(f"{p}", every(10, 5 * p), ALL, seconds, overlap) for p in range(2))
    options = {"every": 10, "fragments": 2, "overlap": overlap, "replica": "site"}
    return replace(Job("streaming-diloco", options, rules, layers=2), **fields)


# A site waits for pushes of the others that are ten steps old.
ASYNC = Job("async-diloco", {"every": 10, "staleness": 3}, (Rule("push", every(10), ALL, 0.1, 10),))

AHEAD = (0.1, 0.1, 0.12, 0.12)


def check(job: Job, *faults: Slow | Jam) -> JobEvidence:
    """The good rank-seconds are those of the undisturbed job, and what is beyond is the faults' cost."""
    quiet, disturbed = run(job), run(job, *faults)
    before, after = quiet.evidence(), disturbed.evidence()
    assert before.rank_seconds.slowed_by_faults_s == 0
    cost = disturbed.rank_seconds - quiet.rank_seconds
    assert after.rank_seconds.slowed_by_faults_s == pytest.approx(cost, abs=1e-6)
    assert sum(fault.total_s for fault in after.fault_costs) == pytest.approx(cost, abs=1e-6)
    assert after.rank_seconds.good_s == pytest.approx(before.rank_seconds.good_s, abs=1e-6)
    return after


@table(
    "job, faults",
    {
        "lock step": (DDP, [Slow((3,), 102.03, 106.03)]),
        "an exchange after ten steps": (DILOCO, [Slow((3,), 102.03, 106.03)]),
        "an exchange after ten steps of sites of unequal speed": (UNEQUAL, [Slow((3,), 102.03, 106.03)]),
        "the faster site is slow": (UNEQUAL, [Slow((0,), 102.03, 106.03)]),
        "a fault that begins and ends within a step": (DILOCO, [Slow((3,), 103.13, 103.18, 30.0)]),
        "a jammed exchange": (DILOCO, [Jam(102.03, 104.03)]),
        "a tier of regions": (TIERS, [Slow((1,), 103.03, 105.03)]),
        "a fault right after the exchange of regions": (TIERS, [Slow((1,), 106.03, 106.53, 8.0)]),
        "fragments that a step waits for": (streaming(0), [Slow((3,), 102.03, 106.03)]),
        "fragments that land later": (streaming(2, compute_s=AHEAD), [Slow((2, 3), 102.03, 106.03)]),
        "fragments of sites in step that land later": (streaming(2), [Slow((3,), 102.03, 106.03)]),
        "fragments that land long before they are used": (streaming(3, 0.05), [Slow((3,), 102.03, 106.03)]),
        "pushes that others wait for ten steps later": (ASYNC, [Slow((3,), 102.03, 106.03)]),
        "a jammed fragment": (streaming(1, compute_s=AHEAD), [Jam(102.03, 104.03)]),
    },
)
def test_evaluate_cost_of_a_fault(job, faults) -> None:
    (cost,) = check(job, *faults).fault_costs
    assert cost.total_s > 0.1, "the fault costs something"
    assert (cost.label, cost.count) == (f"{faults[0].type} x", 1)


@settings(max_examples=60, derandomize=True)
@given(
    st.sampled_from([DDP, DILOCO, UNEQUAL, TIERS, ASYNC, streaming(1, 0.05), streaming(2, compute_s=AHEAD)]),
    st.sets(st.integers(0, 3), min_size=1),
    st.floats(101.2, 105.0),
    st.floats(0.01, 1.5),
    st.sampled_from([1.5, 2.0, 9.0]),
)
def test_evaluate_cost_of_any_slow_ranks(job, slow_ranks, begin_t, length_s, factor) -> None:
    check(job, Slow(tuple(slow_ranks), begin_t, begin_t + length_s, factor))


# Sites push to a server, and wait for nobody until the job ends.
DECOUPLED = Job("decoupled", {"every": 10, "quorum": 1}, (Rule("end", lambda _: False, ALL, 0.1),))
UNEQUAL_DECOUPLED = replace(DECOUPLED, compute_s=(0.1, 0.1, 0.13, 0.13))


@table(
    "job, faults",
    {
        "of the same speed": (DECOUPLED, [Slow((3,), 102.03, 106.03)]),
        "the slower one": (UNEQUAL_DECOUPLED, [Slow((2, 3), 102.03, 106.03)]),
        "the faster one, until it is the slower one": (UNEQUAL_DECOUPLED, [Slow((0, 1), 102.03, 106.53, 3.0)]),
        "both, one after the other": (DECOUPLED, [Slow((3,), 102.03, 103.03), Slow((0,), 105.53, 107.53)]),
    },
)
def test_evaluate_cost_of_a_fault_at_a_site_that_no_other_waits_for_until_the_end(job, faults) -> None:
    check(job, *faults)


def test_evaluate_fault_that_delays_no_step_of_the_job_costs_nothing() -> None:
    """The faster site has seconds to spare until the job ends."""
    fault = Slow((0, 1), 102.03, 103.03)
    assert run(UNEQUAL_DECOUPLED, fault).wall_s == run(UNEQUAL_DECOUPLED).wall_s
    assert run(UNEQUAL_DECOUPLED, fault).evidence().rank_seconds.slowed_by_faults_s == pytest.approx(0, abs=1e-6)


@table(
    "faults, costs",
    {
        "in the same step": ([Slow((3,), 102.03, 104.03), Jam(103.03, 105.03)], ["jam x + slow x"]),
        "in the aftermath of the other": (
            [Slow((3,), 103.53, 103.93), Slow((2,), 104.03, 104.23, 9.0, "stall")], ["slow x + stall x"],
        ),
        "each in a cycle of its own": (
            [Slow((3,), 102.03, 103.03), Slow((2,), 106.03, 107.03, 3.0, "stall")], ["slow x", "stall x"],
        ),
        "one of two kinds, twice": ([Slow((3,), 102.03, 103.03), Slow((1,), 106.03, 107.03)], ["slow x"]),
    },
)  # fmt: skip
def test_evaluate_cost_of_faults_that_overlap_is_charged_once(faults, costs) -> None:
    evidence = check(UNEQUAL, *faults)
    assert [fault.label for fault in evidence.fault_costs] == costs
    assert sum(fault.count for fault in evidence.fault_costs) == (1 if " + " in costs[0] else 2)
    assert len(run(UNEQUAL, *faults).evidence().faults) == 2


def test_evaluate_cost_of_faults_apart_is_that_of_each_alone() -> None:
    faults = (Slow((3,), 102.03, 103.03), Slow((2,), 106.03, 107.03, 3.0, "stall"))
    both = {fault.label: fault.total_s for fault in check(UNEQUAL, *faults).fault_costs}
    for fault in faults:
        (alone,) = check(UNEQUAL, fault).fault_costs
        assert both[alone.label] == pytest.approx(alone.total_s, abs=1e-6)


@table(
    "job, fails, faults, label",
    {
        "by itself": (DDP, (33, 30, 0), [], "restart"),
        "after a fault": (DDP, (33, 30, 0), [Slow((3,), 103.73, 103.74, 1.0, "kill")], "kill x"),
        "whose first exchange is cold": (DILOCO, (33, 30, 1), [], "restart"),
        "whose first two exchanges are cold": (DILOCO, (35, 30, 2), [], "restart"),
        "from within a cycle": (DILOCO, (27, 25, 1), [], "restart"),
        "before all tiers have exchanged": (
            replace(TIERS, compute_s=(0.1,) * 4), (47, 45, 4), [], "restart",
        ),
        "during a fault": (DILOCO, (33, 30, 1), [Slow((3,), 103.03, 111.03)], "slow x"),
    },
)  # fmt: skip
def test_evaluate_cost_of_a_restart(job, fails, faults, label) -> None:
    """Lost work, detection and restart, and the slow steps until all is exchanged."""
    quiet, disturbed = run(job), run(replace(job, fails=fails), *faults)
    evidence = disturbed.evidence()
    (cost,) = evidence.fault_costs
    # Nothing precedes the first step of the second attempt but the restart.
    gaps_s = len(disturbed.logs) * GAP_S
    assert cost.total_s - gaps_s == pytest.approx(disturbed.rank_seconds - quiet.rank_seconds, abs=1e-6)
    assert (cost.label, cost.count) == (label, 1)
    classes = evidence.rank_seconds
    charged = (cost.slowed_by_faults_s, cost.lost_work_s, cost.detection_and_restart_s)
    assert charged == pytest.approx(
        (classes.slowed_by_faults_s, classes.lost_work_s, classes.detection_and_restart_s), abs=1e-6
    )
    assert (cost.slowed_by_faults_s > 0.1) is (fails[2] > 0)
    assert classes.good_s == pytest.approx(quiet.evidence().rank_seconds.good_s, abs=1e-6)
