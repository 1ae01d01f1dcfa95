"""A validation as JUnit XML: a suite for each library, a case for each operation, size and fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from junitparser import Error, Failure, Skipped, TestCase, TestSuite

from testbed.core.report import formats
from testbed.core.report.junit import printable, suite_of, written
from testbed.core.report.validation.validation_matrix import STATES, headline, too_fast
from testbed.core.report.validation.validation_tables import summary
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.result import CaseResult, Cell, LibraryResult, Validation

__all__ = ["junit"]

Told = Error | Failure | Skipped | None

_PASSES = frozenset({"right", "right after healing", "error within its bound"})


def junit(validation: Validation, comparison: BaselineComparison | None = None) -> str:
    """Return the whole file. What does not hold is a failure; what is unknown an error, never a pass.

    What a library does not support is skipped, and so is a library that is not installed; if all of them are, that is
    an error. The verdict is a case too, so that no reason against a library is missing; with a ``comparison``, each
    regression is one.
    """
    suites = [_suite(validation, each, comparison) for each in validation.libraries]
    whole = suite_of("validation")
    if validation.interrupted or all(each.verdict == "skipped" for each in validation.libraries):
        why = "it was interrupted" if validation.interrupted else "no library was validated"
        _add(whole, "Was all of it run?", Error(why, "Unknown"))
    if not validation.certified:
        _add(whole, "Are the fibers certified?", Error("they were not measured to be within tolerance", "Unknown"))
    if len(whole):
        suites.append(whole)
    return written("testbed validate", suites, validation.took_s)


def _suite(validation: Validation, library: LibraryResult, comparison: BaselineComparison | None) -> TestSuite:
    suite = suite_of(library.name)
    if library.verdict == "skipped":
        _add(suite, "verdict", Skipped(printable("; ".join(library.why))))
        return suite
    for name, cases in _by_operation(library.cases):
        _add(suite, f"correctness: {name}", _of_cases(cases))
    for speed in library.speeds:
        why = f"bound ÷ median is {speed.efficiency:.3g}: traffic bypassed the fiber, or the certificate is wrong"
        told = Failure(why, "FasterThanLight") if too_fast(speed) else None
        _add(suite, f"speed: {speed.operation}, {formats.size(speed.size)}", told, speed.median_s)
    for cell in library.cells:
        _add(suite, f"fault: {cell.fault}", _of_cell(cell))
    for change in comparison.regressions if comparison else ():
        if change.library == library.name:
            told = Failure(printable(f"{change.before} in the baseline, {change.after} now"), "Regression")
            _add(suite, f"baseline: {change.what}", told)
    _add(suite, "verdict", _of_verdict(validation, library))
    suite.time = library.took_s
    return suite


def _add(suite: TestSuite, name: str, told: Told, took_s: float | None = None) -> None:
    case = TestCase(printable(name), f"testbed.validate.{suite.name}", took_s)
    if told is not None:
        case.result = [told]
    suite.add_testcase(case)


def _by_operation(cases: Sequence[CaseResult]) -> Iterator[tuple[str, list[CaseResult]]]:
    by: dict[str, list[CaseResult]] = {}
    for each in cases:
        by.setdefault(f"{each.operation} {each.reduction}".strip() + f", {each.type}", []).append(each)
    yield from by.items()


def _of_cases(cases: Sequence[CaseResult]) -> Told:
    order = list(STATES)
    worst = min(cases, key=lambda each: order.index(each.state) if each.state != "right" else len(order))
    if worst.state == "right":
        return None
    count = sum(each.state == worst.state for each in cases)
    where = f"{formats.count(worst.count)} elements, group {worst.group}"
    said = printable(f"{count} of {len(cases)} {worst.state}; {where}: {worst.detail}".removesuffix(": "))
    if worst.state == "unsupported":
        # Right in everything that the library supports is right.
        return None if any(each.state == "right" for each in cases) else Skipped(said)
    return Error(said, "Unknown") if worst.state == "not run" else Failure(said, _type(worst.state))


def _of_cell(cell: Cell) -> Told:
    if cell.outcome in _PASSES:
        return None
    said = printable(": ".join(part for part in (cell.outcome, summary(cell)) if part))
    if cell.outcome == "unsupported":
        return Skipped(said)
    if cell.outcome in ("fault not exercised", "not run"):
        return Error(said, "Unknown")
    return Failure(said, _type(cell.outcome))


def _of_verdict(validation: Validation, library: LibraryResult) -> Told:
    if library.verdict == "holds":
        return None
    said = printable("; ".join(library.why) or headline(validation))
    return Error(said, "Unknown") if library.verdict == "unknown" else Failure(said, "DoesNotHold")


def _type(words_: str) -> str:
    return "".join(word.capitalize() for word in words_.split())
