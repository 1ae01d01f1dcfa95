"""Prediction and residual of a run, for its page and the terminal."""

from __future__ import annotations

from testbed.core.analysis.predicted_run import PredictedRun
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["LEAD", "lead", "sentence", "table"]

LEAD = (
    "The prediction is the closed form of the strategy over the slowest certified fiber. The residual is measured less"
    " predicted, of the mean step of the critical path, outside of faults."
)


def lead(found: PredictedRun | None) -> str:
    """Return what the table means, and what this lab stands for at full scale."""
    if found is None:
        return ""
    how = (
        " Before the first step the ranks timed the strategy's operations alone, and the compute unless it is declared."
        if found.calibrated
        else " Nothing was timed before the job: the library's own cost is left out, and the compute is the run's own."
    )
    return (
        f"{LEAD}{how} By the similarity law a lab with the same w kappa ({found.wire_kappa:.3g}), lambda"
        f" ({found.propagation:.3g}) and o/T ({found.software:.3g}) has the same utilization: this one shows"
        f" {found.length_m / 1e3:.4g} km at {formats.bits_per_s(found.full_rate_bps)} of payload if the full model's"
        f" step takes {formats.duration(found.compute_s)} of compute, too, and phi times the distance and 1/phi of the"
        " rate if it takes phi times as long. TCP's loss and windows are not similar."
    )


def table(found: PredictedRun | None) -> Table | None:
    """Predicted, measured and residual; None if nothing was predicted."""
    if found is None:
        return None
    rows: list[tuple[str, str, str, str]] = [
        (
            "time of a step",
            formats.duration(found.step_s),
            formats.duration(found.measured_step_s),
            _signed(found.measured_step_s - found.step_s),
        ),
        (
            "compute of a step",
            formats.duration(found.compute_s),
            formats.duration(found.measured_compute_s),
            _signed(found.measured_compute_s - found.compute_s),
        ),
        (
            "compute utilization",
            formats.share(found.utilization),
            formats.share(found.measured_utilization),
            _points(found),
        ),
        (
            "exposed communication per step",
            formats.duration(found.exposed_s),
            formats.duration(found.measured_exposed_s),
            _signed(found.measured_exposed_s - found.exposed_s),
        ),
    ]
    rows += [
        (f"of it {name}", formats.duration(predicted), formats.duration(measured), _signed(measured - predicted))
        for name, (predicted, measured) in found.parts.items()
        if predicted > 0 or measured > 0
    ]
    return Table.of(("quantity", "predicted", "measured", "residual"), rows, "Prediction", range(1, 4))


def sentence(found: PredictedRun | None) -> str:
    """Return prediction and residual in a line; empty if nothing was predicted."""
    if found is None:
        return ""
    return (
        f"predicted compute utilization {formats.share(found.utilization)}, measured"
        f" {formats.share(found.measured_utilization)}: residual {_points(found)}; exposed per step"
        f" {formats.duration(found.exposed_s)} predicted, {formats.duration(found.measured_exposed_s)} measured"
    )


def _points(found: PredictedRun) -> str:
    return f"{100 * found.residual:+.1f} percentage points"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{formats.duration(abs(seconds))}"
