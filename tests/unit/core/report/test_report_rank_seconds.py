"""Where rank-seconds went in a report: the bar, the table, the JSON and the line of the command; and the sentences and
events beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import run_factory
from oracles import report_schema

from testbed.cli import tables
from testbed.core.records.event import Event
from testbed.core.report import certification_section, events_section, faults_section
from testbed.core.report.document import Report, build, to_json
from testbed.core.report.faults_section import Fault
from testbed.core.report.fidelity_section import Machine
from testbed.core.report.figures import figures
from testbed.core.report.markdown import markdown
from testbed.core.report.run_page import html
from testbed.host.files.store import RunDirectory

SCHEMA = report_schema.validator("report.schema.json")


def report_of(path: Path) -> Report:
    return build(RunDirectory(path).read())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_factory.make_run(tmp_path / "run")


def add_checkpoints(run: Path, every: int, took_s: float) -> None:
    """Let each rank save its state after every so many steps; what follows happens later."""
    for file in (run / "ranks").glob("rank-*.jsonl"):
        later, lines = 0.0, []
        for line in map(json.loads, file.read_text().splitlines()):
            for key in ("t", "t_begin", "t_ready", "t_sync", "t_end"):
                if key in line and line["kind"] != "job":
                    line[key] += later
            lines.append(line)
            if line["kind"] == "step" and line["step"] % every == 0 and line["step"] < run_factory.STEPS:
                later += took_s
                lines.append(
                    {
                        "kind": "checkpoint",
                        "t": line["t_end"] + took_s,
                        "step": line["step"],
                        "bytes": 1,
                        "took_s": took_s,
                    }
                )
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def restart(run: Path, resumed_from: int, lost_s: float) -> None:
    """Attempt 1 ends after the last step; attempt 2 begins ``lost_s`` later, from a checkpoint before it."""
    for file in (run / "ranks").glob("rank-*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [it for it in lines if it["kind"] == "step"]
        shift = steps[-1]["t_end"] + lost_s - steps[resumed_from]["t_begin"]
        again = {**lines[0], "attempt": 2, "resumed_from": resumed_from, "t": steps[-1]["t_end"] + lost_s - 0.1}
        second = [
            {**it, "attempt": 2} | {key: it[key] + shift for key in it if key.startswith("t_")}
            for it in steps[resumed_from:]
        ]
        end = {"kind": "end", "attempt": 2, "t": second[-1]["t_end"], "status": "ok", "reason": "", "step": 400}
        saved = [it for it in lines if it["kind"] == "checkpoint"]
        file.write_text("".join(json.dumps(it) + "\n" for it in (lines[0], *steps, *saved, again, *second, end)))
        last = steps[-1]["t_end"]
    with (run / "events.jsonl").open("a") as stream:
        ended = {"t": last + 1.0, "event": "attempt-ended", "attempt": 1, "why": "rank 2 died", "detected_t": last + 1}
        stream.write(json.dumps(ended) + "\n")


def total_of(seconds: dict[str, float]) -> float:
    return sum(seconds.values())


def test_the_document_has_every_rank_second_once(run: Path) -> None:
    add_checkpoints(run, 50, 2.0)
    restart(run, 350, 6.0)
    report = report_of(run)
    document: dict[str, Any] = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    told = document["rank_seconds"]
    assert told["world_size"] == 4
    assert told["wall_s"] == pytest.approx(document["training"]["wall_s"])
    assert total_of(told["total"]) == pytest.approx(4 * told["wall_s"], rel=1e-3)
    assert [(it["attempt"], it["restart"]) for it in told["spans"]] == [(1, False), (1, True), (2, False)]
    for key, value in told["total"].items():
        assert sum(it["seconds"][key] for it in told["spans"]) == pytest.approx(value)
    for span in told["spans"]:
        assert total_of(span["seconds"]) == pytest.approx(4 * (span["ended_s"] - span["began_s"]), rel=1e-3)
    good = told["total"]["productive_s"] + told["total"]["exposed_communication_s"]
    assert document["training"]["goodput"] == pytest.approx(good / total_of(told["total"]))
    first = told["spans"][0]
    good = first["seconds"]["productive_s"] + first["seconds"]["exposed_communication_s"]
    assert document["attempts"][0]["goodput"] == pytest.approx(good / total_of(first["seconds"]))


def test_checkpoints_are_no_goodput(run: Path) -> None:
    before = report_of(run)
    add_checkpoints(run, 50, 2.0)
    after = report_of(run)
    assert after.rank_seconds is not None and before.rank_seconds is not None
    assert after.rank_seconds.total.checkpoint_s == pytest.approx(4 * 7 * 2.0)
    assert after.rank_seconds.total.good_s == pytest.approx(before.rank_seconds.total.good_s, rel=1e-3)
    assert after.goodput == pytest.approx(before.goodput * before.training.wall_s / (before.training.wall_s + 14.0))


def test_the_bar_and_the_table_show_the_same(run: Path) -> None:
    add_checkpoints(run, 50, 2.0)
    restart(run, 350, 6.0)
    report = report_of(run)
    (figure,) = [it for it in figures(report) if it.id == "rank-seconds"]
    bars = figure.spec["data"]
    assert isinstance(bars, list | tuple)
    assert all(bar["y"] == ["over all", "attempt 1", "attempt 2"] for bar in bars)
    for index in range(3):
        assert sum(bar["x"][index] for bar in bars) == pytest.approx(100)
    for page in (html(report), markdown(report)):
        for words in ("lost work", "detection and restart", "restart after 1", "slowed by faults"):
            assert words in page
        assert "not told apart" not in page
    row = next(line for line in markdown(report).splitlines() if line.startswith("| share of all |"))
    shown = [float(cell) for cell in re.findall(r"([\d.]+) %", row)]
    percent = [bar["x"][0] for bar in bars]
    assert shown == pytest.approx([0.1 if 0 < value < 0.05 else round(value, 1) for value in percent], abs=0.051)


def test_a_job_of_many_attempts_has_its_bar_over_all_and_its_table_whole(run: Path) -> None:
    for file in (run / "ranks").glob("rank-*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["attempt"] = 1 if line["kind"] == "job" else 1 + (line["step"] - 1) // 20
        starts = [
            {**lines[0], "attempt": it["attempt"], "resumed_from": it["step"] - 1, "t": it["t_begin"]}
            for it in lines
            if it["kind"] == "step" and it["step"] % 20 == 1
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in (*starts, *lines[1:])))
    report = report_of(run)
    (figure,) = [it for it in figures(report) if it.id == "rank-seconds"]
    assert figure.spec["data"][0]["y"] == ["over all"]  # type: ignore[index]
    assert "the table has the attempts" in figure.summary
    assert "| attempt 20 |" in markdown(report)


def launched(run: Path, **workload: object) -> Report:
    for records in (run / "ranks").glob("*.jsonl"):
        records.unlink()
    info = json.loads((run / "run.json").read_text())
    given = {"command": "./x", "statuses": [0, 0, 137, None], **workload}
    (run / "run.json").write_text(json.dumps({**info, "workload": given, "expectations": []}))
    return report_of(run)


def test_a_launched_programs_time_is_not_told_apart(run: Path) -> None:
    report = launched(run, began_t=[1010.0, 1010.1, 1010.2, 1010.3], ended_t=[1020.0, 1021.0, 1022.0, 1030.0])
    assert report.rank_seconds is not None
    total = report.rank_seconds.total
    assert total.not_told_apart_s == pytest.approx(10.0 + 10.9 + 11.8 + 19.7)
    assert total.begin_and_end_s == pytest.approx(4 * 20.0 - total.not_told_apart_s)
    assert (report.goodput, report.rank_seconds.wall_s) == (None, 20.0)
    SCHEMA.validate(json.loads(json.dumps(to_json(report), allow_nan=False)))
    assert "not told apart" in html(report) and "not told apart" in markdown(report)
    assert "1010" not in re.sub(r"<script.*?</script>", "", html(report), flags=re.DOTALL)
    assert tables.rank_seconds(report) == "rank-seconds 80 s: begin and end 34.5 %, not told apart 65.5 %"


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
    report = launched(run, **times)
    assert report.rank_seconds is not None and report.duration_s is not None
    assert report.rank_seconds.total.not_told_apart_s == pytest.approx(4 * report.duration_s)
    assert report.rank_seconds.total.total_s == pytest.approx(4 * report.rank_seconds.wall_s)


def test_the_command_says_what_goodput_is_made_of(run: Path) -> None:
    said = tables.rank_seconds(report_of(run))
    assert re.match(r"goodput 99\.\d %; rank-seconds 209 s: productive \d\d\.\d %, exposed communication ", said)
    assert "checkpoint" not in said, "there was none"


# ---- the sentences beside it


def fault(**values: Any) -> Fault:
    given = {
        **{"fault": "f1", "type": "cut", "target": "north", "links": ("north",), "began_s": 20.0, "ended_s": 30.0},
        **{"carrier_s": None, "longest_gap_s": 0.538, "back_s": 0.279, "back_after_end_s": 0.0, "recovered": True},
    }
    return Fault(**{**given, **values})


def test_a_gap_longer_than_the_time_to_the_first_good_step_says_where_it_was() -> None:
    later = faults_section.sentence(fault(gap_began_s=28.1))
    assert later == (
        "Cut north at 20 s for 10 s: longest gap between commits 538 ms (from 8.1 s to 8.64 s after it began);"
        " the first step back to 1.1 × the median ended 279 ms after it began."
    )
    before = faults_section.sentence(fault(gap_began_s=19.6))
    assert "538 ms (from 400 ms before it began to 138 ms after)" in before


def test_the_longest_gap_of_a_run_is_where_its_step_was(run: Path) -> None:
    (told,) = report_of(run).faults
    begin = run_factory.step_begins()[run_factory.CUT_STEP - 1] - run_factory.BEGAN_T
    assert told.gap_began_s == pytest.approx(begin)


@pytest.mark.parametrize(
    ("least", "words"), [(0.0, "5 % of the time none"), (0.0004, "none"), (0.031, "5 % of the time at most 3.1 %")]
)
def test_no_headroom_is_said_as_none(least: float, words: str) -> None:
    said = certification_section.headroom(None, Machine(0.8, 0.1, 0.2, least))
    assert words in said
    assert "less than 0.0 %" not in said


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        (
            "fault-began",
            {"fault": "f1", "type": "cut", "target": "dig", "links": ["n", "s"], "nodes": [], "phase": "dark"},
            "cut dig (f1): dark; links: n, s",
        ),
        ("fault-phase", {"fault": "f2", "type": "brown-out", "target": "n", "phase": "loss 2 %"}, "loss 2 %"),
        ("fault-ended", {"fault": "f1", "type": "cut", "target": "n", "links": ["n"], "ack_t": 7.1}, "cut n (f1)"),
        ("fault-failed", {"fault": "f1", "type": "cut", "target": "n", "why": "no room"}, "planned: no room"),
        ("job-began", {"rank": 3, "job": "j1"}, "rank 3 joined job j1"),
        ("job-ended", {"rank": 0, "job": "j1", "status": "ok", "reason": "", "storage": False}, "rank 0 completed"),
        ("job-ended", {"rank": 0, "status": "failed", "reason": "peer closed", "storage": False}, "failed: peer"),
        ("rank-died", {"rank": 2, "pid": 77, "signal": 9}, "rank 2 died of signal 9"),
        (
            "rank-died",
            {"rank": 2, "pid": 77, "signal": 9, "by_testbed": True, "out_of_memory": False},
            "rank 2 died of signal 9, sent by the testbed",
        ),
        (
            "rank-died",
            {"rank": 2, "pid": 77, "signal": 9, "by_testbed": False, "out_of_memory": True},
            "rank 2 died of signal 9, out of memory",
        ),
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


@pytest.mark.parametrize("event", sorted(events_section._SENTENCES))
def test_an_event_without_its_fields_breaks_nothing(event: str) -> None:
    (line,) = events_section.lines([Event(5.0, event, {"t": 5.0, "event": event})], 1.0)
    assert isinstance(line.text, str)
