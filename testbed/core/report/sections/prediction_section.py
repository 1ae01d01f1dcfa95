"""Prediction and residual of a run, for its page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.core.analysis.costs.predicted_run import PredictedRun
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table, Text

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["LEAD", "lead", "missing", "section", "sentence", "table"]

LEAD = (
    "What a step of the strategy was predicted to take over the slowest certified fiber in use. The residual is"
    " measured less predicted, of the mean step of the critical path, outside of faults and without the first step."
)


def missing(why: str) -> str:
    """Return in a line that a step was not predicted, and why; empty if ``why`` is."""
    return f"no prediction of a step: {why}" if why else ""


def lead(prediction: PredictedRun | None, unpredicted: str = "") -> str:
    """Return what the table means, and what this lab stands for at full scale; without a prediction why there is
    none."""
    if prediction is None:
        return f"{formats.upper_first(why)}." if (why := missing(unpredicted)) else ""
    how = (
        " Before the first step the ranks timed the strategy's own operations, and the compute unless it is declared;"
        " the prediction composes these."
        if prediction.calibrated
        else " No operation was timed before the job: costs are gloo's default costs, and the compute is the run's own."
    )
    rate, compute = formats.bits_per_s(prediction.full_rate_bps), formats.duration(prediction.compute_s)
    return (
        f"{LEAD}{how} By the similarity law a lab with the same w kappa ({prediction.wire_kappa:.3g}), lambda"
        f" ({prediction.propagation:.3g}) and o/T ({prediction.software:.3g}) has the same utilization: this one shows"
        f" {prediction.length_m / 1e3:.4g} km at {rate} of payload if the full model's step takes {compute} of compute,"
        " too, and phi times the distance and 1/phi of the rate if it takes phi times as long. TCP's loss and windows"
        " are not similar."
    )


def table(prediction: PredictedRun | None) -> Table | None:
    """Predicted, measured and residual; None if nothing was predicted."""
    if prediction is None:
        return None
    times = {
        "time of a step": (prediction.step_s, prediction.measured_step_s),
        "compute of a step": (prediction.compute_s, prediction.measured_compute_s),
        "exposed communication per step": (prediction.exposed_s, prediction.measured_exposed_s),
        **{f"of it {name}": both for name, both in prediction.parts.items() if max(both) > 0},
    }
    rows = [(name, _ms(a), _ms(b), _ms(b - a, "+")) for name, (a, b) in times.items()]
    utilization = (
        formats.share(prediction.utilization),
        formats.share(prediction.measured_utilization),
        _points(prediction),
    )
    rows.insert(2, ("compute utilization", *utilization))
    return Table.of(("quantity", "predicted", "measured", "residual"), rows, "Prediction", range(1, 4))


def sentence(run: PredictedRun | None, unpredicted: str = "") -> str:
    """Return prediction and residual in a line, or why there is none; empty for what is never predicted."""
    if run is None:
        return missing(unpredicted)
    return (
        f"predicted compute utilization {formats.share(run.utilization)}, measured"
        f" {formats.share(run.measured_utilization)}: residual {_points(run)}; exposed per step"
        f" {formats.duration(run.exposed_s)} predicted, {formats.duration(run.measured_exposed_s)} measured"
    )


def _points(run: PredictedRun) -> str:
    points = f"{100 * run.residual:+.1f} percentage points"
    if not run.residual_uncertainty:
        return points
    within = "within" if abs(run.residual) <= run.residual_uncertainty else "beyond"
    return f"{points}, {within} the ± {100 * run.residual_uncertainty:.1f} by stalls of the host"


def _ms(seconds: float, sign: str = "") -> str:
    """Format always in ms, so that a column can be compared."""
    digits = 1 if abs(seconds) >= 0.01 else 2
    return f"{round(1e3 * seconds, digits) + 0.0:{sign}.{digits}f} ms"


def section(report: Report) -> Section | None:
    prediction, why = report.prediction, report.unpredicted
    return Section.of("Prediction", Text(lead(prediction, why)), table(prediction), line=sentence(prediction, why))
