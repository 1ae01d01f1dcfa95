"""The scraped metrics of the ranks in a report: what they say of the scrapes themselves, and against the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.core.analysis.scraped_metrics import RankTrack, ScrapeComparison, ScrapedMetrics
from testbed.core.report import formats
from testbed.core.report.blocks import Details, Plots, Section, Table, Text
from testbed.core.report.figures.scraped_figures import scraped_figures

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["AGREES", "gaps_table", "lead", "section", "table"]

AGREES = 0.01
"""Scrapes and step records agree up to here."""

_SHOWN_GAPS = 50


def lead(scraped: ScrapedMetrics) -> str:
    """Return how many scrapes were answered, and whether they agree with the step records; empty without scrapes."""
    if not scraped.ranks:
        return _agreement(scraped) if scraped.comparisons else ""
    asked, answered = sum(rank.asked for rank in scraped.ranks), sum(rank.answered for rank in scraped.ranks)
    answers = (
        f"{formats.count(answered)} of {formats.count(asked)} scrapes of {formats.plural(len(scraped.ranks), 'rank')}"
    )
    return f"{answers} were answered. {_agreement(scraped)}"


def _agreement(scraped: ScrapedMetrics) -> str:
    if scraped.disagreement is None:
        return "No scrape could be compared with the step records."
    if scraped.unmatched:
        why = f"{formats.plural(scraped.unmatched, 'scrape')} counted steps without a record"
    elif scraped.disagreement > AGREES:
        worst = max(scraped.comparisons, key=lambda comparison: comparison.disagreement)
        why = f"by {formats.share(worst.disagreement)} in {worst.quantity} of rank {worst.rank}"
    else:
        return f"They agree with the step records within {formats.share(max(scraped.disagreement, 0.001))}."
    return f"They disagree with the step records: {why}."


def table(scraped: ScrapedMetrics) -> Table | None:
    """The comparison with the step records; None if there is none."""
    rows = [_row(comparison) for comparison in scraped.comparisons]
    if rows and scraped.late_s is not None:
        late = f"counted up to {formats.duration(scraped.late_s)} after their end (rank {scraped.late_rank})"
        rows.append(("steps", "", "", late, "ok" if scraped.late_s < (scraped.interval_s or 1.0) else "bad"))
    head = ("quantity", "scraped", "step records", "largest disagreement of a scrape", "verdict")
    return Table.of(head, rows, "Scraped metrics against step records", (1, 2), 4)


def _row(comparison: ScrapeComparison) -> tuple[str, str, str, str, str]:
    def value(number: float) -> str:
        return f"{formats.count(number)}" if comparison.unit == "tokens" else f"{number:.2f} s"

    of = "" if comparison.rank is None else f" (rank {comparison.rank})"
    verdict = "ok" if comparison.disagreement <= AGREES else "bad"
    return (
        comparison.quantity,
        value(comparison.scraped),
        value(comparison.recorded),
        f"{100 * comparison.disagreement:.2f} %{of}",
        verdict,
    )


def gaps_table(scraped: ScrapedMetrics) -> Table | None:
    """Where ranks did not answer, the longest first; None if all answered always."""
    gaps = [(track, gap) for track in scraped.ranks for gap in track.gaps]
    gaps.sort(key=lambda gap: gap[1].began_s - gap[1].ended_s)
    rows = [
        (
            _name(track),
            f"{gap.began_s:.1f}",
            f"{gap.ended_s:.1f}",
            formats.count(gap.missed),
            gap.why or formats.UNKNOWN,
        )
        for track, gap in gaps[:_SHOWN_GAPS]
    ]
    label = "Gaps in scraping" if len(rows) == len(gaps) else f"The {len(rows)} longest of {len(gaps)} gaps in scraping"
    return Table.of(("rank", "from s", "to s", "scrapes missed", "why"), rows, label, (1, 2, 3))


def _name(track: RankTrack) -> str:
    return f"{track.rank} · {track.node}" if track.node else str(track.rank)


def section(report: Report) -> Section | None:
    scraped, gaps = report.scraped, gaps_table(report.scraped)
    if not (summary := lead(scraped)):
        return None
    return Section.of(
        "Scraped metrics of the ranks",
        Text(summary),
        table(scraped),
        Plots(lambda: scraped_figures(report), "The plots need JavaScript; report.json has their values."),
        Details(gaps, f"{gaps.label}, the longest first") if gaps else None,
    )
