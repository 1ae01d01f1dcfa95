"""The ranks' scraped metrics against their step records: computed once more here, by brute force over the raw lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import run_factory
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


def scrape(t: float, done: Lines, **more: Any) -> dict[str, Any]:
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
        **more,
    }


def evaluated(records: Lines, scrapes: Lines, ended_t: float | None = None) -> ScrapedMetrics:
    log, malformed = read_rank(0, records)
    metrics, bad = read_metrics(scrapes)
    assert malformed == bad == 0
    return evaluate(metrics.ranks, (log,), 100.0, ended_t)


durations = st.tuples(st.floats(0.001, 3.0), st.floats(0.0, 3.0), st.integers(1, 500))
steps_done = st.lists(durations, min_size=1, max_size=40)


@given(steps_done, st.lists(st.floats(0.5, 1.5), min_size=2, max_size=60))
def test_rates_are_those_of_the_records_between_two_answers(
    done: list[tuple[float, float, int]], waits: list[float]
) -> None:
    records: Lines = [job(100.0)]
    t = 100.0
    for number, (compute, exposed, tokens) in enumerate(done, 1):
        records.append(step(number, t, compute, exposed, tokens))
        t = records[-1]["t_end"]
    steps = records[1:]
    at = [100.0]
    for wait in waits:
        at.append(at[-1] + wait)
    found = evaluated(records, [scrape(t, [it for it in steps if it["t_end"] <= t]) for t in at])
    assert found.disagreement == 0
    assert found.unmatched == 0
    assert found.compared == len(at)
    (track,) = found.ranks
    assert (track.asked, track.answered) == (len(at), len(at))
    rows = {
        100.0 + t: (tokens, share, cpu)
        for t, tokens, share, cpu, memory in zip(
            track.t_s, track.tokens_per_s, track.exposed_share, track.cpu_cores, track.memory_bytes, strict=True
        )
        if memory is not None  # else a row that only breaks the line
    }
    assert sorted(rows) == pytest.approx(at)
    for (_, before), (after, (tokens, share, cpu)) in zip(
        zip(rows, at, strict=True), list(rows.items())[1:], strict=False
    ):
        within = [it for it in steps if before < it["t_end"] <= after]
        assert tokens == pytest.approx(sum(it["tokens"] for it in within) / (after - before), rel=1e-6)
        assert cpu == pytest.approx(0.25, abs=0.005)
        busy = sum(it["t_end"] - it["t_begin"] for it in within)
        if not within:
            assert share is None
        elif busy > 0.5:
            assert share == pytest.approx(sum(it["t_sync"] - it["t_ready"] for it in within) / busy, abs=0.02)


@pytest.fixture
def records() -> Lines:
    """100 steps of 100 ms, 40 ms of which are exposed."""
    return [job(100.0), *(step(number, 100 + 0.1 * number, 0.06, 0.04, 10) for number in range(1, 101))]


def at(t: float, records: Lines) -> Lines:
    return [it for it in records if it["kind"] == "step" and it["t_end"] <= t]


def test_a_counter_that_is_five_percent_off_is_said_to_be(records: Lines) -> None:
    scrapes = [scrape(float(t), at(t, records)) for t in range(101, 111)]
    for it in scrapes:
        it["compute_s"] *= 1.05
    found = evaluated(records, scrapes)
    off = {it.quantity: it.disagreement for it in found.comparisons}
    # Within one step more than counted a value is possible: the first scrapes are less telling than the last.
    assert off["compute"] == pytest.approx(0.05, abs=0.012)
    assert off["tokens"] == off["exposed communication"] == 0
    assert {it.quantity: it.rank for it in found.comparisons} == {
        "tokens": None,
        "compute": 0,
        "exposed communication": None,
    }


def test_a_scrape_within_the_end_of_a_step_is_right_with_either(records: Lines) -> None:
    """The rank adds to its counters one by one; the count of steps comes last."""
    scrapes = [scrape(t, at(t, records), tokens=10 * (len(at(t, records)) + 1)) for t in (102.0, 103.0, 104.0)]
    assert evaluated(records, scrapes).disagreement == 0
    scrapes = [scrape(t, at(t, records), tokens=10 * (len(at(t, records)) + 2)) for t in (102.0, 103.0, 104.0)]
    tokens = evaluated(records, scrapes).comparisons[0]
    assert tokens.disagreement == pytest.approx(10 / 180, rel=0.1)


def test_a_job_shorter_than_two_scrapes_is_compared_by_its_last(records: Lines) -> None:
    """The scraper asks each rank once more when the job is over, however short it was."""
    found = evaluated(records, [scrape(112.0, at(112.0, records))], ended_t=111.0)
    assert [it.disagreement for it in found.comparisons] == [0.0] * 3
    assert found.interval_s is None and found.ranks == ()


def test_steps_without_a_record_are_counted(records: Lines) -> None:
    scrapes = [scrape(float(t), at(t, records)) for t in range(101, 111)]
    found = evaluated(records[:51], scrapes)
    assert found.unmatched == sum(it["steps"] > 50 for it in scrapes) > 0


def test_counts_that_come_late_are_said_to(records: Lines) -> None:
    scrapes = [scrape(float(t), at(t - 0.35, records)) for t in range(102, 109)]
    found = evaluated(records, scrapes)
    assert found.disagreement == 0
    assert found.late_s == pytest.approx(0.3, abs=0.11)


def test_each_attempt_is_a_fresh_process(records: Lines) -> None:
    more = [job(112.0, 2), *(step(50 + n, 112 + 0.1 * n, 0.06, 0.04, 10, attempt=2) for n in range(1, 51))]
    first = [scrape(float(t), at(t, records)) for t in range(101, 111)]
    second = [scrape(float(t), at(t, more)) for t in range(113, 119)]
    found = evaluated(records + more, first + second)
    assert found.disagreement == 0
    tokens = found.comparisons[0]
    assert (tokens.scraped, tokens.recorded) == (10 * (len(at(110, records)) + 50),) * 2
    (track,) = found.ranks
    assert all(it is None or it >= 0 for it in track.tokens_per_s)


def test_gaps_are_where_a_rank_did_not_answer(records: Lines) -> None:
    scrapes = [scrape(float(t), at(t, records)) for t in range(101, 111)]
    silent = [{"kind": "rank", "t": it["t"], "rank": 0, "why": "timeout"} for it in scrapes]
    (track,) = evaluated(records, [*scrapes[:3], *silent[3:6], *scrapes[6:9], *silent[9:]]).ranks
    assert track.gaps == (ScrapeGap(3.0, 7.0, 3, "timeout"), ScrapeGap(9.0, 10.0, 1, "timeout"))
    assert (track.asked, track.answered) == (10, 6)
    assert None in track.memory_bytes, "a line must not cross the gap"
    # An older run has no line of a scrape without an answer.
    (track,) = evaluated(records, [*scrapes[:3], *scrapes[6:9]]).ranks
    assert track.gaps == (ScrapeGap(3.0, 7.0, 3, ""),)
    (track,) = evaluated(records, silent).ranks
    assert [(it.missed, it.why) for it in track.gaps] == [(10, "timeout")]


def test_a_long_run_is_thinned_and_keeps_its_means() -> None:
    records = [job(100.0), *(step(n, 100.0 + n, 0.5, 0.4, 7) for n in range(3 * MOST_ROWS))]
    scrapes = [scrape(100.95 + n, records[1 : 2 + n]) for n in range(3 * MOST_ROWS)]
    (track,) = evaluated(records, scrapes).ranks
    assert len(track.t_s) == MOST_ROWS
    assert {round(it, 6) for it in track.tokens_per_s if it is not None} == {7.0}


def test_a_users_program_has_no_figures_of_idle_agents() -> None:
    scrapes = [scrape(float(t), []) for t in range(101, 111)]
    assert evaluated([], scrapes).ranks == ()


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


def test_a_run_of_an_older_version_has_the_figures_that_it_measured(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    newer = build_report(RunDirectory.open(run)).scraped
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [of_older_version(it) if it["kind"] == "rank" else it for it in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = build_report(RunDirectory.open(run))
    older = report.scraped
    assert report.malformed == {}
    assert [it.tokens_per_s for it in older.ranks] == [it.tokens_per_s for it in newer.ranks]
    assert [it.exposed_share for it in older.ranks] == [it.exposed_share for it in newer.ranks]
    assert older.comparisons == newer.comparisons
    assert {value for it in older.ranks for value in (*it.cpu_cores, *it.memory_bytes)} == {None}


def test_the_report_says_how_far_scrapes_and_records_disagree(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    said = "They agree with the step records within 0.1 %."
    write_report(RunDirectory.open(run))
    assert said in (run / "report.md").read_text()
    assert said in (run / "index.html").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "rank" and line["rank"] == 2:
            line["tokens"] -= line["tokens"] // 10
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(RunDirectory.open(run))
    for page in ("report.md", "index.html"):
        assert re.search(
            r"They disagree with the step records: by (9\.9|10\.0) % in tokens of rank 2\.", (run / page).read_text()
        )


def test_a_report_without_scrapes_says_nothing_of_them(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    lines = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"kind": "rank"' not in line]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    write_report(RunDirectory.open(run))
    for page in ("report.md", "index.html"):
        assert "Scraped metrics" not in (run / page).read_text()
