"""Declared compute of a run, from the step records alone: how close to it the ranks came."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from testbed.core.fields import number, text
from testbed.core.json_form import Keywords
from testbed.core.prediction.machine_limits import cpu_share
from testbed.core.records.rank_log import RankLog

__all__ = ["CPU_BOUND", "HELD", "DeclaredSteps", "declared_steps"]

HELD: Final = "held"
CPU_BOUND: Final = "CPU-bound here"
TOLERANCE_SHARE: Final = 0.02
TOLERANCE_S: Final = 1e-3
"""Largest difference of the means of measured and declared compute: the greater of the two."""


@dataclass(frozen=True)
class DeclaredSteps:
    """Declared against measured compute, over all steps of all ranks; times in seconds.

    Attributes:
        kind: ``declared``, a model that sleeps, or ``paced``, the agents' own inside declared time.
        seconds, noise: as declared: of a step at a site of speed 1, and its standard deviation as a share.
        declared_s, measured_s: means; the first with the noise and the faults that were drawn.
        steps: of all ranks; ``overruns``: of them, those that took longer by more than 2 % or 1 ms.
        overrun_s: mean of those; 0 without one. ``worst_s``: the longest.
        cpu_s: mean CPU time of a rank in a step, all its threads; None where it was not recorded.
        ranks, cores: of the job, and of the machine; None if unknown.
        parameters: of the model in the lab; None if unknown.
        speeds: of slower sites, relative to the others.
    """

    kind: Annotated[str, Keywords(enum=["declared", "paced"])]
    seconds: float
    noise: float
    declared_s: float
    measured_s: float
    steps: int
    overruns: int
    """Steps that took longer than declared by more than 2 % or 1 ms."""
    overrun_s: float
    worst_s: float
    """The longest of those."""
    cpu_s: float | None
    ranks: int
    cores: int | None
    parameters: int | None
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def asleep(self) -> bool:
        """Whether layers only sleep, so that a loss says nothing."""
        return self.kind == "declared"

    @property
    def verdict(self) -> Annotated[str, Keywords(enum=[HELD, CPU_BOUND])]:
        """:data:`HELD`, or :data:`CPU_BOUND`: layers that sleep are late for want of a core, and of nothing else."""
        late_s = self.measured_s - self.declared_s
        return HELD if late_s <= max(TOLERANCE_S, TOLERANCE_SHARE * self.declared_s) else CPU_BOUND

    @property
    def expected_share(self) -> float | None:
        """Share of the cores that was expected before the run; above 1 they could not carry it."""
        return None if self.cores is None else cpu_share(self.ranks, self.seconds, self.cores)


def declared_steps(logs: Sequence[RankLog], cores: int | None = None) -> DeclaredSteps | None:
    """Return declared against measured compute; None for a run of real compute, and before its first step."""
    job = next((log.job for log in logs if log.job), None)
    kind = "" if job is None else text(job.compute, "kind")
    steps = [step for log in logs for step in log.steps if step.declared_s is not None]
    if job is None or not kind or not steps:
        return None
    over = [step.overrun_s for step in steps if step.overrun_s]
    cpu = [step.cpu_s for step in steps if step.cpu_s is not None]
    return DeclaredSteps(
        kind=kind,
        seconds=number(job.compute, "seconds") or 0.0,
        noise=number(job.compute, "noise") or 0.0,
        declared_s=statistics.fmean(step.declared_s or 0.0 for step in steps),
        measured_s=statistics.fmean(step.compute_s for step in steps),
        steps=len(steps),
        overruns=len(over),
        overrun_s=statistics.fmean(over) if over else 0.0,
        worst_s=max(over, default=0.0),
        cpu_s=statistics.fmean(cpu) if cpu else None,
        ranks=job.world_size,
        cores=cores,
        parameters=job.parameters,
        speeds={log.job.site: log.job.speed for log in logs if log.job and log.job.speed != 1.0},
    )
