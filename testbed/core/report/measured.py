"""The metrics of a report by which expectations are judged, named as in ``core.experiment.expect.METRICS``."""

from __future__ import annotations

from testbed.core.checkers.checks import Checked
from testbed.core.report import restarts_section
from testbed.core.report.document import Report

__all__ = ["measured"]


def measured(report: Report) -> dict[str, float | None]:
    """Return the metrics in SI units. A metric that is absent or None was not measured; its expectation is unknown."""
    training = report.training
    first, last = training.train_loss_first, training.train_loss_last
    crossed, minimum = report.wire.measured_bytes, report.wire.minimum_bytes
    return {
        "goodput": training.goodput,
        "recovery": training.recovery_s,
        "compute_utilization": training.compute_utilization,
        "train_loss_drop": None if first is None or last is None else first - last,
        "steps_lost": float(training.steps_lost) if training.steps_committed else None,
        **restarts_section.measured(report.attempts),
        **Checked(report.checkers).metrics(),
        "wire_ratio": None if not crossed or not minimum else crossed / minimum,
    }
