"""The plots of the ranks' scraped metrics: of few ranks, of many, and with gaps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import plotly.graph_objects as go
import pytest
from builders import run_factory
from builders.reports import report_of

from testbed.core.analysis.scraped_metrics import RankTrack, ScrapedMetrics, ScrapeGap
from testbed.core.report.document import Report
from testbed.core.report.figures.scraped_figures import scraped_figures

IDS = ["rank-tokens", "rank-exposed", "rank-cpu", "rank-memory", "scrape-gaps"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(run_factory.make_run(tmp_path_factory.mktemp("figures") / "run"))


def track(rank: int, site: str, gaps: tuple[ScrapeGap, ...] = ()) -> RankTrack:
    """Ten seconds of a rank that trains on 100 + its number of tokens a second."""
    rate = 100.0 + rank
    return RankTrack(
        rank=rank,
        node=f"{site}-{rank}",
        site=site,
        t_s=tuple(0.5 + second for second in range(10)),
        tokens_per_s=(None, *[rate] * 4, None, *[rate] * 4),
        exposed_share=(None,) * 10,
        cpu_cores=(0.5,) * 10,
        memory_bytes=(300_000_000,) * 10,
        asked=10,
        answered=10 - sum(it.missed for it in gaps),
        gaps=gaps,
    )


def drawn(report: Report, *tracks: RankTrack) -> dict[str, go.Figure]:
    figures = scraped_figures(dataclasses.replace(report, scraped=ScrapedMetrics(1.0, tracks)))
    for figure in figures:
        json.dumps(figure.spec, allow_nan=False)
    return {figure.id: go.Figure(figure.spec) for figure in figures}  # plotly refuses what is not of its schema


def test_of_a_run(report: Report) -> None:
    figures = scraped_figures(report)
    assert [it.id for it in figures] == IDS
    for figure in figures:
        checked = go.Figure(figure.spec)
        assert checked.layout.xaxis.title.text
        assert checked.layout.yaxis.title.text
        assert figure.summary
    memory = go.Figure(figures[3].spec)
    assert [line.name for line in memory.data] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert set(memory.data[0].y) == {300.0}


def test_a_quantity_that_nobody_knows_has_no_plot(report: Report) -> None:
    assert list(drawn(report, track(0, "east"))) == ["rank-tokens", "rank-cpu", "rank-memory", "scrape-gaps"]
    assert drawn(report) == {}


def test_many_ranks_are_drawn_by_site(report: Report) -> None:
    tracks = [track(rank, "east" if rank < 30 else "west") for rank in range(60)]
    figure = drawn(report, *tracks)["rank-tokens"]
    assert [line.name for line in figure.data if line.name] == ["east", "west"]
    low, high, median = figure.data[:3]
    assert (set(low.y), set(high.y), set(median.y)) == ({100.0}, {129.0}, {114.5})
    assert high.fill == "tonexty"


def test_many_sites_are_drawn_as_one(report: Report) -> None:
    figure = drawn(report, *(track(rank, f"site{rank}") for rank in range(64)))["rank-tokens"]
    assert [line.name for line in figure.data if line.name] == ["all ranks"]


def test_the_ranks_with_the_most_gaps_are_drawn(report: Report) -> None:
    gap = ScrapeGap(2.5, 6.5, 3, "timeout")
    tracks = [track(rank, "east", (gap,) if rank % 4 == 1 else ()) for rank in range(20)]
    figures = drawn(report, *tracks)
    whole, missing = figures["scrape-gaps"].data
    assert [it.partition(" ")[0] for it in missing.y] == ["1", "5", "9", "13", "17"]
    assert (set(missing.base), set(missing.x)) == ({2.5}, {4.0})
    assert set(missing.customdata) == {"3 scrapes timeout"}
    assert len(whole.y) == 8
    said = scraped_figures(dataclasses.replace(report, scraped=ScrapedMetrics(1.0, tuple(tracks))))[-1].summary
    assert said.endswith("15 scrapes of 5 ranks had no answer. Shown are the 8 ranks with the most.")


def test_a_line_does_not_cross_a_gap(run: Path) -> None:
    began_t = run_factory.BEGAN_T
    run_factory.edit(run, "metrics.jsonl", lambda lines: [line for line in lines if line["kind"] != "rank"])
    run_factory.add_scrapes(run, [began_t + 0.5 + second for second in range(30)], {2: (began_t + 10, began_t + 15)})
    _, whole, broken, _ = go.Figure(scraped_figures(report_of(run))[3].spec).data
    assert None not in whole.y
    (gap_s,) = [x for x, y in zip(broken.x, broken.y, strict=True) if y is None]
    assert 9.5 < gap_s < 15.5
