"""The plot of the critical path over time: a bar for a step, or the mean of a few, with its parts on each other."""

from __future__ import annotations

from testbed.core.analysis.critical_path import PARTS
from testbed.core.report import formats
from testbed.core.report.document import Report
from testbed.core.report.figures.fault_marks import fault_marks
from testbed.core.report.figures.plotly_figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Figure,
    Json,
    Span,
    axis,
    level,
    made,
    over_time,
)
from testbed.core.report.sections import critical_path_section

__all__ = ["COLOR_OF_PART", "critical_path"]

COLOR_OF_PART = dict(zip(PARTS, (BLUE, PURPLE, ORANGE, VERMILLION, YELLOW, "#7A0018", SKY, GREY), strict=True)) | {
    "software_s": GREEN
}
"""Neighbors in a bar differ most."""


def critical_path(report: Report, span: Span) -> Figure | None:
    """Return the plot; None without the path."""
    found = report.critical_path
    if found is None:
        return None
    middles, widths, means, labels = critical_path_section.binned(found)
    bars: list[Json] = [
        {
            "type": "bar",
            "x": [round(it, 6) for it in middles],
            "width": [round(it, 6) for it in widths],
            "y": [float(f"{1e3 * it:.5g}") for it in means[name]],
            "customdata": [[label, formats.duration(it)] for label, it in zip(labels, means[name], strict=True)],
            "name": called,
            "marker": {"color": COLOR_OF_PART[name], "line": {"width": 0}},
            "hovertemplate": "%{customdata[0]}: %{customdata[1]}",
        }
        for name, called in PARTS.items()
        if max(means[name]) > 0
    ]
    if (of := report.prediction) is not None and of.calibrated:
        bars.append(level(span, 1e3 * of.step_s, f"predicted: {formats.duration(of.step_s)}", VERMILLION))
    return made(
        "critical-path",
        "Critical path of a step",
        f"The time of each step by part, of the rank that ended it last: {critical_path_section.sentence(found)}.",
        bars,
        {
            **over_time(span),
            "barmode": "stack",
            "bargap": 0,
            "yaxis": axis("time of a step (ms)", rangemode="tozero", exponentformat="none"),
            "showlegend": True,
            "legend": {"traceorder": "normal"},
        },
        fault_marks(report, span),
    )
