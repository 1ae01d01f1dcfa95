"""A run of ``testbed run`` or ``testbed launch`` as one of two sides: its report, reduced to what can be compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from testbed.core.analysis.noise.inside_noise import Range, range_of_parts
from testbed.core.fields import text
from testbed.core.records.run_record import RunData
from testbed.core.records.samples import FiberSample
from testbed.core.report import formats, open_metrics
from testbed.core.report.comparison import run_inputs
from testbed.core.report.comparison.side import Quantity, Side
from testbed.core.report.document import Report
from testbed.core.report.run_report import build
from testbed.core.report.sections import rank_seconds_section
from testbed.core.report.sections.faults_section import FaultLine

__all__ = ["side_of_run", "stalled_share"]

_LEAST_SAMPLES = 2
"""Samples of throughput in a part of a run; each is a mean over a second already."""


def side_of_run(name: str, folder: str, run: RunData) -> Side:
    """Return the side of a run; every file of its directory may be missing."""
    report = build(run)
    sections = {
        "figures": tuple(_uncertain(quantity, report) for quantity in _figures(report)),
        "rank_seconds": tuple(_rank_seconds(report)),
        "faults": tuple(_faults(report)),
        "certificate": tuple(_certificate(report)),
        "fidelity": tuple(_fidelity(report)),
        "wire": tuple(_wire(run.fibers, report)),
        "throughput": tuple(_throughput(report)),
        "traffic": tuple(_traffic(report)),
    }
    return Side(
        name=name,
        folder=folder,
        kind=_kind(report),
        verdict=report.verdict,
        headline=report.headline,
        started_unix_s=report.run.started_unix_s,
        inputs=run_inputs.of_run(run),
        answers=report.answers,
        sections={key: quantities for key, quantities in sections.items() if quantities},
        shortcomings=report.shortcomings,
        conditions={
            **{
                f"steady-{number}": f"{condition.when}: {condition.text}"
                for number, condition in enumerate(report.steady, 1)
            },
            **{f"expected-{number}": condition.text for number, condition in enumerate(report.run.expectations, 1)},
        },
        cpu_free=_cpu_free(report),
        report=report,
    )


def _cpu_free(report: Report) -> float | None:
    certificate = report.certificate
    return certificate.headroom.free if certificate is not None and certificate.took_s is not None else None


def _kind(report: Report) -> str:
    if text(report.run.workload, "command"):
        return "launched program"
    return "training job" if report.training.world_size or report.run.workload else "run without a workload"


def _figures(report: Report) -> Iterator[Quantity]:
    training = report.training
    steps = report.steps
    calm = [
        duration_s
        for t_s, duration_s, interval_s in zip(steps.t_s, steps.duration_s, steps.interval_s, strict=True)
        if not _disturbed(report.faults, t_s - interval_s, t_s)
    ]
    pace = None
    if calm and (training.tokens or report.program is None):
        tokens_of_a_step = sum(steps.tokens) / sum(steps.covers)
        of_parts = range_of_parts(calm, middle=statistics.fmean)
        noise = (
            Range(*(tokens_of_a_step / tokens_share for tokens_share in reversed(of_parts)))
            if of_parts and of_parts.low > 0
            else None
        )
        mean_s = statistics.fmean(calm)
        pace = Quantity(
            "tokens_per_s_outside_faults",
            "tokens per second outside of faults",
            "tokens/s",
            tokens_of_a_step / mean_s if mean_s > 0 else None,
            noise,
        )
    yield Quantity("median_step_s", "median step outside of faults", "s", training.median_step_s, range_of_parts(calm))
    if pace:
        yield pace
    planned = f"of {formats.count(training.steps_planned)}" if training.steps_planned else ""
    yield Quantity("steps_committed", "steps committed", "count", training.steps_committed or None, detail=planned)
    yield Quantity("wall_s", "time of training", "s", training.wall_s)
    yield Quantity("tokens_per_s", "tokens per second, faults included", "tokens/s", training.tokens_per_s)
    yield _bounded(Quantity("goodput", "goodput", "share", training.goodput), report)
    yield Quantity("compute_utilization", "compute utilization", "share", training.compute_utilization)
    recovery = Quantity("recovery_s", "recovery (longest gap around a fault)", "s", training.recovery_s)
    yield _bounded(recovery, report)
    lost = float(training.steps_lost) if training.steps_committed else None
    yield Quantity("steps_lost", "steps lost", "count", lost)
    yield Quantity("attempts", "attempts", "count", float(len(report.attempts)) if report.attempts else None)
    of = "prints" if report.program else "steps"
    yield Quantity("train_loss_first", f"train_loss, first 10 {of}", "nats", training.train_loss_first)
    yield Quantity("train_loss_last", f"train_loss, last 10 {of}", "nats", training.train_loss_last)
    yield Quantity("duration_s", "whole run", "s", report.duration_s)
    yield Quantity("cpu_busy", "CPU busy, median", "share", report.machine.cpu_busy)
    yield Quantity("emulator_cores", "emulator's cores, mean", "count", report.machine.emulator_cores)


def _uncertain(quantity: Quantity, report: Report) -> Quantity:
    """Return a key figure with its range within the uncertainty by stalls of the host."""
    if quantity.id == "tokens_per_s_outside_faults":
        step = report.uncertainty.get("median_step_s")
        middle_s = report.training.median_step_s
        if step is None or quantity.value is None or middle_s is None:
            return quantity
        high = quantity.value * middle_s / step.low if step.low > 0 else math.inf
        return replace(quantity, uncertainty=Range(quantity.value * middle_s / step.high, high))
    return replace(quantity, uncertainty=report.uncertainty.get(_METRICS.get(quantity.id, quantity.id)))


_METRICS = {"recovery_s": "recovery"}
"""Metrics by the name of the quantity, where the names differ."""


def stalled_share(report: Report) -> float:
    """Return the uncertainty of the wall time as a share of it."""
    wall, wall_s = report.uncertainty.get("wall_s"), report.training.wall_s
    return (wall.high - wall_s) / wall_s if wall is not None and wall_s else 0.0


def _bounded(quantity: Quantity, report: Report) -> Quantity:
    """Return ``quantities``, as a bound where the job did not come back."""
    metric = report.open_metrics.get(quantity.id.removesuffix("_s"))
    return replace(quantity, bound=metric.bound) if metric else quantity


def _disturbed(faults: Sequence[FaultLine], begin_s: float, end_s: float) -> bool:
    """Return whether a fault, or the time until the job was back after its end, touches begin to end."""
    for fault in faults:
        over_s = float("inf") if fault.ended_s is None else fault.ended_s + (fault.back_after_end_s or 0.0)
        if fault.ended_s is not None and fault.recovered is False:
            over_s = float("inf")
        if begin_s < over_s and fault.began_s < end_s:
            return True
    return False


def _rank_seconds(report: Report) -> Iterator[Quantity]:
    shares = report.rank_seconds
    if shares is None or shares.total.total_s <= 0:
        return
    by_class, total = shares.total.by_class(), shares.total.total_s
    stalled = stalled_share(report)
    for key, name in rank_seconds_section.CLASSES.items():
        share = by_class[key] / total
        uncertainty = Range(max(0.0, share - stalled), min(1.0, share + stalled)) if stalled else None
        yield Quantity(key, name, "share", share, detail=formats.duration(by_class[key]), uncertainty=uncertainty)


def _faults(report: Report) -> Iterator[Quantity]:
    """Yield each fault; the n-th fault of a type on a target is compared with the n-th of the other run."""
    seen: dict[str, int] = {}
    for fault in report.faults:
        key = f"{fault.type} {fault.target}".strip()
        seen[key] = seen.get(key, 0) + 1
        details = [f"at {formats.duration(fault.began_s)}"]
        details.append("to the end" if fault.ended_s is None else f"for {fault.lasted}")
        if fault.back_after_end_s is not None:
            details.append(f"back {formats.duration(fault.back_after_end_s)} after its end")
        details.append({None: "recovery unknown", True: "recovered", False: "did not recover"}[fault.recovered])
        number = f" ({seen[key]})" if seen[key] > 1 else ""
        if fault.label != key:
            details.insert(0, fault.label)
        if fault.gap_open:
            details.append("the gap is still open")
        bound = open_metrics.AT_LEAST if fault.gap_open else open_metrics.AT_MOST if fault.gap_at_most else ""
        name = f"{key}{number}"
        gap_s, by_s = fault.longest_gap_s, fault.uncertainty_s
        uncertainty = Range(gap_s - by_s, gap_s + by_s) if gap_s is not None and by_s else None
        yield Quantity(name, name, "s", gap_s, detail=", ".join(details), bound=bound, uncertainty=uncertainty)


def _certificate(report: Report) -> Iterator[Quantity]:
    if report.certificate is None:
        return
    for link in report.certificate.links:
        for direction in link.directions:
            verdict = {"ok": "certified", "bad": "outside tolerance"}.get(direction.verdict, direction.verdict)
            allowed = (
                f"± {formats.duration(direction.tolerance_s)} of {formats.duration(direction.target_s)}, {verdict}"
            )
            yield Quantity(
                direction.direction, _arrow(direction.direction), "s", direction.error_median_s, detail=allowed
            )


def _fidelity(report: Report) -> Iterator[Quantity]:
    for direction in report.fidelity:
        late = "" if direction.p99_s is None else f"p99 {formats.duration(direction.p99_s)}, "
        yield Quantity(
            direction.direction,
            _arrow(direction.direction),
            "s",
            direction.median_s,
            detail=f"{late}{direction.verdict.partition(':')[0]}",
        )


def _wire(fibers: Sequence[FiberSample], report: Report) -> Iterator[Quantity]:
    """Yield the bytes that left each direction, and all of them for each step. A restarted emulator counts from 0."""
    tracks: dict[str, list[int]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample.byte_count)
    moved = {name: sum(max(0, after - before) for before, after in pairwise(track)) for name, track in tracks.items()}
    for name in sorted(moved):
        yield Quantity(name, _arrow(name), "B", float(moved[name]))
    if moved:
        yield Quantity("all", "all directions", "B", float(sum(moved.values())))
    if moved and (done := report.training.steps_committed):
        yield Quantity("all_per_step", "all directions, per committed step", "B", sum(moved.values()) / done)


def _traffic(report: Report) -> Iterator[Quantity]:
    """Yield the longest silence toward each site and on each fiber, of a launched program; 0 where there was none."""
    for track in report.traffic:
        if track.kind == "node":
            continue
        silence = track.longest
        detail = "none seen" if silence is None else "to the end"
        if silence is not None and silence.most_s is not None:
            detail = f"at most {formats.duration(silence.most_s)}, at {formats.duration(silence.began_s)}"
        seconds = 0.0 if silence is None else silence.least_s
        bound = open_metrics.AT_LEAST if silence is not None else ""
        yield Quantity(track.name, _arrow(track.name), "s", seconds, detail=detail, bound=bound)


def _throughput(report: Report) -> Iterator[Quantity]:
    """Yield the mean rate of each direction between its first and last step, outside of faults."""
    scale = report.topology.scale if report.topology else 1.0
    stalled = stalled_share(report)
    last_s = report.steps.t_s[-1] if report.steps.t_s else report.training.wall_s
    for series in report.fibers:
        begins = (0.0, *series.t_s)
        calm = [
            bps
            for begin_s, t_s, bps in zip(begins, series.t_s, series.bps, strict=False)
            if begin_s >= 0 and (last_s is None or t_s <= last_s) and not _disturbed(report.faults, begin_s, t_s)
        ]
        noise = range_of_parts(calm, _LEAST_SAMPLES, statistics.fmean)
        mean = statistics.fmean(calm) if calm else None
        uncertainty = None
        if mean is not None and stalled:
            uncertainty = Range(mean / (1 + stalled), mean / (1 - stalled) if stalled < 1 else math.inf)
        yield Quantity(
            series.direction, _arrow(series.direction), "bit/s", mean, noise, scale=scale, uncertainty=uncertainty
        )


def _arrow(direction: str) -> str:
    """``north → west`` of ``north:west``."""
    return direction.replace(":", " → ")
