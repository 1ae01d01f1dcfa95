"""Where rank-seconds went in a report: the bar, the table, the JSON and the line of the command; and the sentences and
events beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from builders.reports import check, document_of, fault, figure, html, markdown, report_of, without_scripts
from builders.run_factory import BEGAN_T, CUT_STEP, edit, step_begins
from builders.run_kinds import add_checkpoints, launched, restart

from testbed.cli import reports
from testbed.core.records.event import Event
from testbed.core.report.sections import certification_section, events_section, faults_section
from testbed.core.report.sections.fidelity_section import Machine


def total_of(seconds: dict[str, float]) -> float:
    return sum(seconds.values())


def goodput_of(seconds: dict[str, float]) -> float:
    return (seconds["productive_s"] + seconds["exposed_communication_s"]) / total_of(seconds)


def test_the_document_has_every_rank_second_once(run: Path) -> None:
    add_checkpoints(run, 50, 2.0)
    restart(run, 350, 6.0)
    document = document_of(report_of(run))
    section = document["rank_seconds"]
    total, spans, wall_s = section["total"], section["spans"], section["wall_s"]
    assert section["world_size"] == 4
    assert wall_s == pytest.approx(document["training"]["wall_s"])
    assert total_of(total) == pytest.approx(4 * wall_s, rel=1e-3)
    assert [(span["attempt"], span["restart"]) for span in spans] == [(1, False), (1, True), (2, False)]
    assert total == pytest.approx({key: sum(span["seconds"][key] for span in spans) for key in total})
    for span in spans:
        assert total_of(span["seconds"]) == pytest.approx(4 * (span["ended_s"] - span["began_s"]), rel=1e-3)
    assert document["training"]["goodput"] == pytest.approx(goodput_of(total))
    assert document["attempts"][0]["goodput"] == pytest.approx(goodput_of(spans[0]["seconds"]))


def test_checkpoints_are_no_goodput(run: Path) -> None:
    before = report_of(run)
    add_checkpoints(run, 50, 2.0)
    after = report_of(run)
    assert after.rank_seconds.total.checkpoint_s == pytest.approx(4 * 7 * 2.0)
    assert after.rank_seconds.total.good_s == pytest.approx(before.rank_seconds.total.good_s, rel=1e-3)
    assert after.goodput == pytest.approx(before.goodput * before.training.wall_s / (before.training.wall_s + 14.0))


def test_the_bar_and_the_table_show_the_same(run: Path) -> None:
    add_checkpoints(run, 50, 2.0)
    restart(run, 350, 6.0)
    report = report_of(run)
    bars: Any = figure(report, "rank-seconds").spec["data"]
    assert isinstance(bars, list | tuple)
    assert all(bar["y"] == ["over all", "attempt 1", "attempt 2"] for bar in bars)
    for index in range(3):
        assert sum(bar["x"][index] for bar in bars) == pytest.approx(100)
    check(
        report,
        shown=["lost work", "detection and restart", "restart after 1", "slowed by faults"],
        hidden=["not told apart"],
    )
    row = next(line for line in markdown(report).splitlines() if line.startswith("| share of all |"))
    shown = [float(cell) for cell in re.findall(r"([\d.]+) %", row)]
    percent = [bar["x"][0] for bar in bars]
    assert shown == pytest.approx([0.1 if 0 < value < 0.05 else round(value, 1) for value in percent], abs=0.051)


def test_a_job_of_many_attempts_has_its_bar_over_all_and_its_table_whole(run: Path) -> None:
    def attempts(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        job, *others = lines
        for line in others:
            line["attempt"] = 1 + (line["step"] - 1) // 20
        starts = [
            {**job, "attempt": line["attempt"], "resumed_from": line["step"] - 1, "t": line["t_begin"]}
            for line in others
            if line["kind"] == "step" and line["step"] % 20 == 1
        ]
        return [*starts, *others]

    report = report_of(edit(run, "ranks/rank-*.jsonl", attempts))
    drawn: Any = figure(report, "rank-seconds")
    assert drawn.spec["data"][0]["y"] == ["over all"]
    assert "the table has the attempts" in drawn.summary
    assert "| attempt 20 |" in markdown(report)


STATUSES = [0, 0, 137, None]


def test_a_launched_programs_time_is_not_told_apart(run: Path) -> None:
    times = {"began_t": [1010.0, 1010.1, 1010.2, 1010.3], "ended_t": [1020.0, 1021.0, 1022.0, 1030.0]}
    report = report_of(launched(run, statuses=STATUSES, **times))
    total = report.rank_seconds.total
    assert total.not_told_apart_s == pytest.approx(10.0 + 10.9 + 11.8 + 19.7)
    assert total.begin_and_end_s == pytest.approx(4 * 20.0 - total.not_told_apart_s)
    assert (report.goodput, report.rank_seconds.wall_s) == (None, 20.0)
    check(report, shown=["not told apart"])
    assert "1010" not in without_scripts(html(report))
    assert reports.rank_seconds(report) == "rank-seconds 80 s: begin and end 34.5 %, not told apart 65.5 %"


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"began_t": [1.0, 2.0], "ended_t": [3.0]},
        {"began_t": [1.0, 2.0, 3.0, "x"], "ended_t": [4.0] * 4},
        {"began_t": [9.0] * 4, "ended_t": [4.0] * 4},
        {"began_t": [9.0] * 4, "ended_t": [10.0, 10.0, 10.0, None]},
    ],
)
def test_a_launch_of_an_older_version_has_the_time_of_the_run(run: Path, times: dict[str, object]) -> None:
    report = report_of(launched(run, statuses=STATUSES, **times))
    assert report.rank_seconds.total.not_told_apart_s == pytest.approx(4 * report.duration_s)
    assert report.rank_seconds.total.total_s == pytest.approx(4 * report.rank_seconds.wall_s)


def test_the_command_says_what_goodput_is_made_of(run: Path) -> None:
    line = reports.rank_seconds(report_of(run))
    assert re.match(r"goodput 99\.\d %; rank-seconds 209 s: productive \d\d\.\d %, exposed communication ", line)
    assert "checkpoint" not in line, "there was none"


# ---- the sentences beside it


GAP: dict[str, Any] = {
    **{"began_s": 20.0, "ended_s": 30.0, "longest_gap_s": 0.538},
    **{"back_s": 0.279, "back_after_end_s": 0.0, "recovered": True},
}


def test_a_gap_longer_than_the_time_to_the_first_good_step_says_where_it_was() -> None:
    assert faults_section.sentence(fault(**GAP, gap_began_s=28.1)) == (
        "Cut north at 20 s for 10 s: longest gap between commits 538 ms (from 8.1 s to 8.64 s after it began);"
        " the first step back to 1.1 × the median ended 279 ms after it began."
    )
    before = faults_section.sentence(fault(**GAP, gap_began_s=19.6))
    assert "538 ms (from 400 ms before it began to 138 ms after)" in before


def test_the_longest_gap_of_a_run_is_where_its_step_was(run: Path) -> None:
    (cut,) = report_of(run).faults
    assert cut.gap_began_s == pytest.approx(step_begins()[CUT_STEP - 1] - BEGAN_T)


@pytest.mark.parametrize(
    ("least", "words"), [(0.0, "5 % of the time none"), (0.0004, "none"), (0.031, "5 % of the time at most 3.1 %")]
)
def test_no_headroom_is_said_as_none(least: float, words: str) -> None:
    sentence = certification_section.headroom(None, Machine(0.8, 0.1, 0.2, least))
    assert words in sentence
    assert "less than 0.0 %" not in sentence


CUT = {"fault": "f1", "type": "cut", "target": "n"}
DIED = {"rank": 2, "pid": 77, "signal": 9}
ENDED = {"rank": 0, "storage": False}


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        (
            "fault-began",
            {**CUT, "target": "dig", "links": ["n", "s"], "nodes": [], "phase": "dark"},
            "cut dig (f1): dark; links: n, s",
        ),
        ("fault-phase", {**CUT, "type": "brown-out", "phase": "loss 2 %"}, "loss 2 %"),
        ("fault-ended", {**CUT, "links": ["n"], "ack_t": 7.1}, "cut n (f1)"),
        ("fault-failed", {**CUT, "why": "no room"}, "planned: no room"),
        ("job-began", {"rank": 3, "job": "j1"}, "rank 3 joined job j1"),
        ("job-ended", {**ENDED, "job": "j1", "status": "ok", "reason": ""}, "rank 0 completed"),
        ("job-ended", {**ENDED, "status": "failed", "reason": "peer closed"}, "failed: peer"),
        ("rank-died", DIED, "rank 2 died of signal 9"),
        (
            "rank-died",
            {**DIED, "by_testbed": True, "out_of_memory": False},
            "rank 2 died of signal 9, sent by the testbed",
        ),
        ("rank-died", {**DIED, "by_testbed": False, "out_of_memory": True}, "rank 2 died of signal 9, out of memory"),
        ("rank-died", {"rank": 2, "pid": 77, "code": 1}, "rank 2 died with exit status 1"),
        ("attempt-began", {"attempt": 2, "resumed_from": 40}, "attempt 2, resumed from step 40"),
        ("attempt-began", {"attempt": 1, "resumed_from": 0}, "attempt 1, from the beginning"),
        (
            "attempt-ended",
            {"attempt": 1, "why": "rank 2 died", "detected_t": 1.23456789, "step": 44},
            "attempt 1 after step 44: rank 2 died",
        ),
        ("restart-waits", {"attempt": 2, "for": "north is dark"}, "attempt 2 waits: north is dark"),
        ("protection-switched", {"link": "n", "was": "working", "to": "switching"}, "n: working → switching"),
        ("emulator-died", {"status": -9}, "the emulator ended with status -9; every fiber is dark"),
        ("container-died", {"node": "east-0"}, "the container of east-0 died"),
        ("carrier-missed", {"link": "n", "site": "east", "count": 2}, "east gateway, n: 2 changes of carrier"),
        ("check", {"when": "always", "text": "links_up == 2", "holds": False, "measured": 1.0}, "does not hold (meas"),
        ("rerouted", {"took_s": 0.0031}, "routes changed in 3.1 ms"),
        ("agents-gone", {"how": "killed"}, "the fork server of the ranks ended: killed"),
        ("phase", {"phase": "certify"}, "certify"),
        ("something-new", {"how_long": 3, "why": "it is new"}, "how long 3, why it is new"),
    ],
)
def test_an_event_is_a_sentence(event: str, fields: dict[str, Any], text: str) -> None:
    (line,) = events_section.lines([Event(5.0, event, {"t": 5.0, "event": event, **fields})], 1.0)
    assert text in line.text
    assert not re.search(r"\b(\w+_t|pid|scheduled|storage|detected|changes \d)\b", line.text), "raw fields"


@pytest.mark.parametrize("event", sorted(events_section.SENTENCES))
def test_an_event_without_its_fields_breaks_nothing(event: str) -> None:
    (line,) = events_section.lines([Event(5.0, event, {"t": 5.0, "event": event})], 1.0)
    assert isinstance(line.text, str)
