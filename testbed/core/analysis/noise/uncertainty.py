"""The range of each figure of a job within the uncertainty of its times (``host_noise.py``).

A time t of uncertainty u is from t - u to t + u. The range of a share or a rate follows from its times. Goodput has two
of them: the quiet steps, which set the pace in its numerator, and all other time, which is in its wall time alone. A
figure without stalls in its times has no range. Bounds of a job that did not recover have no range either, because
stalls do not explain that.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.core.analysis.attempt_history import Attempt
from testbed.core.analysis.goodput import JobEvidence
from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.analysis.recovery import BACK, FaultRecovery
from testbed.core.intervals import Intervals

__all__ = ["of_faults", "of_job"]


def of_faults(job: JobEvidence, noise: StallLog) -> JobEvidence:
    """Return the job with the uncertainty of its gaps.

    A missing recovery becomes unknown if a step is slow and, without its stalls, would be back at the pace.
    """
    return replace(job, faults=tuple(_of_fault(fault, job, noise) for fault in job.faults))


def _of_fault(fault: FaultRecovery, job: JobEvidence, noise: StallLog) -> FaultRecovery:
    if fault.gap_open or fault.longest_gap_s is None or fault.gap_began_t is None:
        return fault
    uncertain_s = noise.uncertainty_s(fault.gap_began_t, fault.gap_began_t + fault.longest_gap_s)
    recovered = fault.recovered
    if recovered is False and job.median_step_s is not None:
        # A step at the pace, such as the one in progress when the fault began, is none that a stall has slowed.
        back_s = BACK * job.median_step_s
        slow = (commit for commit in job.commits if commit.t > fault.window.began_t and commit.step_s > back_s)
        stalled = any(
            commit.step_s - noise.uncertainty_s(commit.begin_t, commit.t) / commit.steps <= back_s for commit in slow
        )
        recovered = None if stalled else False
    return replace(fault, uncertainty_s=uncertain_s, recovered=recovered)


def of_job(job: JobEvidence, attempts: Sequence[Attempt], noise: StallLog) -> Mapping[str, Range]:
    """Return the ranges of figures that stalls make uncertain, by metric."""
    if not noise.stalls:
        return {}
    began_t, ended_t = (job.timed or (None, None)) if job.program else (job.began_t, job.ended_t)
    resumes = [
        (attempt.ended_t, attempt.ended_t + attempt.time_to_resume_s)
        for attempt in attempts
        if attempt.ended_t is not None and attempt.time_to_resume_s is not None
    ]
    detections = [
        (attempt.ended_t - attempt.detection_s, attempt.ended_t)
        for attempt in attempts
        if attempt.ended_t is not None and attempt.detection_s is not None
    ]
    ranges = {
        "median_step_s": _median_step(job, noise),
        "time_to_resume": None if job.died else _longest(resumes, noise),
        "detection": _longest(detections, noise),
        "recovery": None if job.recovery_open else _recovery(job),
    }
    if began_t is not None and ended_t is not None:
        ranges["wall_s"] = _longest([(began_t, ended_t)], noise)
        ranges["tokens_per_s"] = _rate(job.tokens_per_s, job.trained_s, noise.uncertainty_s(began_t, ended_t))
        ranges["compute_utilization"] = _utilization(job, noise.uncertainty_s(began_t, ended_t))
        ranges["goodput"] = None if job.died else _goodput(job, began_t, ended_t, noise)
    return {name: reach for name, reach in ranges.items() if reach is not None and reach.low < reach.high}


def _goodput(job: JobEvidence, began_t: float, ended_t: float, noise: StallLog) -> Range | None:
    goodput, wall_s = job.goodput, job.trained_s
    quiet = Intervals.union(job.quiet).within(began_t, ended_t)
    quiet_s = sum(end_t - begin_t for begin_t, end_t in quiet)
    if goodput is None or not wall_s or wall_s <= 0 or quiet_s <= 0:
        return None
    edges = [began_t, *itertools.chain.from_iterable(quiet), ended_t]
    others = list(zip(edges[::2], edges[1::2], strict=True))
    wall_s = max(wall_s, quiet_s)
    in_quiet, in_others = noise.uncertainty_of(quiet), noise.uncertainty_of(others)

    def shifted(quiet_by_s: float, others_by_s: float) -> float:
        divisor_s = wall_s + quiet_by_s + others_by_s
        return goodput * (1 + quiet_by_s / quiet_s) * wall_s / divisor_s if divisor_s > 0 else 1.0

    ends = [shifted(quiet_by_s, by_s) for quiet_by_s in (-in_quiet, in_quiet) for by_s in (-in_others, in_others)]
    return Range(min(goodput, *ends), max(goodput, min(1.0, max(ends))))


def _utilization(job: JobEvidence, uncertain_s: float) -> Range | None:
    """Return the range of utilization; stalls may have been in compute, in exposed communication, or in both."""
    utilization, compute_s, exposed_s = job.compute_utilization, job.compute_s, job.exposed_s
    if utilization is None:
        return None
    by_s = uncertain_s * (job.world_size or 1)

    def share(compute_s: float, exposed_s: float) -> float:
        return compute_s / (compute_s + exposed_s) if compute_s + exposed_s > 0 else utilization

    ends = (
        share(max(0.0, compute_s - by_s), exposed_s),
        share(compute_s + by_s, exposed_s),
        share(compute_s, max(0.0, exposed_s - by_s)),
        share(compute_s, exposed_s + by_s),
    )
    return Range(min(ends), max(ends))


def _rate(rate: float | None, wall_s: float | None, uncertain_s: float) -> Range | None:
    if rate is None or not wall_s:
        return None
    high = rate * wall_s / (wall_s - uncertain_s) if uncertain_s < wall_s else math.inf
    return Range(rate * wall_s / (wall_s + uncertain_s), high)


def _median_step(job: JobEvidence, noise: StallLog) -> Range | None:
    """Return the range from the median of the least possible times of all quiet steps to that of the greatest."""
    quiet = {(began_t, ended_t) for began_t, ended_t in job.quiet}
    calm = [commit for commit in job.commits if (commit.begin_t, commit.t) in quiet]
    if not calm or job.median_step_s is None:
        return None
    by_s = [noise.uncertainty_s(commit.begin_t, commit.t) / commit.steps for commit in calm]
    times_s = [commit.step_s for commit in calm]
    low = statistics.median(max(0.0, time_s - off_s) for time_s, off_s in zip(times_s, by_s, strict=True))
    high = statistics.median(time_s + off_s for time_s, off_s in zip(times_s, by_s, strict=True))
    middle = statistics.median(times_s)
    return Range(job.median_step_s * low / middle, job.median_step_s * high / middle) if middle > 0 else None


def _recovery(job: JobEvidence) -> Range | None:
    gaps = [(fault.longest_gap_s, fault.uncertainty_s) for fault in job.faults if fault.longest_gap_s is not None]
    return _range_of_longest(gaps)


def _longest(intervals: Sequence[tuple[float, float]], noise: StallLog) -> Range | None:
    """Return the range of the longest interval."""
    return _range_of_longest([(end_t - begin_t, noise.uncertainty_s(begin_t, end_t)) for begin_t, end_t in intervals])


def _range_of_longest(times_s: Sequence[tuple[float, float]]) -> Range | None:
    if not times_s:
        return None
    return Range(max(time_s - by_s for time_s, by_s in times_s), max(time_s + by_s for time_s, by_s in times_s))
