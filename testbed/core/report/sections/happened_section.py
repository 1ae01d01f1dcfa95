"""What happened over time: the timeline of faults and the plots of the job. Other sections have the same as tables."""

from __future__ import annotations

from testbed.core.report.blocks import Picture, Plots, Section
from testbed.core.report.document import Report
from testbed.core.report.figures import fault_timeline
from testbed.core.report.figures.run_figures import figures

__all__ = ["section"]

_INSTEAD = "The plots need JavaScript; report.md has the same facts as text."


def section(report: Report) -> Section | None:
    timeline = fault_timeline.timeline(report)
    return Section.of(
        "What happened",
        Picture("timeline.html", {"timeline": timeline}) if timeline else None,
        Plots(lambda: figures(report), _INSTEAD, wide=("rank-seconds", "lateness")),
    )
