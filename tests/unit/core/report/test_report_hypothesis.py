"""What a report says of the steady state and of faults that never came, and its verdict for CI."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from builders.reports import check, figure, pages_of, report_of
from builders.run_factory import BEGAN_T, edit

from testbed.core.report.document import Report, to_json
from testbed.core.report.junit import junit, junit_of_error

HELD = {"when": "during", "text": "tokens_per_s >= 20% of before", "holds": True, "measured": 900.0, "bound": 200.0}
LOST: dict[str, Any] = {
    "when": "always",
    "text": "ranks_up == 4",
    "holds": False,
    "measured": 3.0,
    "bound": 4.0,
    "why": "failed for longer than its grace",
    "violations": [{"began_t": BEGAN_T + 7, "ended_t": BEGAN_T + 9.5, "measured": 3.0}],
}
UNSEEN = {"when": "after", "text": "links_up == 2", "holds": None, "why": "no sample in phase 'after'"}


def report_with(run: Path, **values: Any) -> Report:
    return report_of(edit(run, "run.json", **values))


def cases(report: Report) -> dict[str, str]:
    """Name to what came out, as a CI system reads it."""
    elements = ET.fromstring(junit(report)).iter("testcase")
    return {case.attrib["name"]: next((child.tag for child in case), "passed") for case in elements}


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [([HELD], "pass"), ([HELD, LOST], "fail"), ([HELD, UNSEEN], "unknown"), ([LOST, UNSEEN], "fail"), ([], "pass")],
)
def test_the_verdict_is_that_of_the_worst_condition(run: Path, checks: list[Any], verdict: str) -> None:
    assert report_with(run, hypothesis=checks).verdict == verdict


def test_a_violation_is_shown_everywhere_with_its_time(run: Path) -> None:
    report = report_with(run, hypothesis=[HELD, LOST, UNSEEN])
    (violation,) = report.steady[1].violations
    assert (violation.began_s, violation.ended_s) == pytest.approx((7.0, 9.5))
    check(
        report,
        headline="steady state did not hold",
        shown=["Steady state", "from 7 s to 9.5 s", "no sample in phase"],
    )
    layout = figure(report, "step-time").spec["layout"]
    marked = [shape for shape in layout["shapes"] if shape.get("y1") == 0.05]  # type: ignore[index]
    assert [(shape["x0"], shape["x1"]) for shape in marked] == [pytest.approx((7.0, 9.5))]


def test_faults_that_never_came_leave_the_verdict_open(run: Path) -> None:
    fault = {"inject": "cut", "target": "north", "at_s": 5.0, "repeat": 3}
    assert report_with(run, schedule=[{**fault, "began": 3}]).verdict == "pass"
    report = report_with(run, schedule=[{**fault, "began": 2}, {"inject": "cut", "target": "south"}])
    check(report, "unknown", scheduled=("unknown", "2 of 4 faults happened", "cut north, cut south"))


def test_junit_has_a_case_for_each_question_and_passes_nothing_that_is_not_known(run: Path) -> None:
    expectations = [{"text": "goodput >= 0.9", "holds": False, "measured": 0.8}, {"text": "hangs == 0", "holds": None}]
    report = report_with(run, hypothesis=[HELD, LOST, UNSEEN], expectations=expectations)
    found = cases(report)
    expected = {
        "during: tokens_per_s >= 20% of before": "passed",
        "always: ranks_up == 4": "failure",
        "after: links_up == 2": "error",
        "goodput >= 0.9": "failure",
        "hangs == 0": "error",
        "Did it train?": "passed",
    }
    assert expected.items() <= found.items()
    assert len(found) == len(report.answers)
    suite = ET.fromstring(junit(report)).find("testsuite")
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("2", "2")
    assert suite.attrib["name"] == "first-cut"


def test_junit_of_a_run_that_did_not_end_is_an_error_even_if_all_else_is_well(run: Path) -> None:
    report = report_with(run, status="failed", reason="rank 2 \x00\x1b[31m died")
    assert cases(report)["Did the run reach its end?"] == "error"
    (case,) = ET.fromstring(junit_of_error("x", "no such \x07 file")).iter("testcase")
    assert case.find("error") is not None


@pytest.mark.parametrize("value", [None, 3, "x", [3], [{}], [{"when": 3, "violations": [{"began_t": "x"}, 5]}]])
def test_whatever_stands_in_run_json_breaks_nothing(run: Path, value: object) -> None:
    report = report_with(run, hypothesis=value, schedule=value)
    pages_of(report), junit(report), json.dumps(to_json(report))
    assert report.verdict != "pass" or not report.steady


def test_the_names_of_test_cases_do_not_follow_the_wording_of_the_questions(run: Path) -> None:
    """CI systems keep the history of a test case by its name."""
    assert list(cases(report_with(run)))[:4] == [
        "Did it train?",
        "Did it come through?",
        "Did the fiber hold its promise?",
        "Did the bytes cross it?",
    ]
