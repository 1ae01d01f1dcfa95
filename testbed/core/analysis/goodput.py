"""What the job achieved, from the step records alone: goodput, utilization, and recovery from its faults.

The definitions, all in seconds of one monotonic clock:

- *compute utilization* = sum of compute / sum of (compute + exposed); ``rank_times.py`` has the two.
- *Goodput* = (productive + exposed communication) / (world size x wall time), all in rank-seconds of committed steps at
  their fault-free pace: ``rank_seconds.py`` puts every rank-second into one class. Checkpoints, lost work, restarts and
  the slowdown by faults are in the wall time and not in goodput; evaluations on held-out text are in neither.
- ``commits.py`` defines which steps count, ``recovery.py`` the recovery from a fault.
- The goodput of a job that died is an upper bound: its wall time ends with the job, which was never completed.

What the records do not tell is None.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.commits import Commit, commits, every_run, steps_lost
from testbed.core.analysis.disturbances import FaultCost
from testbed.core.analysis.exchange_schedule import ExchangeSchedule, ExchangeTimes
from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.paced import pace
from testbed.core.analysis.rank_seconds import AttemptSpan, RankSeconds, account
from testbed.core.analysis.rank_times import RankTime, rank_times
from testbed.core.analysis.recovery import FaultRecovery, JobSpan
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import RankLog
from testbed.core.training.twin import Twin

__all__ = ["JobEvidence", "evaluate", "loss_steps"]

_OF_A_STEP = re.compile(r"step ([0-9]{1,12}): (.*)", re.DOTALL)
_LOSS_STEPS = 10
"""train_loss at the beginning and the end is the mean over this many steps, or over half of a shorter job's: one batch
alone says little."""


@dataclass(frozen=True)
class JobEvidence:
    """The evidence on one job. Tokens and steps are over all ranks; compute and exposed are rank-seconds."""

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
    """Failures that ranks reported, as in ``ranks 0, 2 failed at step 17: connection reset``."""
    spans: tuple[AttemptSpan, ...] = ()
    """Every rank-second by class, attempt by attempt; empty if the wall time is unknown."""
    died: bool = False
    """Whether a rank failed and nothing restarted the job: it never reached its last step, and did not come back."""
    seen_t: float | None = None
    """Until when the run was observed, at least ``ended_t``; a job that died did not come back until then."""
    program: bool = False
    """Whether it is a launched program, of which only steps are known, if at all."""
    timed: tuple[float, float] | None = None
    """Of a launched program, from when to when its steps are known; its wall time is that."""
    goodput_of_steps: float | None = None
    """Of a launched program, whose rank-seconds are not known."""
    fault_costs: tuple[FaultCost, ...] = ()
    """Rank-seconds by the faults and restarts that cost them; overlapping ones share an entry. Empty if no step tells
    the fault-free pace."""
    quiet: tuple[tuple[float, float], ...] = ()
    """Begin and end of each commit outside of faults and their aftermaths; the fault-free pace is that of these."""
    complete: bool = False
    """Whether it reached its last step; a launched program, whether all of its processes ended with status 0."""

    @property
    def wall_s(self) -> float | None:
        if self.program:
            return None if self.timed is None else self.timed[1] - self.timed[0]
        return None if self.began_t is None or self.ended_t is None else self.ended_t - self.began_t

    @property
    def trained_s(self) -> float | None:
        """The wall time without evaluations, which are no part of the job."""
        if self.wall_s is None or not self.world_size:
            return self.wall_s
        return self.wall_s - self.rank_seconds.evaluation_s / self.world_size

    @property
    def tokens(self) -> int:
        return sum(commit.tokens for commit in self.commits)

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.trained_s if self.trained_s and self.tokens else None

    @property
    def steps_committed(self) -> int:
        return sum(commit.steps for commit in self.commits)

    @property
    def gap_at_most(self) -> bool:
        """Whether :attr:`recovery_s` is an upper bound, as the program prints too seldom to tell."""
        gaps = [fault for fault in self.faults if fault.longest_gap_s is not None]
        return (
            max(gaps, key=lambda fault: (fault.longest_gap_s or 0.0, not fault.gap_at_most)).gap_at_most
            if gaps
            else False
        )

    @property
    def goodput(self) -> float | None:
        if self.program:
            return self.goodput_of_steps
        return self.share_of(self.rank_seconds.good_s, self.trained_s)

    @property
    def rank_seconds(self) -> RankSeconds:
        """World size x wall time, by class."""
        return sum((span.seconds for span in self.spans), RankSeconds())

    def share_of(self, rank_seconds: float, wall_s: float | None) -> float | None:
        """Return ``rank_seconds`` over those of ``wall_s``; None where no step tells the fault-free pace."""
        if not wall_s or wall_s < 0 or not self.world_size or self.fault_free_s_per_token is None or not self.spans:
            return None
        return min(1.0, rank_seconds / (self.world_size * wall_s))

    @property
    def compute_s(self) -> float:
        return sum(rank_time.compute_s for rank_time in self.rank_times)

    @property
    def exposed_s(self) -> float:
        return sum(rank_time.exposed_s for rank_time in self.rank_times)

    @property
    def compute_utilization(self) -> float | None:
        total = self.compute_s + self.exposed_s
        return self.compute_s / total if total > 0 else None

    @property
    def recovery_s(self) -> float | None:
        """The longest gap between commits over all faults, at least this long if :attr:`recovery_open`; None without a
        fault."""
        gaps = [fault.longest_gap_s for fault in self.faults if fault.longest_gap_s is not None]
        return max(gaps, default=None)

    @property
    def recovery_open(self) -> bool:
        """Whether no step came after one of the faults."""
        return any(fault.gap_open for fault in self.faults)

    @property
    def train_loss_first(self) -> float | None:
        return _mean([c.train_loss for c in self.commits[: self._loss_steps] if c.train_loss is not None])

    @property
    def train_loss_last(self) -> float | None:
        return _mean([c.train_loss for c in self.commits[-self._loss_steps :] if c.train_loss is not None])

    @property
    def _loss_steps(self) -> int:
        return loss_steps(len(self.commits))


def loss_steps(committed: int) -> int:
    """Return over how many steps ``train_loss`` at either end of a job is the mean."""
    return min(_LOSS_STEPS, max(1, committed // 2))


def evaluate(
    logs: Sequence[RankLog],
    windows: Sequence[FaultWindow],
    ended_t: float | None = None,
    detected: Mapping[int, float] | None = None,
    *,
    seen_t: float | None = None,
    failed: bool = False,
    twin: Twin | None = None,
) -> JobEvidence:
    """Build the evidence on a job.

    ``ended_t`` is when the job was observed to end; it counts where a rank was killed and could not record its own end.
    ``detected`` is when the end of each attempt was detected, if known. ``seen_t`` is until when the run was observed.
    ``failed``: the job is known to have failed, even if no rank could record that. ``twin`` is that of the logs unless
    it is given.
    """
    job = next((log.job for log in logs if log.job), None)
    twin = twin or twin_of(logs)
    committed = commits(logs, job.world_size, twin) if job else ()
    began = min((log.jobs[0].t for log in logs if log.jobs), default=None)
    lasts = [end.t for log in logs for end in log.ends] + [record.t_end for log in logs for record in log.steps]
    silent = any(len(log.ends) < len(log.jobs) for log in logs)
    if silent and ended_t is not None and began is not None and ended_t >= began:
        lasts.append(ended_t)
    ended = max(lasts, default=None)
    complete = job is not None and job.steps is not None and len(committed) >= job.steps
    ran = every_run(logs, job.world_size, twin) if job and any(commit.resumed for commit in committed) else ()
    died = job is not None and not complete and (failed or _any_failed(logs))
    seen = ended if ended is None or seen_t is None or not died else max(ended, seen_t)
    span = None if began is None or ended is None or seen is None else JobSpan(began, ended, seen, complete, died)
    paced = pace(committed, ran, windows, span, ExchangeTimes(logs, ExchangeSchedule(twin)).after)
    spans: tuple[AttemptSpan, ...] = ()
    costs: tuple[FaultCost, ...] = ()
    if job and span and 0 < job.world_size * (span.ended_t - span.began_t) < math.inf:
        spans, costs = account(
            logs,
            job.world_size,
            span.began_t,
            span.ended_t,
            paced.disturbances,
            complete=complete,
            observed_end=ended_t is not None,
            detected=detected or {},
            twin=twin,
            committed={(commit.attempt, commit.step) for commit in committed},
        )
    return JobEvidence(
        world_size=job.world_size if job else None,
        steps_planned=job.steps if job else None,
        steps_lost=steps_lost(logs, committed),
        commits=committed,
        rank_times=rank_times(logs, twin),
        began_t=began,
        ended_t=ended,
        median_step_s=paced.median_step_s,
        fault_free_s_per_token=paced.s_per_token,
        faults=paced.faults,
        failures=_failures(logs),
        spans=spans,
        fault_costs=costs if paced.s_per_token is not None else (),
        quiet=tuple((commit.begin_t, commit.t) for commit in paced.quiet),
        complete=complete,
        died=died,
        seen_t=seen,
    )


def _any_failed(logs: Sequence[RankLog]) -> bool:
    """Whether a rank recorded that it failed in the last attempt."""
    last = max((job.attempt for log in logs for job in log.jobs), default=1)
    return any(end.status == "failed" and end.attempt == last for log in logs for end in log.ends[-1:])


def _failures(logs: Sequence[RankLog]) -> tuple[str, ...]:
    """Return one sentence for all ranks with the same failure in the last attempt; a later attempt made up for earlier
    failures. A rank that was asked to stop did not fail."""
    ranks_by_failure: dict[str, list[str]] = {}
    last = max((job.attempt for log in logs for job in log.jobs), default=1)
    for log in logs:
        for end in log.ends[-1:]:
            if end.status == "failed" and end.attempt == last:
                # An agent's own reason begins with the step that it was in, the one after the last that it ended.
                of = _OF_A_STEP.fullmatch(end.reason)
                at = f" in step {of[1]}" if of else "" if end.step is None else f" at step {end.step}"
                why = of[2] if of else end.reason
                reason = f": {why}" if why else ""
                ranks_by_failure.setdefault(f"failed{at}{reason}", []).append(str(log.rank))
    return tuple(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {what}" for what, ranks in ranks_by_failure.items()
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
