"""A job's commits against its faults: its fault-free pace, the recovery from each fault, and which steps none touched.

One path for every kind of job: the testbed's agents record each step themselves (``goodput.py``), launched programs
print theirs (``program_evidence.py``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.core.analysis.commits import Commit
from testbed.core.analysis.disturbances import Disturbance, Interruption, join
from testbed.core.analysis.recovery import FaultRecovery, JobSpan, StepPace, recover, restart_end_t
from testbed.core.analysis.timeline import FaultWindow, Stretches
from testbed.core.training.strategy_operation import Operation

__all__ = ["Paced", "pace"]


@dataclass(frozen=True)
class Paced:
    """``quiet`` are the commits outside every fault, restart and aftermath, which are the ``disturbances``.

    Where only some steps have an exchange, ``step_s`` of the pace is that of a step with the most frequent exchanges,
    or without any; what the others usually take more is no fault's doing (``Commit.exchange_s``).
    """

    pace: StepPace | None
    faults: tuple[FaultRecovery, ...]
    quiet: tuple[Commit, ...]
    disturbances: tuple[Disturbance, ...]

    @property
    def median_step_s(self) -> float | None:
        return None if self.pace is None else self.pace.step_s

    @property
    def s_per_token(self) -> float | None:
        """Seconds for each token of the quiet steps; None without tokens."""
        tokens = sum(commit.tokens for commit in self.quiet)
        return sum(commit.whole_s + commit.exchange_s for commit in self.quiet) / tokens if tokens else None


def pace(
    committed: Sequence[Commit],
    ran: Sequence[Commit],
    windows: Sequence[FaultWindow],
    span: JobSpan | None,
    exchanged: Callable[[float], float] = lambda t: t,
) -> Paced:
    """Return the pace; ``ran`` are all runs of steps, also those that do not count in the end.

    ``exchanged``: when all that was affected until a time is exchanged; by default each step is an exchange.
    """
    stretches = Stretches(
        (window.began_t, math.inf if window.ended_t is None else window.ended_t) for window in windows
    )
    usually = _usual_exchanges([commit for commit in committed if _is_calm(commit, stretches)])
    committed, ran = _without(usually, committed), _without(usually, ran)
    calm = [commit for commit in committed if _is_calm(commit, stretches)]
    usual = StepPace.of(calm)
    faults = tuple(recover(committed, ran, window, stretches, usual, span, exchanged) for window in windows)
    disturbances = join([*_of_faults(faults, span), *_of_restarts(committed, stretches, usual, exchanged)])
    disturbed = Stretches((disturbance.began_t, disturbance.ended_t) for disturbance in disturbances)
    # So that ordinary noise is no loss, all other steps count as they were.
    quiet = tuple(commit for commit in calm if not disturbed.touch(commit.begin_t, commit.t))
    return Paced(usual, faults, quiet, disturbances)


def _is_calm(commit: Commit, faults: Stretches) -> bool:
    return commit.timed and not commit.resumed and not faults.touch(commit.begin_t, commit.t)


_Exchanges = tuple[Operation, ...]


def _usual_exchanges(calm: Sequence[Commit]) -> dict[_Exchanges, float]:
    """Return how much longer the median step with each set of exchanges takes than one with the most frequent set."""
    alike: dict[_Exchanges, list[float]] = {}
    for commit in calm:
        alike.setdefault(commit.exchanges, []).append(commit.whole_s)
    if len(alike) < 2:
        return {}
    most_frequent = max(alike, key=lambda exchanges: len(alike[exchanges]))
    usual_s = statistics.median(alike[most_frequent])
    return {exchanges: max(0.0, statistics.median(durations_s) - usual_s) for exchanges, durations_s in alike.items()}


def _without(usually: Mapping[_Exchanges, float], commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits, with the time of their usual exchange taken off."""
    return [
        replace(commit, exchange_s=min(extra_s, max(0.0, commit.duration_s - commit.checkpoint_s)))
        if (extra_s := usually.get(commit.exchanges, 0.0))
        else commit
        for commit in commits
    ]


def _of_faults(faults: Sequence[FaultRecovery], span: JobSpan | None) -> list[Interruption]:
    """Return the faults that overlap the job."""
    return [
        Interruption(
            fault.window.began_t,
            math.inf if fault.aftermath_end_t is None else fault.aftermath_end_t,
            fault.window.label,
        )
        for fault in faults
        if span
        and fault.window.began_t < span.ended_t
        and (fault.window.ended_t is None or fault.window.ended_t > span.began_t)
    ]


def _of_restarts(
    committed: Sequence[Commit], faults: Stretches, pace: StepPace | None, exchanged: Callable[[float], float]
) -> list[Interruption]:
    interruptions = []
    for commit in committed:
        if commit.resumed:
            end_t = None if pace is None else restart_end_t(committed, commit, faults, pace, exchanged)
            resumed_t = max(commit.stood_t, commit.ran_t)
            interruptions.append(
                Interruption(commit.stood_t, math.inf if end_t is None else end_t, "restart", resumed_t)
            )
    return interruptions
