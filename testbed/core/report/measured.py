"""The metrics of a report by which expectations are judged, named as in ``core.experiment.expect.METRICS``."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.core.checkers.checks import Checked
from testbed.core.experiment import expect
from testbed.core.records.run_info import Expectation
from testbed.core.report import noise_section, open_metrics
from testbed.core.report.document import Report
from testbed.core.report.sections import restarts_section

__all__ = ["judged", "measured"]


def judged(expectations: Iterable[expect.Expectation], report: Report) -> tuple[Expectation, ...]:
    """Judge the expectations of an experiment by the report of its run, as run.json records them. One whose metric is
    only bounded, because the job did not come back, is never met."""
    found = measured(report)
    recorded = (Expectation(it.text, expect.judge(it, found), found.get(it.metric)) for it in expectations)
    return noise_section.judged(open_metrics.judged(tuple(recorded), report.open_metrics), report.uncertainty)


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
