"""The lab that is similar to a prediction, and full scale of a lab that has its fibers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.prediction.machine_limits import cpu_share
from testbed.core.prediction.predicted_job import Job
from testbed.core.prediction.similarity import Equivalent, full_scale

__all__ = ["SimilarLab"]


@dataclass(frozen=True)
class SimilarLab:
    """The lab that has the same utilization: its step, one-way delay, fiber, payload rate, and the CPU that it needs.

    Attributes:
        cpu_share: of all its cores beside compute; above 1 the lab is CPU-bound and shows less.
        phi: T_full / T_lab: the lab shows that many times its distance.
        stands_for: full scale of a lab that has the prediction's own delay, and its rate divided by the scale.
    """

    step_s: float
    delay_s: float
    length_m: float
    rate_bps: float
    scale: float
    cpu_share: float
    phi: float
    stands_for: Equivalent

    @property
    def cpu_bound(self) -> bool:
        return self.cpu_share > 1

    @classmethod
    def of(cls, job: Job, step_s: float, scale: float, cores: int) -> SimilarLab:
        """Return the lab whose step takes ``step_s``, with payloads divided by ``scale``, on ``cores`` cores."""
        lab = full_scale(job.delay_s, job.rate_bps, job.step_s, step_s, 1 / scale)  # the way back
        full = full_scale(job.delay_s, job.rate_bps / scale, step_s, job.step_s, scale)
        share = cpu_share(job.ranks, step_s, cores)
        return cls(step_s, lab.delay_s, lab.length_m, lab.rate_bps, scale, share, job.step_s / step_s, full)
