"""The page of several ways of training compared."""

from __future__ import annotations

from testbed.core.analysis.noise.paired_interval import LEAST_DIFFERENCES
from testbed.core.report import html_page, meanings
from testbed.core.report.blocks import Badge, Bullets, Details, Legend, Page, Plots, Section, Text
from testbed.core.report.comparison import comparison_words, ways_tables
from testbed.core.report.comparison.ways_compared import WaysCompared
from testbed.core.report.comparison.ways_figures import FEW, ways_figures

__all__ = ["html", "page"]

_INSTEAD = "The plots need JavaScript; the tables below have their values."
_SOURCE = "Built from the run directories alone, which it does not change; comparison.json holds the same facts."


def html(compared: WaysCompared) -> str:
    return html_page.render(page(compared))


def page(compared: WaysCompared) -> Page:
    headline = ways_tables.headline(compared)
    sections = (
        _summary(compared),
        Section.of(
            "Held-out loss at equal tokens, time and bytes",
            ways_tables.budgets_table(compared),
            lead="Each budget is that of the shortest run that reached its last step. Losses are interpolated between"
            " evaluations, never extrapolated; toy scale.",
        ),
        _curves(compared),
        Section.of(
            "Critical path",
            ways_tables.path_table(compared),
            lead="The mean step of the rank that ended each step last; the parts add up to it.",
        ),
        _differences(compared),
        Section.of("Runs", ways_tables.runs_table(compared), lead="Each has a report of its own in its directory."),
    )
    return Page(
        kind="ways",
        title=headline,
        eyebrow="testbed compare",
        headline=headline,
        badge=Badge(compared.verdict, comparison_words.VERDICTS[compared.verdict]),
        header=(Text(ways_tables.lead(compared)), *((Bullets(compared.notes),) if compared.notes else ())),
        sections=tuple(section for section in sections if section is not None),
        source=_SOURCE,
    )


def _summary(compared: WaysCompared) -> Section | None:
    table = ways_tables.summary(compared)
    seeds = "all seeds" if len(compared.seeds) > 1 else "the one seed"
    return Section.of("Ways of training", table, Legend(meanings.legend(table)), lead=f"Means over {seeds}.")


def _curves(compared: WaysCompared) -> Section | None:
    figures = ways_figures(compared)
    wide = [figure.id for figure in figures if figure.id == "paths" or len(compared.ways) > FEW]
    plots = Plots(lambda: figures, _INSTEAD, wide) if figures else None
    return Section.of("Curves", plots, Details(ways_tables.curves_table(compared), "Held-out loss by evaluation"))


def _differences(compared: WaysCompared) -> Section | None:
    baseline, interval = compared.baseline, ways_tables.interval_label(compared)
    method = (
        ", by Student's t over the differences by seed."
        if len(compared.seeds) >= LEAST_DIFFERENCES
        else ("; --seeds 3 gives one.")
    )
    return Section.of(
        f"Differences to {baseline}",
        ways_tables.paired_table(compared) if len(compared.ways) > 1 else None,
        lead=f"Each run less the run of {baseline} with the same seed: {interval}{method}",
    )
