"""The ranks' scraped metrics against their step records: computed once more here, by brute force over the raw lines."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from builders import run_factory
from builders.run_factory import edit
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.analysis.scraped_metrics import MOST_ROWS, ScrapedMetrics, ScrapeGap, evaluate
from testbed.core.records.rank_log import read_rank
from testbed.core.records.samples import read_metrics
from testbed.host.files.store import RunDirectory, build_report, write_report

Lines = list[dict[str, Any]]


def job(t: float, attempt: int = 1) -> dict[str, Any]:
    return {"kind": "job", "t": t, "rank": 0, "world_size": 1, "node": "east-0", "site": "east", "attempt": attempt}


def step(number: int, begin: float, compute: float, exposed: float, tokens: int, attempt: int = 1) -> dict[str, Any]:
    t = {"t_begin": begin, "t_ready": begin + compute, "t_sync": begin + compute + exposed}
    return {"kind": "step", "step": number, "attempt": attempt, "tokens": tokens, **t, "t_end": t["t_sync"]}


def scrape(t: float, done: Lines) -> dict[str, Any]:
    """What a rank answers that has done these steps."""
    return {
        "kind": "rank",
        "t": t,
        "rank": 0,
        "steps": len(done),
        "tokens": sum(it["tokens"] for it in done),
        "compute_s": round(sum(it["t_ready"] - it["t_begin"] + it["t_end"] - it["t_sync"] for it in done), 3),
        "peer_wait_s": 0.0,
        "network_s": round(sum(it["t_sync"] - it["t_ready"] for it in done), 3),
        "cpu_s": round(0.25 * t, 3),
        "memory_bytes": 10_000_000,
    }


def until(t: float, records: Lines) -> Lines:
    return [it for it in records if it["kind"] == "step" and it["t_end"] <= t]


def evaluated(records: Lines, scrapes: Lines, ended_t: float | None = None) -> ScrapedMetrics:
    log, malformed = read_rank(0, records)
    metrics, bad = read_metrics(scrapes)
    assert malformed == bad == 0
    return evaluate(metrics.ranks, (log,), 100.0, ended_t)


durations = st.tuples(st.floats(0.001, 3.0), st.floats(0.0, 3.0), st.integers(1, 500))
steps_done = st.lists(durations, min_size=1, max_size=40)


@given(steps_done, st.lists(st.floats(0.5, 1.5), min_size=2, max_size=60))
def test_evaluate_rates_are_those_of_the_records_between_two_answers(
    done: list[tuple[float, float, int]], waits: list[float]
) -> None:
    steps: Lines = []
    for number, fields in enumerate(done, 1):
        steps.append(step(number, steps[-1]["t_end"] if steps else 100.0, *fields))
    times = list(accumulate(waits, initial=100.0))
    found = evaluated([job(100.0), *steps], [scrape(t, until(t, steps)) for t in times])
    assert (found.disagreement, found.unmatched, found.compared) == (0, 0, len(times))
    (track,) = found.ranks
    assert (track.asked, track.answered) == (len(times), len(times))
    columns = (track.t_s, track.memory_bytes, track.tokens_per_s, track.exposed_share, track.cpu_cores)
    # A row without memory only breaks the line.
    rows = {100.0 + t: row for t, memory, *row in zip(*columns, strict=True) if memory is not None}
    assert sorted(rows) == pytest.approx(times)
    for before, (after, (tokens, share, cpu)) in zip(times, list(rows.items())[1:], strict=False):
        within = [it for it in steps if before < it["t_end"] <= after]
        assert tokens == pytest.approx(sum(it["tokens"] for it in within) / (after - before), rel=1e-6)
        assert cpu == pytest.approx(0.25, abs=0.005)
        busy = sum(it["t_end"] - it["t_begin"] for it in within)
        if not within:
            assert share is None
        elif busy > 0.5:
            assert share == pytest.approx(sum(it["t_sync"] - it["t_ready"] for it in within) / busy, abs=0.02)


def every_100_ms(first: int, count: int, begin: float = 100.0, attempt: int = 1) -> Lines:
    """Steps of 100 ms, 40 ms of which are exposed."""
    return [step(first + n, begin + 0.1 * n, 0.06, 0.04, 10, attempt) for n in range(count)]


RECORDS = [job(100.0), *every_100_ms(1, 100, 100.1)]


def scrapes(first: int = 101, last: int = 110, records: Lines = RECORDS, late_s: float = 0.0) -> Lines:
    """An answer each second."""
    return [scrape(float(t), until(t - late_s, records)) for t in range(first, last + 1)]


def test_evaluate_counter_that_is_five_percent_off() -> None:
    lines = [it | {"compute_s": 1.05 * it["compute_s"]} for it in scrapes()]
    comparisons = evaluated(RECORDS, lines).comparisons
    assert {it.quantity: (it.disagreement, it.rank) for it in comparisons} == {
        "tokens": (0, None),
        # Within one step more than counted a value is possible: the first scrapes are less telling than the last.
        "compute": (pytest.approx(0.05, abs=0.012), 0),
        "exposed communication": (0, None),
    }


@table("ahead, disagreement", {"one step ahead": (1, 0), "two steps ahead": (2, pytest.approx(10 / 180, rel=0.1))})
def test_evaluate_scrape_within_the_end_of_a_step(ahead, disagreement) -> None:
    """The rank adds to its counters one by one; the count of steps comes last."""
    lines = [it | {"tokens": it["tokens"] + 10 * ahead} for it in scrapes(102, 104)]
    found = evaluated(RECORDS, lines)
    assert found.comparisons[0].disagreement == disagreement
    assert ahead == 2 or found.disagreement == 0


def test_evaluate_job_shorter_than_two_scrapes_by_its_last() -> None:
    """The scraper asks each rank once more when the job is over, however short it was."""
    found = evaluated(RECORDS, scrapes(112, 112), ended_t=111.0)
    assert [it.disagreement for it in found.comparisons] == [0.0] * 3
    assert found.interval_s is None and found.ranks == ()


def test_evaluate_counts_steps_without_a_record() -> None:
    lines = scrapes()
    assert evaluated(RECORDS[:51], lines).unmatched == sum(it["steps"] > 50 for it in lines) > 0


def test_evaluate_counts_that_come_late() -> None:
    found = evaluated(RECORDS, scrapes(102, 108, late_s=0.35))
    assert (found.disagreement, found.late_s) == (0, pytest.approx(0.3, abs=0.11))


def test_evaluate_attempts_as_fresh_processes() -> None:
    second = [job(112.0, 2), *every_100_ms(51, 50, 112.1, attempt=2)]
    found = evaluated(RECORDS + second, scrapes() + scrapes(113, 118, second))
    assert found.disagreement == 0
    tokens = found.comparisons[0]
    assert (tokens.scraped, tokens.recorded) == (10 * (len(until(110, RECORDS)) + 50),) * 2
    (track,) = found.ranks
    assert all(rate is None or rate >= 0 for rate in track.tokens_per_s)


ANSWERS = scrapes()
SILENT = [{"kind": "rank", "t": it["t"], "rank": 0, "why": "timeout"} for it in ANSWERS]


@table(
    "lines, gaps",
    {
        "a rank did not answer": (
            [*ANSWERS[:3], *SILENT[3:6], *ANSWERS[6:9], *SILENT[9:]],
            [ScrapeGap(3.0, 7.0, 3, "timeout"), ScrapeGap(9.0, 10.0, 1, "timeout")],
        ),
        # Without a line of a scrape without an answer.
        "an older run": ([*ANSWERS[:3], *ANSWERS[6:9]], [ScrapeGap(3.0, 7.0, 3, "")]),
    },
)
def test_evaluate_gaps(lines, gaps) -> None:
    (track,) = evaluated(RECORDS, lines).ranks
    assert track.gaps == tuple(gaps)
    if len(lines) == 10:
        assert (track.asked, track.answered) == (10, 6)
        assert None in track.memory_bytes, "a line must not cross the gap"


def test_evaluate_rank_that_never_answered() -> None:
    (track,) = evaluated(RECORDS, SILENT).ranks
    assert [(gap.missed, gap.why) for gap in track.gaps] == [(10, "timeout")]


def test_evaluate_long_run_is_thinned_and_keeps_its_means() -> None:
    records = [job(100.0), *(step(n, 100.0 + n, 0.5, 0.4, 7) for n in range(3 * MOST_ROWS))]
    (track,) = evaluated(records, [scrape(100.95 + n, records[1 : 2 + n]) for n in range(3 * MOST_ROWS)]).ranks
    assert len(track.t_s) == MOST_ROWS
    assert {round(rate, 6) for rate in track.tokens_per_s if rate is not None} == {7.0}


def test_evaluate_users_program_has_no_figures_of_idle_agents() -> None:
    assert evaluated([], scrapes(records=[])).ranks == ()


# ---- in a report


def of_older_version(line: dict[str, Any]) -> dict[str, Any]:
    """A line as release 0.1.0 wrote it, every series by name."""
    labels = f'node="x",rank="{line["rank"]}",site="y"'
    exposed = "testbed_exposed_communication_seconds_total"
    values = {
        f"testbed_steps_total{{{labels}}}": line["steps"],
        f"testbed_tokens_total{{{labels}}}": line["tokens"],
        f"testbed_compute_seconds_total{{{labels}}}": line["compute_s"],
        f'{exposed}{{node="x",part="network",rank="0",site="y"}}': line["network_s"],
        f'{exposed}{{node="x",part="peer_wait",rank="0",site="y"}}': line["peer_wait_s"],
        f'testbed_step_seconds_bucket{{le="0.1",{labels}}}': 3.0,
        f"testbed_train_loss{{{labels}}}": 2.5,
    }
    return {"t": line["t"], "kind": "rank", "rank": line["rank"], "node": "x", "site": "y", "values": values}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_factory.make_run(tmp_path / "run")


def pages(run: Path) -> list[str]:
    write_report(RunDirectory.open(run))
    return [(run / name).read_text() for name in ("report.md", "index.html")]


def test_report_of_an_older_version_has_the_figures_that_it_measured(run: Path) -> None:
    newer = build_report(RunDirectory.open(run)).scraped
    edit(run, "metrics.jsonl", of_older_version, where={"kind": "rank"})
    report = build_report(RunDirectory.open(run))
    older = report.scraped
    assert report.malformed == {}
    for name in ("tokens_per_s", "exposed_share"):
        assert [getattr(track, name) for track in older.ranks] == [getattr(track, name) for track in newer.ranks]
    assert older.comparisons == newer.comparisons
    assert {value for track in older.ranks for value in (*track.cpu_cores, *track.memory_bytes)} == {None}


def test_report_says_how_far_scrapes_and_records_disagree(run: Path) -> None:
    for page in pages(run):
        assert "They agree with the step records within 0.1 %." in page

    def fewer(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"tokens": line["tokens"] - line["tokens"] // 10}

    edit(run, "metrics.jsonl", fewer, where={"kind": "rank", "rank": 2})
    for page in pages(run):
        assert re.search(r"They disagree with the step records: by (9\.9|10\.0) % in tokens of rank 2\.", page)


def test_report_without_scrapes_says_nothing_of_them(run: Path) -> None:
    edit(run, "metrics.jsonl", lambda lines: [line for line in lines if line["kind"] != "rank"])
    for page in pages(run):
        assert "Scraped metrics" not in page
