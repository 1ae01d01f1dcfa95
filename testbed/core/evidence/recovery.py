"""What the job got done and how it came through its faults, from the step records alone.

The definitions, all in seconds of one monotonic clock:

- *compute* and *exposed communication* are rank-seconds. Exposed is from a rank's last gradient bucket being ready
  until its gradients are usable; *peer wait* is the part of it until the last rank was ready, *network* the rest.
- *compute utilization* = sum of compute / sum of (compute + exposed).
- A step is *committed* at the latest ``t_end`` of all ranks, once every rank of the world has recorded it.
- *Goodput* = committed tokens x fault-free seconds per token / wall time: the share of the wall time that a job without
  faults would have needed for the work that counts. Wall time includes restarts and stalls. It is an estimate: the
  fault-free pace is that of the steps outside the faults, so where those during a fault were by chance the quicker ones
  (a fault that costs nothing, on a machine whose steps vary by some per cent) it comes out a little above 1. That means
  that nothing was lost, to within this noise; it is shown as computed, because a value cut off at 1 would hide how
  large the noise is.
- *Recovery* of a fault = the longest gap between commits in its neighbourhood, and the time back to 1.1 x the median
  step. A gap is a fault's if it lies in the fault's time, at least in part; one soon after it is, unless another fault
  stood then. Faults that stand at once have their gaps in common: who caused which cannot be told.

What cannot be told from the records is None.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.core.evidence.record import RankLog, StepRecord
from testbed.core.evidence.timeline import FaultWindow

__all__ = ["BACK", "Commit", "FaultRecovery", "JobEvidence", "RankTime", "commits", "evaluate"]

BACK = 1.1
"""A job is back when a step takes at most this multiple of the fault-free median."""

_EDGE_STEPS = 3
"""Commits after a fault begins or ends among which its own stall is looked for: the step in progress at that moment may
need nothing more of the network, the next one does. Later slow steps are the host's noise, not this fault's."""

_STALL_STEPS = 5
"""A job that ends this many median steps after its last commit had stalled; a mere stop comes within a step or two."""

_LOSS_STEPS = 10
"""train_loss at the beginning and the end is the mean over this many steps; one batch alone says little."""


class _Stretches:
    """Stretches of time, from and to. A job of an hour has a thousand faults and tens of thousands of steps: which
    of them touch is asked so often that looking at each pair would take half an hour."""

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(stretches)
        self._begins = [begin for begin, _ in ordered]
        self._ends = list(itertools.accumulate((end for _, end in ordered), max))

    def touch(self, begin_t: float, end_t: float) -> bool:
        """Whether one of them begins before ``end_t`` and ends after ``begin_t``."""
        before = bisect.bisect_left(self._begins, end_t)
        return before > 0 and self._ends[before - 1] > begin_t


@dataclass(frozen=True)
class Commit:
    """A step that every rank finished. ``duration_s`` is since the commit before, for the first since its own begin.

    ``attempt`` is the one whose run of the step counts; ``resumed`` marks the first commit of a later attempt, whose
    duration has the failure, the steps that were lost and the restart in it. ``stood_t`` is when the job came to a
    stand before this commit: when the one before was made, or the last of the steps that were lost.
    """

    step: int
    t: float
    duration_s: float
    tokens: int
    train_loss: float | None
    attempt: int = 1
    resumed: bool = False
    stood_t: float = -math.inf

    @property
    def begin_t(self) -> float:
        return self.t - self.duration_s


@dataclass(frozen=True)
class RankTime:
    """Where one rank's time went, in seconds over all its steps."""

    rank: int
    node: str
    site: str
    compute_s: float
    peer_wait_s: float
    network_s: float

    @property
    def exposed_s(self) -> float:
        return self.peer_wait_s + self.network_s


@dataclass(frozen=True)
class FaultRecovery:
    """How the job came through one fault.

    Attributes:
        longest_gap_s: between two commits while it lasted and shortly after; up to the job's end when none came.
        back_s: from its beginning to the end of the first step at 1.1 x the median or less, after the stall; 0 when
            no step was slower; None when the job never came back.
        back_after_end_s: the same from the end of the fault.
        recovered: False when the job never came back; None when that cannot be told.
    """

    window: FaultWindow
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None


@dataclass(frozen=True)
class JobEvidence:
    """Everything about one job. Tokens and steps are over all ranks; compute and exposed are rank-seconds."""

    world_size: int | None
    steps_planned: int | None
    steps_lost: int
    commits: tuple[Commit, ...]
    rank_times: tuple[RankTime, ...]
    began_t: float | None
    ended_t: float | None
    median_step_s: float | None
    fault_free_s_per_token: float | None
    faults: tuple[FaultRecovery, ...]
    failures: tuple[str, ...]
    """What ranks said whose job failed, as in ``ranks 0, 2 failed at step 17: connection reset``."""

    @property
    def wall_s(self) -> float | None:
        return None if self.began_t is None or self.ended_t is None else self.ended_t - self.began_t

    @property
    def tokens(self) -> int:
        return sum(commit.tokens for commit in self.commits)

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.wall_s if self.wall_s and self.commits else None

    @property
    def goodput(self) -> float | None:
        if not self.wall_s or self.fault_free_s_per_token is None:
            return None
        return self.tokens * self.fault_free_s_per_token / self.wall_s

    @property
    def compute_s(self) -> float:
        return sum(each.compute_s for each in self.rank_times)

    @property
    def exposed_s(self) -> float:
        return sum(each.exposed_s for each in self.rank_times)

    @property
    def compute_utilization(self) -> float | None:
        total = self.compute_s + self.exposed_s
        return self.compute_s / total if total > 0 else None

    @property
    def recovery_s(self) -> float | None:
        """The longest gap between commits of all faults; None without a fault."""
        gaps = [fault.longest_gap_s for fault in self.faults if fault.longest_gap_s is not None]
        return max(gaps, default=None)

    @property
    def train_loss_first(self) -> float | None:
        return _mean([c.train_loss for c in self.commits[:_LOSS_STEPS] if c.train_loss is not None])

    @property
    def train_loss_last(self) -> float | None:
        return _mean([c.train_loss for c in self.commits[-_LOSS_STEPS:] if c.train_loss is not None])


def commits(logs: Sequence[RankLog], world_size: int) -> tuple[Commit, ...]:
    """The steps in the final parameters' lineage, in the order of time.

    A step that was run again after a restart counts once, as it was run last: that run is the one whose parameters went
    on. What an attempt did beyond the checkpoint that a later one went on from does not count, be it run again or not.
    A step that not all of ``world_size`` ranks recorded is not committed.
    """
    records = [list(row.values()) for row in _lineage(logs).values() if len(row) == world_size]
    ends = [it.t for it in _ran(logs, world_size)]
    found: list[Commit] = []
    for row in sorted(records, key=lambda row: max(record.t_end for record in row)):
        t = max(record.t_end for record in row)
        before = found[-1].t if found else min(record.t_begin for record in row)
        losses = [record.train_loss for record in row if record.train_loss is not None]
        attempt = row[0].attempt
        resumed = attempt > (found[-1].attempt if found else 1)
        tokens = sum(record.tokens for record in row)
        stood_t = max((end for end in ends if before < end < t), default=before) if resumed else before
        found.append(Commit(row[0].step, t, t - before, tokens, _mean(losses), attempt, resumed, stood_t))
    return tuple(found)


def _ran(logs: Sequence[RankLog], world_size: int) -> tuple[Commit, ...]:
    """Every run of a step that all ranks ended, whether or not it counts in the end, as :func:`commits` has them."""
    rows: dict[tuple[int, int], dict[int, StepRecord]] = {}
    for log in logs:
        for record in log.steps:
            rows.setdefault((record.attempt, record.step), {})[log.rank] = record
    found: list[Commit] = []
    whole = [list(row.values()) for row in rows.values() if len(row) == world_size]
    for row in sorted(whole, key=lambda row: max(record.t_end for record in row)):
        t = max(record.t_end for record in row)
        before = found[-1].t if found else min(record.t_begin for record in row)
        found.append(Commit(row[0].step, t, t - before, 0, None, row[0].attempt, stood_t=before))
    return tuple(found)


def evaluate(logs: Sequence[RankLog], windows: Sequence[FaultWindow], ended_t: float | None = None) -> JobEvidence:
    """Put a job's evidence together.

    ``ended_t`` is when the job was seen to end; it counts where a rank was killed and could not write its own end.
    """
    job = next((log.job for log in logs if log.job), None)
    committed = commits(logs, job.world_size) if job else ()
    began = min((log.jobs[0].t for log in logs if log.jobs), default=None)
    lasts = [end.t for log in logs for end in log.ends] + [record.t_end for log in logs for record in log.steps]
    silent = any(len(log.ends) < len(log.jobs) for log in logs)
    if silent and ended_t is not None and began is not None and ended_t >= began:
        lasts.append(ended_t)
    ended = max(lasts, default=None)
    stretches = _Stretches((it.began_t, math.inf if it.ended_t is None else it.ended_t) for it in windows)
    calm = [commit for commit in committed if not commit.resumed and not stretches.touch(commit.begin_t, commit.t)]
    median = statistics.median(commit.duration_s for commit in calm) if calm else None
    complete = job is not None and job.steps is not None and len(committed) >= job.steps
    ran = _ran(logs, job.world_size) if job and any(commit.resumed for commit in committed) else ()
    faults = tuple(_recover(committed, ran, window, stretches, median, began, ended, complete) for window in windows)
    return JobEvidence(
        world_size=job.world_size if job else None,
        steps_planned=job.steps if job else None,
        steps_lost=_steps_lost(logs, committed),
        commits=committed,
        rank_times=_rank_times(logs),
        began_t=began,
        ended_t=ended,
        median_step_s=median,
        fault_free_s_per_token=_seconds_per_token(calm, faults),
        faults=faults,
        failures=_failures(logs),
    )


def _failures(logs: Sequence[RankLog]) -> tuple[str, ...]:
    """One sentence for all ranks that say the same, of the last attempt: those before were made good by another. A rank
    that was told to stop did not fail."""
    said: dict[str, list[str]] = {}
    last = max((job.attempt for log in logs for job in log.jobs), default=1)
    for log in logs:
        for end in log.ends[-1:]:
            if end.status == "failed" and end.attempt == last:
                at = "" if end.step is None else f" at step {end.step}"
                reason = f": {end.reason}" if end.reason else ""
                said.setdefault(f"failed{at}{reason}", []).append(str(log.rank))
    return tuple(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {what}" for what, ranks in said.items())


def _lineage(logs: Sequence[RankLog]) -> dict[int, dict[int, StepRecord]]:
    """step -> rank -> its record, the last one where a step was run again in one attempt."""
    went_on_from = {job.attempt: job.resumed_from for log in logs for job in log.jobs}
    rows: dict[int, dict[int, StepRecord]] = {}
    for log in logs:
        for record in log.steps:
            later = (step for attempt, step in went_on_from.items() if attempt > record.attempt)
            if record.step <= min(later, default=record.step):
                rows.setdefault(record.step, {})[log.rank] = record
    return rows


def _steps_lost(logs: Sequence[RankLog], committed: Sequence[Commit]) -> int:
    """Steps that were run by some rank and are in no lineage: run again later, or never finished by all."""
    runs: Counter[tuple[int, int]] = Counter()
    for log in logs:
        runs |= Counter((record.attempt, record.step) for record in log.steps)
    return sum(runs.values()) - len(committed)


def _overlap(commit: Commit, window: FaultWindow, settle_s: float) -> bool:
    """Did the step's time touch the fault's, stretched by ``settle_s`` beyond its end?"""
    return commit.t > window.began_t and (window.ended_t is None or commit.begin_t < window.ended_t + settle_s)


def _seconds_per_token(calm: Sequence[Commit], faults: Sequence[FaultRecovery]) -> float | None:
    """From the steps outside every fault and its aftermath, as time over tokens, so that ordinary noise is no loss."""
    # After a fault had ended, but before the job was back.
    aftermaths = _Stretches(
        (fault.window.ended_t, fault.window.ended_t + fault.back_after_end_s)
        for fault in faults
        if fault.window.ended_t is not None and fault.back_after_end_s is not None
    )
    quiet = [commit for commit in calm if not aftermaths.touch(commit.begin_t, commit.t)]
    tokens = sum(commit.tokens for commit in quiet)
    return sum(commit.duration_s for commit in quiet) / tokens if tokens else None


def _recover(
    committed: Sequence[Commit],
    ran: Sequence[Commit],
    window: FaultWindow,
    faults: _Stretches,
    median: float | None,
    began: float | None,
    ended: float | None,
    complete: bool,
) -> FaultRecovery:
    outside = FaultRecovery(window, None, None, None, None)
    if median is None or began is None or ended is None or not committed:
        return outside
    if window.began_t > ended or (window.ended_t is not None and window.ended_t <= began):
        return outside
    last_t = committed[-1].t
    near = _gaps(committed, window, faults, _EDGE_STEPS * median)
    if not near:  # all that was done in its time was lost to a later fault
        near = _gaps(ran, window, faults, _EDGE_STEPS * median)
    stalled = not complete and ended - last_t > _STALL_STEPS * median
    if stalled and (window.ended_t is None or last_t <= window.ended_t):
        # Nothing was committed after it: the gap is as long as the job was still waited for, if not longer.
        return FaultRecovery(window, max([*near, ended - last_t]), None, None, False)
    if last_t <= window.began_t:
        return outside
    back = _back(committed, window, faults, window.began_t, median)
    after = None if window.ended_t is None else _back(committed, window, faults, window.ended_t, median)
    return FaultRecovery(window, max(near, default=None), back, after, back is not None)


def _gaps(done: Sequence[Commit], window: FaultWindow, faults: _Stretches, settle_s: float) -> list[float]:
    """Durations of the steps of ``done``, in the order of time, that tell of a fault."""
    behind = (done[at] for at in range(_first_after(done, window.began_t), len(done)))
    near = itertools.takewhile(lambda it: _overlap(it, window, settle_s), behind)
    return [it.duration_s for it in near if _is_of(it, window, faults)]


def _first_after(done: Sequence[Commit], t: float) -> int:
    return bisect.bisect_right(done, t, key=lambda it: it.t)


def _is_of(commit: Commit, window: FaultWindow, faults: _Stretches) -> bool:
    """Whether a commit's time may tell of this fault: it lies in the fault's, or in no other's."""
    stood_t = max(commit.stood_t, commit.begin_t)
    mine = commit.t > window.began_t and (window.ended_t is None or stood_t < window.ended_t)
    return mine or not faults.touch(stood_t, commit.t)


def _back(
    committed: Sequence[Commit], window: FaultWindow, faults: _Stretches, edge_t: float, median: float
) -> float | None:
    """Seconds from ``edge_t`` until a step took at most 1.1 x the median again; 0 when none near it took longer.

    Near are the first behind it, of those that may tell of the fault.
    """
    first = _first_after(committed, edge_t)
    near = [it for it in committed[first : first + _EDGE_STEPS] if _is_of(it, window, faults)]
    if not near:
        return 0.0
    worst = max(near, key=lambda it: it.duration_s)
    if worst.duration_s <= BACK * median:
        return 0.0
    later = (committed[at] for at in range(_first_after(committed, worst.t), len(committed)))
    return next((commit.t - edge_t for commit in later if commit.duration_s <= BACK * median), None)


def _peer_waits(logs: Sequence[RankLog]) -> dict[int, list[tuple[StepRecord, float]]]:
    """rank -> (record, peer wait): until the last rank of that step was ready, at most the exposed time."""
    # The n-th run of a step on one rank belongs with the n-th on the others.
    ready: dict[tuple[int, int, int], float] = {}
    keyed: dict[int, list[tuple[StepRecord, tuple[int, int, int]]]] = {}
    for log in logs:
        runs: Counter[tuple[int, int]] = Counter()
        for record in log.steps:
            run = (record.attempt, record.step)
            key = (*run, runs[run])
            runs[run] += 1
            ready[key] = max(ready.get(key, record.t_ready), record.t_ready)
            keyed.setdefault(log.rank, []).append((record, key))
    return {
        rank: [(record, min(record.exposed_s, ready[key] - record.t_ready)) for record, key in rows]
        for rank, rows in keyed.items()
    }


def _rank_times(logs: Sequence[RankLog]) -> tuple[RankTime, ...]:
    waits = _peer_waits(logs)
    return tuple(
        RankTime(
            rank=log.rank,
            node=log.node,
            site=log.site,
            compute_s=sum(record.compute_s for record in log.steps),
            peer_wait_s=sum(wait for _, wait in waits.get(log.rank, ())),
            network_s=sum(record.exposed_s - wait for record, wait in waits.get(log.rank, ())),
        )
        for log in logs
        if log.steps
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
