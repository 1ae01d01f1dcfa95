"""A report as JUnit XML, which CI systems read: one test case for each question, condition and expectation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from testbed.core.report.document import Report

__all__ = ["junit", "junit_of_error", "printable", "suite_of", "written"]

_CASES: Final = {
    "restarted": "Did it go on?",
    "fidelity": "Did the fiber hold its promise?",
    "wire": "Did the bytes cross it?",
    "checked": "Is it right?",
}
"""Names of test cases by the id of their question, where the wording of the question has changed since: CI systems
keep the history of a test case by its name."""


def junit(report: Report) -> str:
    """Return the whole file.

    No is a failure and unknown an error; not measurable (by this emulator) and noisy host are skipped.
    """
    suite = suite_of(str(report.run.experiment.get("name") or report.run.name or "run"))
    expected = {f"expected-{index}": condition.text for index, condition in enumerate(report.run.expectations, 1)}
    steady = {
        f"steady-{index}": f"{condition.when}: {condition.text}" for index, condition in enumerate(report.steady, 1)
    }
    named = {**_CASES, **expected, **steady}
    for answer in report.answers:
        case = _case(suite, named.get(answer.id, answer.question))
        text = printable(answer.text)
        if answer.answer == "no":
            case.result = [Failure(text, "DoesNotHold")]
        elif answer.answer == "unknown":
            case.result = [Error(text, "Unknown")]
        elif answer.answer != "yes":
            case.result = [Skipped(text)]
        suite.add_testcase(case)
    if report.run.status != "finished":  # the run may have ended before any question could be answered
        case = _case(suite, "Did the run reach its end?")
        case.result = [Error(printable(report.headline), "Unknown")]
        suite.add_testcase(case)
    return written("testbed run", [suite], report.duration_s)


def junit_of_error(name: str, message: str) -> str:
    """Return the file of a run that ended before there was anything to report."""
    suite = suite_of(name)
    case = _case(suite, "Could it be run?")
    case.result = [Error(printable(message), "NotRun")]
    suite.add_testcase(case)
    return written("testbed run", [suite], None)


def suite_of(name: str) -> TestSuite:
    return TestSuite(printable(name))


def _case(suite: TestSuite, name: str) -> TestCase:
    return TestCase(printable(name), f"testbed.{suite.name}")


def printable(text: str) -> str:
    """Replace control characters, which XML cannot hold: a reason may be the last output of a rank."""
    return "".join(character if character.isprintable() else " " for character in text)


def written(name: str, suites: Sequence[TestSuite], took_s: float | None) -> str:
    """Return the whole file; ``took_s`` is the time of a single suite."""
    whole = JUnitXml(name)
    durations = [took_s if took_s is not None and len(suites) == 1 else suite.time or None for suite in suites]
    for suite in suites:
        whole.add_testsuite(suite)
    whole.update_statistics()  # sets the time of each suite to the sum of its cases
    for suite, own in zip(whole, durations, strict=True):
        suite.time = suite.time if own is None else own
    whole.time = round(sum(suite.time for suite in whole), 3)
    text = whole.tostring()
    return text.decode() if isinstance(text, bytes) else str(text)
