"""The scraped metrics of the ranks in a report: what they say of the scrapes themselves, and against the records."""

from __future__ import annotations

from testbed.core.analysis.scraped_metrics import Comparison, RankTrack, ScrapedMetrics
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["AGREES", "gaps_table", "lead", "table"]

AGREES = 0.01
"""Scrapes and step records agree up to here."""

_SHOWN_GAPS = 50


def lead(found: ScrapedMetrics) -> str:
    """Return how many scrapes were answered, and whether they agree with the step records; empty without scrapes."""
    if not found.ranks:
        return _agreement(found) if found.comparisons else ""
    asked, answered = sum(it.asked for it in found.ranks), sum(it.answered for it in found.ranks)
    said = f"{formats.count(answered)} of {formats.count(asked)} scrapes of {formats.plural(len(found.ranks), 'rank')}"
    return f"{said} were answered. {_agreement(found)}"


def _agreement(found: ScrapedMetrics) -> str:
    if found.disagreement is None:
        return "No scrape could be compared with the step records."
    if found.unmatched:
        why = f"{formats.plural(found.unmatched, 'scrape')} counted steps without a record"
    elif found.disagreement > AGREES:
        worst = max(found.comparisons, key=lambda it: it.disagreement)
        why = f"by {formats.share(worst.disagreement)} in {worst.quantity} of rank {worst.rank}"
    else:
        return f"They agree with the step records within {formats.share(max(found.disagreement, 0.001))}."
    return f"They disagree with the step records: {why}."


def table(found: ScrapedMetrics) -> Table | None:
    """The comparison with the step records; None if there is none."""
    rows = [_row(it) for it in found.comparisons]
    if rows and found.late_s is not None:
        late = f"counted up to {formats.duration(found.late_s)} after their end (rank {found.late_rank})"
        rows.append(("steps", "", "", late, "ok" if found.late_s < (found.interval_s or 1.0) else "bad"))
    head = ("quantity", "scraped", "step records", "largest disagreement of a scrape", "verdict")
    return Table.of(head, rows, "Scraped metrics against step records", (1, 2), 4)


def _row(it: Comparison) -> tuple[str, str, str, str, str]:
    def value(number: float) -> str:
        return f"{formats.count(number)}" if it.unit == "tokens" else f"{number:.2f} s"

    of = "" if it.rank is None else f" (rank {it.rank})"
    verdict = "ok" if it.disagreement <= AGREES else "bad"
    return it.quantity, value(it.scraped), value(it.recorded), f"{100 * it.disagreement:.2f} %{of}", verdict


def gaps_table(found: ScrapedMetrics) -> Table | None:
    """Where ranks did not answer, the longest first; None if all answered always."""
    gaps = [(track, gap) for track in found.ranks for gap in track.gaps]
    gaps.sort(key=lambda it: it[1].began_s - it[1].ended_s)
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
