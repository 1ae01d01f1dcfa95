"""A job's commits against its faults: its fault-free pace, the recovery from each fault, and which steps none touched.

One path for every kind of job: the testbed's agents record each step themselves (``goodput.py``), launched programs
print theirs (``program_evidence.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.commits import Commit
from testbed.core.analysis.recovery import FaultRecovery, JobSpan, Pace, recover
from testbed.core.analysis.timeline import FaultWindow, Stretches

__all__ = ["Paced", "pace"]


@dataclass(frozen=True)
class Paced:
    """``quiet`` are the commits outside every fault and its aftermath; ``stretches`` the faults' times."""

    pace: Pace | None
    faults: tuple[FaultRecovery, ...]
    quiet: tuple[Commit, ...]
    stretches: Stretches

    @property
    def median_step_s(self) -> float | None:
        return None if self.pace is None else self.pace.step_s

    @property
    def s_per_token(self) -> float | None:
        """Seconds for each token of the quiet steps; None without tokens."""
        tokens = sum(commit.tokens for commit in self.quiet)
        return sum(commit.step_s * commit.steps for commit in self.quiet) / tokens if tokens else None


def pace(
    committed: Sequence[Commit], ran: Sequence[Commit], windows: Sequence[FaultWindow], span: JobSpan | None
) -> Paced:
    """Return the pace; ``ran`` are all runs of steps, also those that do not count in the end."""
    stretches = Stretches((it.began_t, math.inf if it.ended_t is None else it.ended_t) for it in windows)
    calm = [it for it in committed if it.timed and not it.resumed and not stretches.touch(it.begin_t, it.t)]
    usual = Pace.of(calm)
    faults = tuple(recover(committed, ran, window, stretches, usual, span) for window in windows)
    return Paced(usual, faults, tuple(_quiet(calm, faults)), stretches)


def _quiet(calm: Sequence[Commit], faults: Sequence[FaultRecovery]) -> list[Commit]:
    """Return the steps outside every fault and its aftermath, so that ordinary noise is no loss."""
    # From the end of a fault until the job was back to its pace, or until another fault took over.
    aftermaths = Stretches(
        (fault.window.ended_t, fault.aftermath_end_t)
        for fault in faults
        if fault.window.ended_t is not None and fault.aftermath_end_t is not None
    )
    return [commit for commit in calm if not aftermaths.touch(commit.begin_t, commit.t)]
