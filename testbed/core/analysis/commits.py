"""Steps that every rank finished, in the lineage of the final parameters, from the step records alone.

A step counts from the latest ``t_end`` of all ranks, once every rank of the world has recorded it. It is *committed* if
it is also in the outer parameters in the end: the strategy's twin says how many steps are (``Twin.committed``), rounded
down to whole ones. A checkpoint has what is not exchanged yet, too, so steps before it are committed by an exchange of
a later attempt. A job that ends in order ends with an exchange, so only the end of one that died may lack it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.exchange_schedule import ExchangeSchedule
from testbed.core.records.rank_log import CheckpointRecord, EvaluationRecord, RankLog, StepRecord
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["Commit", "checkpoint_time", "commits", "every_run", "lineage", "steps_lost"]


@dataclass(frozen=True)
class Commit:
    """A step that every rank finished. ``duration_s`` is since the previous commit, or since the first step began.

    ``attempt`` is the one whose run of the step counts; ``resumed`` marks the first commit of a later attempt, whose
    duration includes the failure, the lost steps and the restart. ``stood_t`` is when progress stopped before this
    commit: at the previous commit, or at the last of the lost steps. ``ran_t`` is when the first rank began the step.
    ``checkpoint_s`` is how much of the duration the ranks spent on a checkpoint or an evaluation after the step before.

    ``exchanges`` distinguishes steps with other exchanges than most have (``ExchangeSchedule.kind``): steps alike have
    equal ones. ``exchange_s`` is how much longer such a step usually takes, without a fault (``paced.py``).

    Of a launched program (``program_evidence.py``) a commit may stand for ``steps``, all since the one before.
    ``timed`` is False for its first one: when the steps up to there began is not known.
    """

    step: int
    t: float
    duration_s: float
    tokens: int
    train_loss: float | None
    attempt: int = 1
    resumed: bool = False
    stood_t: float = -math.inf
    ran_t: float = -math.inf
    checkpoint_s: float = 0.0
    steps: int = 1
    timed: bool = True
    exchanges: tuple[Operation, ...] = ()
    exchange_s: float = 0.0

    @property
    def begin_t(self) -> float:
        # The begin itself where it is known: a difference would be off by rounding.
        return self.t - self.duration_s if self.resumed or self.stood_t == -math.inf else self.stood_t

    @property
    def step_s(self) -> float:
        """The duration of a step, without the checkpoint and the usual exchange in it: how long the step itself kept
        the job."""
        return self.whole_s / self.steps

    @property
    def whole_s(self) -> float:
        """The duration of all its steps, without the same."""
        return self.duration_s - self.checkpoint_s - self.exchange_s

    def longest_s(self, median_s: float | None) -> float:
        """Return how long the longest of the steps took, if the others took ``median_s`` each: a stall is one step's.

        At least the mean step, at most all of the duration, which it is of one step.
        """
        return max(self.step_s, self.whole_s - (self.steps - 1) * (median_s or 0.0))


def commits(logs: Sequence[RankLog], world_size: int, twin: Twin | None = None) -> tuple[Commit, ...]:
    """Return the steps in the final parameters' lineage, in the order of time.

    A step that was run again after a restart counts once, as its last run: that run's parameters went on. What an
    attempt did beyond the checkpoint from which a later one resumed does not count, whether or not it was run again. A
    step that not all of ``world_size`` ranks recorded is not committed, nor is one that is not in the outer parameters
    in the end. Without ``twin`` each step is an exchange.
    """
    most = math.inf if twin is None or _ended_in_order(logs) else _committed(logs, world_size, twin)
    records = [list(row.values()) for step, row in lineage(logs).items() if len(row) == world_size and step <= most]
    saving = _longest_checkpoints(logs)
    ends = [commit.t for commit in every_run(logs, world_size)]
    schedule = ExchangeSchedule(twin)
    committed: list[Commit] = []
    for row in sorted(records, key=lambda row: max(record.t_end for record in row)):
        t = max(record.t_end for record in row)
        before = committed[-1].t if committed else min(record.t_begin for record in row)
        losses = [record.train_loss for record in row if record.train_loss is not None]
        attempt = row[0].attempt
        resumed = attempt > (committed[-1].attempt if committed else 1)
        tokens = sum(record.tokens for record in row)
        stood_t = max((end for end in ends if before < end < t), default=before) if resumed else before
        saved_s = 0.0 if resumed else min(saving.get((attempt, row[0].step), 0.0), t - before)
        ran_t = min(record.t_begin for record in row)
        committed.append(
            Commit(
                row[0].step, t, t - before, tokens, _mean(losses), attempt, resumed, stood_t, ran_t, saved_s,
                exchanges=schedule.kind(row[0].step),
            )
        )  # fmt: skip
    return tuple(committed)


def _ended_in_order(logs: Sequence[RankLog]) -> bool:
    """Whether all ranks ended the last attempt in order: by an exchange, or by a checkpoint for the next attempt."""
    last = max((job.attempt for log in logs for job in log.jobs), default=1)
    ends = [[end for end in log.ends if end.attempt == last] for log in logs]
    return bool(ends) and all(any(end.status != "failed" and not end.forced for end in end) for end in ends)


def _committed(logs: Sequence[RankLog], world_size: int, twin: Twin) -> int:
    """Return the last step that is in the outer parameters."""
    done = max((step for step, row in lineage(logs).items() if len(row) == world_size), default=0)
    # A fragment's share may be a step's third: a sum of shares is off by rounding.
    return math.floor(twin.committed(done) + 1e-9)


def every_run(logs: Sequence[RankLog], world_size: int, twin: Twin | None = None) -> tuple[Commit, ...]:
    """Return every run of a step that all ranks ended, whether or not it counts in the end, as :func:`commits` does."""
    rows: dict[tuple[int, int], dict[int, StepRecord]] = {}
    for log in logs:
        for record in log.steps:
            rows.setdefault((record.attempt, record.step), {})[log.rank] = record
    schedule = ExchangeSchedule(twin)
    runs: list[Commit] = []
    whole = [list(row.values()) for row in rows.values() if len(row) == world_size]
    for row in sorted(whole, key=lambda row: max(record.t_end for record in row)):
        t = max(record.t_end for record in row)
        before = runs[-1].t if runs else min(record.t_begin for record in row)
        step = row[0].step
        exchanges = schedule.kind(step)
        runs.append(Commit(step, t, t - before, 0, None, row[0].attempt, stood_t=before, exchanges=exchanges))
    return tuple(runs)


def steps_lost(logs: Sequence[RankLog], committed: Sequence[Commit]) -> int:
    """Return the number of steps that some rank ran and that are in no lineage: run again, or never finished by all."""
    runs: Counter[tuple[int, int]] = Counter()
    for log in logs:
        runs |= Counter((record.attempt, record.step) for record in log.steps)
    return sum(runs.values()) - len(committed)


def checkpoint_time(log: RankLog) -> dict[tuple[int, int], float]:
    """Return (attempt, step) -> the seconds for which a checkpoint or an evaluation kept the rank from beginning it."""
    pauses: list[CheckpointRecord | EvaluationRecord] = sorted(
        (*log.checkpoints, *log.evaluations), key=lambda checkpoint: checkpoint.t
    )
    ends = {(record.attempt, record.step): record.t_end for record in log.steps} if pauses else {}
    seconds_by_step: dict[tuple[int, int], float] = {}
    for commit in pauses:
        since = ends.get((commit.attempt, commit.step))
        most = math.inf if since is None else max(0.0, commit.t - since)
        blocked_s = commit.took_s if commit.took_s is not None else 0.0 if since is None else most
        key = (commit.attempt, commit.step + 1)
        seconds_by_step[key] = min(most, seconds_by_step.get(key, 0.0) + max(0.0, blocked_s))
    return seconds_by_step


def _longest_checkpoints(logs: Sequence[RankLog]) -> dict[tuple[int, int], float]:
    """Return (attempt, step) -> the longest checkpoint of any rank before the step, for which all ranks waited."""
    longest_s: dict[tuple[int, int], float] = {}
    for log in logs:
        for key, seconds in checkpoint_time(log).items():
            longest_s[key] = max(seconds, longest_s.get(key, 0.0))
    return longest_s


def lineage(logs: Sequence[RankLog]) -> dict[int, dict[int, StepRecord]]:
    """Return step -> rank -> its record, the last one where a step was run again in one attempt."""
    went_on_from = {job.attempt: job.resumed_from for log in logs for job in log.jobs}
    rows: dict[int, dict[int, StepRecord]] = {}
    for log in logs:
        for record in log.steps:
            later = (step for attempt, step in went_on_from.items() if attempt > record.attempt)
            if record.step <= min(later, default=record.step):
                rows.setdefault(record.step, {})[log.rank] = record
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
