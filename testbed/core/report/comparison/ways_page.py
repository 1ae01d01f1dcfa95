"""The HTML page of several ways of training: what its template, ``ways.html``, shows."""

from __future__ import annotations

from testbed.core.analysis.noise.paired_interval import LEAST_DIFFERENCES
from testbed.core.report import html_page, meanings
from testbed.core.report.comparison import comparison_words, ways_tables
from testbed.core.report.comparison.ways_compared import WaysCompared
from testbed.core.report.comparison.ways_figures import FEW, ways_figures

__all__ = ["html"]


def html(found: WaysCompared) -> str:
    """Return the whole page."""
    summary = ways_tables.summary(found)
    figures = ways_figures(found)
    return html_page.render(
        "ways.html",
        figures,
        wide=[it.id for it in figures if it.id == "paths" or len(found.ways) > FEW],
        title=ways_tables.headline(found),
        lead=ways_tables.lead(found),
        badge=found.verdict,
        verdict=comparison_words.VERDICTS[found.verdict],
        notes=found.notes,
        summary=summary,
        legend_of_summary=meanings.legend(summary),
        budgets=ways_tables.budgets_table(found),
        curves=ways_tables.curves_table(found),
        interval=ways_tables.interval_label(found),
        has_interval=len(found.seeds) >= LEAST_DIFFERENCES,
        paired=ways_tables.paired_table(found) if len(found.ways) > 1 else None,
        baseline=found.baseline,
        seeds=len(found.seeds),
        path=ways_tables.path_table(found),
        runs=ways_tables.runs_table(found),
    )
