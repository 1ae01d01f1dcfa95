"""Metrics of which only a bound is known: of a job that did not come back, or of a program that prints seldom.

Of a job that did not come back no expectation passes by a bound.

A gap that no step ended is at least as long as it was seen. The goodput of a job that died is at most what it was until
then. Such a bound fails an expectation that it violates already, or that the job can no longer meet; where the job was
only interrupted, an expectation that it does not violate is unknown.

The gap of a program that prints every n-th step may be known as an upper bound alone. That meets an expectation of at
most as much; of a smaller one it tells nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.core.analysis.goodput import JobEvidence
from testbed.core.experiment import expect
from testbed.core.records.run_info import Expectation
from testbed.core.report import formats
from testbed.core.report.sections.restarts_section import AttemptLine
from testbed.core.units import Unreadable

__all__ = ["AT_LEAST", "AT_MOST", "SIGN", "OpenMetric", "judge", "judged", "open_metrics", "words"]

AT_LEAST, AT_MOST = "at least", "at most"
SIGN = {AT_LEAST: ">=", AT_MOST: "<="}
_WHY = {
    "recovery": "training did not come back",
    "time_to_resume": "the job did not resume",
    "goodput": "the job did not reach its last step",
}


@dataclass(frozen=True)
class OpenMetric:
    """``seen``: the value, in SI units; ``bound``: AT_LEAST or AT_MOST; ``over``: the job died, so it is settled.

    ``resolved``: the bound is due to how seldom the program prints, and the job did come back.
    """

    seen: float
    bound: str
    over: bool
    resolved: bool = False


def open_metrics(job: JobEvidence, attempts: Sequence[AttemptLine], origin: float) -> Mapping[str, OpenMetric]:
    """Return the open metrics by name; empty for a job that came back from every fault, and told it exactly."""
    found: dict[str, OpenMetric] = {}
    if job.recovery_open and job.recovery_s is not None:
        found["recovery"] = OpenMetric(job.recovery_s, AT_LEAST, job.died)
    elif job.gap_at_most and job.recovery_s is not None:
        found["recovery"] = OpenMetric(job.recovery_s, AT_MOST, False, resolved=True)
    if job.died and job.goodput is not None:
        found["goodput"] = OpenMetric(job.goodput, AT_MOST, True)
    last = attempts[-1] if attempts else None
    if job.died and last is not None and last.ended_s is not None and job.seen_t is not None and last.why:
        resumed = [it.time_to_resume_s for it in attempts if it.time_to_resume_s is not None]
        seen_s = max([*resumed, max(0.0, job.seen_t - origin - last.ended_s)])
        found["time_to_resume"] = OpenMetric(seen_s, AT_LEAST, True)
    return found


def judge(expectation: expect.Expectation, metric: OpenMetric) -> bool | None:
    """Return whether ``expectation`` holds: False or None (unknown); True only by an upper bound of a job that came
    back."""
    if metric.resolved:
        if expectation.op in ("<=", "<"):
            return expectation.holds(metric.seen) or None
        return False if expectation.op in (">=", ">", "==") and metric.seen < expectation.bound else None
    sought = ("<=", "<", "==") if metric.bound == AT_LEAST else (">=", ">", "==")
    violated = expectation.op in sought and expectation.holds(metric.seen) is False
    if expectation.op == "==":
        violated = metric.seen > expectation.bound if metric.bound == AT_LEAST else metric.seen < expectation.bound
    return False if violated or metric.over else None


def judged(expectations: Sequence[Expectation], metrics: Mapping[str, OpenMetric]) -> tuple[Expectation, ...]:
    """Return the expectations with those of open metrics judged again, as :func:`judge` does. Runs of earlier versions
    recorded a bound as if it were the metric."""
    return tuple(_judged(it, metrics) for it in expectations)


def _judged(recorded: Expectation, metrics: Mapping[str, OpenMetric]) -> Expectation:
    try:
        expectation = expect.parse(recorded.text)
    except Unreadable:
        return recorded
    metric = metrics.get(expectation.metric)
    if metric is None:
        return recorded
    return replace(recorded, holds=judge(expectation, metric), measured=metric.seen, bound=metric.bound)


def words(expectation: Expectation) -> str:
    """Return the measured bound of an expectation and why it is one: ``>= 41.2 s, training did not come back``."""
    name = expectation.text.split()[0] if expectation.text.split() else ""
    name = next((it for it in _WHY if name.startswith(it)), "")
    value = expectation.measured
    if name == "recovery" and expectation.bound == AT_MOST:
        return f"<= {formats.duration(value)}, less than two prints of the program take"
    shown = formats.share(value) if name == "goodput" else formats.duration(value)
    return f"{SIGN.get(expectation.bound, '')} {shown}, {_WHY.get(name, 'the job did not come back')}"
