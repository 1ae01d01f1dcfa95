"""A job with checkpoints and failures as events on one heap, for what Daly's formula leaves out. Pure; seeded.

Work goes on in intervals, each followed by a checkpoint. A failure, at exponentially distributed times, ends the
interval or the checkpoint; then comes a restart, which a failure may end, too, and the work since the last checkpoint
is done again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from testbed.core.prediction.event_heap import Process, Simulation

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


class _Failures:
    """When the next failure happens."""

    def __init__(self, simulation: Simulation, mtbf_s: float, seed: int) -> None:
        self._simulation, self._mtbf_s, self._random = simulation, mtbf_s, random.Random(seed)
        self.next_s = self._draw()

    def _draw(self) -> float:
        return self._simulation.now_s + (
            self._random.expovariate(1 / self._mtbf_s) if math.isfinite(self._mtbf_s) else math.inf
        )

    def happened(self) -> None:
        self.next_s = self._draw()


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
    simulation = Simulation()
    failures = _Failures(simulation, mtbf_s, seed)
    spent = dict.fromkeys(("work", "checkpoints", "lost", "restarts"), 0.0)
    count = 0

    def job() -> Process:
        nonlocal count
        done, pieces = 0, max(1, math.ceil(work_s / interval_s - 1e-9))
        while done < pieces:
            piece_s = interval_s if done < pieces - 1 else work_s - (pieces - 1) * interval_s
            attempt_s = piece_s + checkpoint_s
            if simulation.now_s + attempt_s <= failures.next_s:
                yield attempt_s
                done += 1
                spent["work"] += piece_s
                spent["checkpoints"] += checkpoint_s
                continue
            spent["lost"] += failures.next_s - simulation.now_s
            yield failures.next_s - simulation.now_s
            while True:  # a restart may fail, too
                count += 1
                failures.happened()
                if simulation.now_s + restart_s <= failures.next_s:
                    spent["restarts"] += restart_s
                    yield restart_s
                    break
                spent["restarts"] += failures.next_s - simulation.now_s
                yield failures.next_s - simulation.now_s

    simulation.start(job())
    simulation.run()
    return JobTime(spent["work"], spent["checkpoints"], spent["lost"], spent["restarts"], count)
