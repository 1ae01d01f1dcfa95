"""A report as JUnit XML, which CI systems read: one test case for each question, condition and expectation."""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from testbed.core.report.document import Report

__all__ = ["junit", "junit_of_error"]


def junit(report: Report) -> str:
    """The whole file. What does not hold is a failure; what is unknown an error, never a pass; what this emulator
    cannot measure is skipped."""
    suite = _suite(str(report.run.experiment.get("name") or report.run.name or "run"))
    expected = {f"expected-{index}": it.text for index, it in enumerate(report.run.expectations, 1)}
    steady = {f"steady-{index}": f"{it.when}: {it.text}" for index, it in enumerate(report.steady, 1)}
    named = {**expected, **steady}
    for answer in report.answers:
        case = _case(suite, named.get(answer.id, answer.question))
        text = _printable(answer.text)
        if answer.answer == "no":
            case.result = [Failure(text, "DoesNotHold")]
        elif answer.answer == "unknown":
            case.result = [Error(text, "Unknown")]
        elif answer.answer != "yes":
            case.result = [Skipped(text)]
        suite.add_testcase(case)
    if report.run.status != "finished":  # it may have ended before anything could be asked
        case = _case(suite, "Did the run reach its end?")
        case.result = [Error(_printable(report.headline), "Unknown")]
        suite.add_testcase(case)
    return _written(suite, report.duration_s)


def junit_of_error(name: str, message: str) -> str:
    """Of a run that ended before there was anything to report."""
    suite = _suite(name)
    case = _case(suite, "Could it be run?")
    case.result = [Error(_printable(message), "NotRun")]
    suite.add_testcase(case)
    return _written(suite, None)


def _suite(name: str) -> TestSuite:
    return TestSuite(_printable(name))


def _case(suite: TestSuite, name: str) -> TestCase:
    return TestCase(_printable(name), f"testbed.{suite.name}")


def _printable(text: str) -> str:
    """XML has no place for control characters; what a rank printed last may be a reason."""
    return "".join(each if each.isprintable() else " " for each in text)


def _written(suite: TestSuite, took_s: float | None) -> str:
    suite.update_statistics()
    if took_s is not None:
        suite.time = took_s
    whole = JUnitXml("testbed run")
    whole.add_testsuite(suite)
    whole.update_statistics()
    text = whole.tostring()
    return text.decode() if isinstance(text, bytes) else str(text)
