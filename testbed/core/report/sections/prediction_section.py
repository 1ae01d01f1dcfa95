"""Prediction and residual of a run, for its page and the terminal."""

from __future__ import annotations

from testbed.core.analysis.predicted_run import PredictedRun
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["LEAD", "lead", "missing", "sentence", "table"]

LEAD = (
    "What a step of the strategy was predicted to take over the slowest certified fiber in use. The residual is"
    " measured less predicted, of the mean step of the critical path, outside of faults and without the first step."
)


def missing(why: str) -> str:
    """Return in a line that a step was not predicted, and why; empty if ``why`` is."""
    return f"no prediction of a step: {why}" if why else ""


def lead(found: PredictedRun | None, unpredicted: str = "") -> str:
    """Return what the table means, and what this lab stands for at full scale; without a prediction why there is
    none."""
    if found is None:
        return f"{told[0].upper()}{told[1:]}." if (told := missing(unpredicted)) else ""
    how = (
        " Before the first step the ranks timed the strategy's own operations, and the compute unless it is declared;"
        " the prediction composes these."
        if found.calibrated
        else " No operation was timed before the job: costs are gloo's default costs, and the compute is the run's own."
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
    times = {
        "time of a step": (found.step_s, found.measured_step_s),
        "compute of a step": (found.compute_s, found.measured_compute_s),
        "exposed communication per step": (found.exposed_s, found.measured_exposed_s),
        **{f"of it {name}": both for name, both in found.parts.items() if max(both) > 0},
    }
    rows = [(name, _ms(a), _ms(b), _ms(b - a, "+")) for name, (a, b) in times.items()]
    utilization = (formats.share(found.utilization), formats.share(found.measured_utilization), _points(found))
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
