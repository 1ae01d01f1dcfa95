"""A job with checkpoints and failures as a renewal process, for what Daly's formula leaves out. Pure; seeded.

Work goes on in intervals, each followed by a checkpoint. A failure, at exponentially distributed times, ends the
interval or the checkpoint; then comes a restart, which a failure may end, too, and the work since the last checkpoint
is done again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["JobTime", "simulate_failures"]


@dataclass(frozen=True)
class JobTime:
    """Where the wall time of a job went, in seconds; the parts add up to ``wall_s``."""

    work_s: float
    checkpoints_s: float
    lost_s: float
    restarts_s: float
    failures: int

    @property
    def wall_s(self) -> float:
        return self.work_s + self.checkpoints_s + self.lost_s + self.restarts_s

    @property
    def goodput(self) -> float:
        """Share of the wall time that is work kept."""
        return self.work_s / self.wall_s


def simulate_failures(
    work_s: float, *, checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float, seed: int
) -> JobTime:
    """Return where the time of a job of ``work_s`` goes that writes a checkpoint after each ``interval_s`` of work.

    Raises:
        ValueError: a time that is not greater than 0, or a checkpoint or restart below 0.
    """
    if not min(work_s, interval_s, mtbf_s) > 0 or min(checkpoint_s, restart_s) < 0:
        raise ValueError(
            "expected work, interval and mean time between failures above 0, checkpoint and restart 0 or more"
        )
    draws = random.Random(seed)

    def draw(now_s: float) -> float:
        return now_s + (draws.expovariate(1 / mtbf_s) if math.isfinite(mtbf_s) else math.inf)

    spent = dict.fromkeys(("work", "checkpoints", "lost", "restarts"), 0.0)
    now_s, next_s, count, done = 0.0, draw(0.0), 0, 0
    pieces = max(1, math.ceil(work_s / interval_s - 1e-9))
    while done < pieces:
        piece_s = interval_s if done < pieces - 1 else work_s - (pieces - 1) * interval_s
        if now_s + piece_s + checkpoint_s <= next_s:
            now_s += piece_s + checkpoint_s
            done += 1
            spent["work"] += piece_s
            spent["checkpoints"] += checkpoint_s
            continue
        spent["lost"] += next_s - now_s
        now_s = next_s
        while True:  # a restart may fail, too
            count += 1
            next_s = draw(now_s)
            restart_until_s = min(now_s + restart_s, next_s)
            spent["restarts"] += restart_until_s - now_s
            now_s = restart_until_s
            if now_s < next_s:
                break
    return JobTime(spent["work"], spent["checkpoints"], spent["lost"], spent["restarts"], count)
