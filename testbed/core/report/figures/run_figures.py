"""The plots of a run's report, in the order of its page: first those over time, which share one axis."""

from __future__ import annotations

from testbed.core.report.document import Report
from testbed.core.report.figures.critical_path_figure import critical_path
from testbed.core.report.figures.fault_marks import time_span
from testbed.core.report.figures.fiber_figures import lateness, throughput
from testbed.core.report.figures.plotly_figure import Figure
from testbed.core.report.figures.rank_time_figures import rank_seconds, time_of_ranks
from testbed.core.report.figures.training_figures import step_time, tokens_over_time, train_loss

__all__ = ["Figure", "figures"]


def figures(report: Report) -> tuple[Figure, ...]:
    """Return every plot that there is data for, in the order of the page."""
    span = time_span(report)
    drawn = (
        step_time(report, span),
        critical_path(report, span),
        tokens_over_time(report, span),
        throughput(report, span),
        train_loss(report),
        time_of_ranks(report),
        rank_seconds(report),
        lateness(report),
    )
    return tuple(figure for figure in drawn if figure is not None)
