"""A job that died: no form of its report passes on what was seen of it, and the headline names the cause."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builders.reports import answer, answers, check, document_of, pages_of, report_of
from builders.run_factory import cut_t, edit, make_run, step_begins

from testbed.core.analysis import attempt_history
from testbed.core.analysis.attempt_history import Standstill
from testbed.core.analysis.goodput import evaluate
from testbed.core.analysis.timeline import fault_windows
from testbed.core.experiment import expect
from testbed.core.report.answers import EXIT_CODES
from testbed.core.report.junit import junit
from testbed.core.report.measured import judged
from testbed.core.report.open_metrics import OpenMetric, judge, open_metrics
from testbed.core.report.sections import restarts_section
from testbed.core.report.sections.restarts_section import AttemptLine
from testbed.host.files.store import RunDirectory

STEPS = 205
TIMEOUT_S = 8.0
WORDS = "Timed out waiting 8000ms for send operation to complete"


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A run of an earlier version: both fibers dark from step 201 on, the ranks fail after their timeout, and run.json
    has recorded what was seen of the gap as a recovery that met its bound."""
    run = make_run(tmp_path / "run", status="failed", steps=STEPS)
    died_t = step_begins(STEPS)[-1] + TIMEOUT_S + 0.2
    end = {"kind": "end", "t": died_t, "status": "failed", "reason": f"step {STEPS + 1}: {WORDS}", "step": STEPS}
    edit(run, "ranks/*.jsonl", lambda lines: [*(line for line in lines if line["kind"] != "end"), end])
    south = {"t": cut_t() + 0.01, "event": "fault-began", "fault": "f2", "type": "cut", "target": "south"}
    add_events(
        edit(
            run,
            "events.jsonl",
            lambda events: [
                event
                for event in events
                if event["event"] not in ("fault-ended", "job-ended") and event.get("up") is not True
            ],
        ),
        {**south, "links": ["south"]},
        *carriers(cut_t() + 0.011, "south", up=False),
        {"t": died_t, "event": "job-ended", "rank": 2, "job": "j1", "status": "failed"},
    )
    return edit(
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


def carriers(t: float, link: str, *, up: bool) -> list[dict[str, Any]]:
    return [{"t": t, "event": "carrier", "link": link, "site": site, "up": up} for site in ("east", "west")]


def add_events(run: Path, *events: dict[str, Any]) -> None:
    edit(run, "events.jsonl", lambda recorded: sorted([*recorded, *events], key=lambda event: event["t"]))


def test_no_form_of_the_report_passes_on_an_open_gap(dead: Path) -> None:
    report = report_of(dead)
    seen_s = 41.2
    assert report.training.recovery_s == pytest.approx(seen_s)
    assert (report.training.recovery_open, report.training.died) == (True, True)
    assert report.recovery_s == math.inf
    assert {report.faults[0].gap_open, report.faults[1].gap_open} == {True}
    assert report.faults[0].longest_gap_s == pytest.approx(seen_s)

    expected: Any = {
        "expected-1": ("no", "recovery <= 15s. Measured: >= 41.2 s, training did not come back."),
        "expected-2": ("no", "did not reach its last step"),
    }
    check(
        report,
        "fail",
        recovered="no",
        **expected,
        document={"training": {"recovery_open": True}},
    )
    assert EXIT_CODES[report.verdict] == 1
    expectations = document_of(report)["run"]["expectations"]
    assert [(row["holds"], row["bound"]) for row in expectations] == [(False, "at least"), (False, "at most")]

    cases = {it.get("name"): it for it in ElementTree.fromstring(junit(report)).iter("testcase")}
    for name in ("recovery <= 15s", "goodput >= 0.3", "Did it come through?"):
        assert cases[name].find("failure") is not None, name
    for page in pages_of(report):
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
    check(report, trained=("no", f"in {STEPS} of 400 steps", f"failed in step {STEPS + 1}: {WORDS}"))
    assert f"at step {STEPS}" not in answer(report, "trained").text


def test_an_outage_shorter_than_the_timeout_is_not_called_longer(dead: Path) -> None:
    healed_t = cut_t() + 5.0
    for fault, link in (("f1", "north"), ("f2", "south")):
        ended = {"event": "fault-ended", "fault": fault, "type": "cut", "target": link, "links": [link]}
        add_events(dead, {"t": healed_t, **ended}, *carriers(healed_t + 0.001, link, up=True))
    headline = report_of(dead).headline
    assert "both fibers were dark for 4.99 s, and no data came through within the group's timeout of 8 s" in headline


def test_a_job_that_died_beside_a_fault_that_parts_nothing_names_the_fault_and_the_reason(tmp_path: Path) -> None:
    report = report_of(make_run(tmp_path / "r", status="failed", steps=260))
    assert report.headline == (
        "Training stopped after step 260 and did not come back after the cut of north at 26.1 s:"
        " rank 2 died of signal 9."
    )


def test_a_failure_of_the_lab_settles_nothing(dead: Path) -> None:
    report = report_of(edit(dead, "run.json", unknown_because="the keeper of the lab died"))
    assert report.verdict == "unknown"
    assert "yes" not in {answers(report)["expected-1"], answers(report)["recovered"]}


def test_an_interrupted_stall_is_no_pass_and_no_failure_of_a_bound_it_kept() -> None:
    short, long = (OpenMetric(seen, "at least", False) for seen in (3.0, 30.0))
    bound = expect.parse("recovery <= 15s")
    assert (judge(bound, short), judge(bound, long)) == (None, False)


def test_a_run_interrupted_while_the_job_stood_still_passes_nothing(dead: Path) -> None:
    edit(dead, "ranks/*.jsonl", where={"kind": "end"}, status="stopped")
    report = report_of(edit(dead, "run.json", status="interrupted", reason="interrupted by the user"))
    seen_s = report.training.recovery_s
    assert report.training.recovery_open
    assert not report.training.died
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
    tried = (attempt(1, 10.0, "rank 2 died", 3.0), attempt(2, 30.0, "rank 2 died", None))
    metric = open_metrics(job, tried, job.began_t)["time_to_resume"]
    assert metric.seen == pytest.approx(run.info.ended_t - job.began_t - 30.0)
    assert judge(expect.parse("time_to_resume <= 1h"), metric) is False
    shown = restarts_section.table(tried)
    assert [(row[7], row[9]) for row in shown.rows] == [("3 s", "east –"), ("never", "east to the end")]


def test_one_planned_step_that_was_taken_is_no_failure_to_train(tmp_path: Path) -> None:
    run = edit(make_run(tmp_path / "r", steps=1), "run.json", workload={"steps": 1}, expectations=[])
    report = report_of(edit(run, "ranks/*.jsonl", where={"kind": "job"}, steps=1))
    assert answers(report)["trained"] == "yes"
    assert answer(report, "trained").text.endswith("in 1 of 1 step on 4 ranks; one step has no trend.")


def test_a_report_without_anything_open_has_none(run: Path) -> None:
    report = report_of(run)
    assert report.open_metrics == {}
    assert report.recovery_s == report.training.recovery_s
