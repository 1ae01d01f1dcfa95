"""A job that died: no form of its report passes on what was seen of it, and the headline names the cause."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from builders import run_factory
from test_report import SCHEMA, answers, answers_text, change, report_of

from testbed.core.analysis import attempt_history
from testbed.core.analysis.attempt_history import Standstill
from testbed.core.analysis.goodput import evaluate
from testbed.core.analysis.timeline import fault_windows
from testbed.core.experiment import expect
from testbed.core.report import restarts_section
from testbed.core.report.answers import EXIT_CODES
from testbed.core.report.document import Report, to_json
from testbed.core.report.junit import junit
from testbed.core.report.markdown import markdown
from testbed.core.report.measured import judged
from testbed.core.report.open_metrics import OpenMetric, judge, open_metrics
from testbed.core.report.restarts_section import AttemptLine
from testbed.core.report.run_page import html
from testbed.host.files.store import RunDirectory

STEPS = 205
TIMEOUT_S = 8.0
WORDS = "Timed out waiting 8000ms for send operation to complete"


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A run of an earlier version: both fibers dark from step 201 on, the ranks fail after their timeout, and run.json
    has recorded what was seen of the gap as a recovery that met its bound."""
    run = run_factory.make_run(tmp_path / "run", status="failed", steps=STEPS)
    died_t = run_factory.step_begins(STEPS)[-1] + TIMEOUT_S + 0.2
    for rank in range(4):
        file = run / "ranks" / f"rank-{rank}.jsonl"
        lines = [it for it in file.read_text().splitlines() if json.loads(it)["kind"] != "end"]
        end = {"kind": "end", "t": died_t, "status": "failed", "reason": f"step {STEPS + 1}: {WORDS}", "step": STEPS}
        file.write_text("\n".join([*lines, json.dumps(end)]) + "\n")
    kept = [it for it in events(run) if it["event"] not in ("fault-ended", "job-ended") and it.get("up") is not True]
    cut_t = next(it["t"] for it in kept if it["event"] == "fault-began")
    south = {"fault": "f2", "type": "cut", "target": "south", "links": ["south"]}
    kept.append({"t": cut_t + 0.01, "event": "fault-began", **south})
    kept += [
        {"t": cut_t + 0.011, "event": "carrier", "link": "south", "site": site, "up": False}
        for site in ("east", "west")
    ]
    kept.append({"t": died_t, "event": "job-ended", "rank": 2, "job": "j1", "status": "failed"})
    write_events(run, kept)
    change(
        run,
        "run.json",
        reason=f"rank 2 on west-0 failed: step {STEPS + 1}: {WORDS}",
        ended_t=died_t + 33.0,
        expectations=[
            {"text": "recovery <= 15s", "holds": True, "measured": 8.178},
            {"text": "goodput >= 0.3", "holds": True, "measured": 0.7},
        ],
        workload={"steps": 400, "timeout_s": TIMEOUT_S},
    )
    return run


def events(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def write_events(run: Path, those: list[dict]) -> None:
    those = sorted(those, key=lambda it: it["t"])
    (run / "events.jsonl").write_text("".join(json.dumps(it) + "\n" for it in those))


def test_no_form_of_the_report_passes_on_an_open_gap(dead: Path) -> None:
    report = report_of(dead)
    seen_s = 41.2
    assert report.training.recovery_s == pytest.approx(seen_s)
    assert (report.training.recovery_open, report.training.died) == (True, True)
    assert report.recovery_s == math.inf
    assert {report.faults[0].gap_open, report.faults[1].gap_open} == {True}
    assert report.faults[0].longest_gap_s == pytest.approx(seen_s)

    told = answers(report)
    assert (told["recovered"], told["expected-1"], told["expected-2"]) == ("no", "no", "no")
    assert answers_text(report, "expected-1") == "recovery <= 15s. Measured: >= 41.2 s, training did not come back."
    assert "did not reach its last step" in answers_text(report, "expected-2")
    assert (report.verdict, EXIT_CODES[report.verdict]) == ("fail", 1)

    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    assert [it["holds"] for it in document["run"]["expectations"]] == [False, False]
    assert [it["bound"] for it in document["run"]["expectations"]] == ["at least", "at most"]
    assert document["training"]["recovery_open"] is True

    cases = {it.get("name"): it for it in ElementTree.fromstring(junit(report)).iter("testcase")}
    for name in ("recovery <= 15s", "goodput >= 0.3", "Did it come through?"):
        assert cases[name].find("failure") is not None, name
    for page in (html(report), markdown(report)):
        assert page.replace("&gt;", ">").count(">= 41.2 s") >= 4, "answers, table, and the figure of recovery"


def test_a_run_that_ends_now_is_judged_alike(dead: Path) -> None:
    written = [
        expect.parse(text) for text in ("recovery <= 15s", "goodput >= 0.3", "steps_lost == 0", "recovery >= 4s")
    ]
    assert [it.holds for it in judged(written, report_of(dead))] == [False, False, True, False]


def test_the_headline_names_the_cause_and_the_steps_agree(dead: Path) -> None:
    report = report_of(dead)
    assert report.headline == (
        f"Training stopped after step {STEPS} and did not come back:"
        " both fibers were dark for longer than the group's timeout of 8 s."
    )
    trained = answers_text(report, "trained")
    assert f"in {STEPS} of 400 steps" in trained
    assert f"failed in step {STEPS + 1}: {WORDS}" in trained
    assert f"at step {STEPS}" not in trained


def test_an_outage_shorter_than_the_timeout_is_not_called_longer(dead: Path) -> None:
    healed_t = run_factory.cut_t() + 5.0
    ended = [
        {"t": healed_t, "event": "fault-ended", "fault": name, "type": "cut", "target": link, "links": [link]}
        for name, link in (("f1", "north"), ("f2", "south"))
    ]
    lit = [
        {"t": healed_t + 0.001, "event": "carrier", "link": link, "site": site, "up": True}
        for link in ("north", "south")
        for site in ("east", "west")
    ]
    write_events(dead, [*events(dead), *ended, *lit])
    report = report_of(dead)
    assert "both fibers were dark for 4.99 s, and no data came through within the group's timeout of 8 s" in (
        report.headline
    )


def test_a_job_that_died_beside_a_fault_that_parts_nothing_names_the_fault_and_the_reason(tmp_path: Path) -> None:
    report = report_of(run_factory.make_run(tmp_path / "r", status="failed", steps=260))
    assert report.headline == (
        "Training stopped after step 260 and did not come back after the cut of north at 26.1 s:"
        " rank 2 died of signal 9."
    )


def test_a_failure_of_the_lab_settles_nothing(dead: Path) -> None:
    change(dead, "run.json", unknown_because="the keeper of the lab died")
    report = report_of(dead)
    assert report.verdict == "unknown"
    assert "yes" not in {answers(report)["expected-1"], answers(report)["recovered"]}


def test_an_interrupted_stall_is_no_pass_and_no_failure_of_a_bound_it_kept() -> None:
    short, long = (OpenMetric(seen, "at least", False) for seen in (3.0, 30.0))
    bound = expect.parse("recovery <= 15s")
    assert (judge(bound, short), judge(bound, long)) == (None, False)


def test_a_run_interrupted_while_the_job_stood_still_passes_nothing(dead: Path) -> None:
    for file in (dead / "ranks").glob("rank-*.jsonl"):
        file.write_text(file.read_text().replace('"failed"', '"stopped"'))
    change(dead, "run.json", status="interrupted", reason="interrupted by the user")
    report = report_of(dead)
    seen_s = report.training.recovery_s
    assert report.training.recovery_open
    assert not report.training.died
    assert seen_s is not None
    assert TIMEOUT_S < seen_s < 15, "an orderly stop ends what was seen of the training"
    assert (answers(report)["recovered"], answers(report)["expected-1"]) == ("no", "unknown")
    assert report.verdict != "pass"


@pytest.mark.parametrize("op", ["<=", "<", ">=", ">", "==", "!="])
@pytest.mark.parametrize("bound", ["at least", "at most"])
@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize("seen", [0.1, 0.5, 0.9])
def test_no_expectation_of_an_open_metric_ever_holds(op: str, bound: str, over: bool, seen: float) -> None:
    found = judge(expect.parse(f"goodput {op} 0.5"), OpenMetric(seen, bound, over))
    assert found is (False if over else found)
    assert found is not True


def attempt(number: int, ended_s: float, why: str, resumed_s: float | None) -> AttemptLine:
    return AttemptLine(
        number, 0.0, ended_s, 0, 5, 0, why, "", None, resumed_s, None, (Standstill("east", (0,), (), None),)
    )


def test_a_last_attempt_that_never_resumed_is_no_time_to_resume_of_an_earlier_one(dead: Path) -> None:
    run = RunDirectory(dead).read()
    job = evaluate(attempt_history.fenced(run.ranks), fault_windows(run.events), seen_t=run.info.ended_t)
    assert job.began_t is not None
    tried = (attempt(1, 10.0, "rank 2 died", 3.0), attempt(2, 30.0, "rank 2 died", None))
    metric = open_metrics(job, tried, job.began_t)["time_to_resume"]
    assert metric.seen == pytest.approx(run.info.ended_t - job.began_t - 30.0)
    assert judge(expect.parse("time_to_resume <= 1h"), metric) is False
    shown = restarts_section.table(tried)
    assert shown is not None
    assert [(row[7], row[9]) for row in shown.rows] == [("3 s", "east –"), ("never", "east to the end")]


def test_one_planned_step_that_was_taken_is_no_failure_to_train(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "r", steps=1)
    change(run, "run.json", workload={"steps": 1}, expectations=[])
    for file in (run / "ranks").glob("rank-*.jsonl"):
        file.write_text(file.read_text().replace('"steps": 400', '"steps": 1'))
    report = report_of(run)
    assert answers(report)["trained"] == "yes"
    assert answers_text(report, "trained").endswith("in 1 of 1 step on 4 ranks; one step has no trend.")


def test_a_report_without_anything_open_has_none(tmp_path: Path) -> None:
    report: Report = report_of(run_factory.make_run(tmp_path / "r"))
    assert report.open_metrics == {}
    assert report.recovery_s == report.training.recovery_s
