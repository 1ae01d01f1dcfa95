"""Reports of run directories: built, in every form, and looked up by question."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oracles import report_schema

from testbed.core.report.answers import Answer
from testbed.core.report.document import Report, to_json
from testbed.core.report.figures.plotly_figure import Figure
from testbed.core.report.figures.run_figures import figures
from testbed.core.report.markdown import markdown
from testbed.core.report.run_page import html
from testbed.core.report.sections.faults_section import Fault
from testbed.host.files.store import RunDirectory, build_report

SCHEMA = report_schema.validator("report.schema.json")


def report_of(run: Path) -> Report:
    return build_report(RunDirectory(run))


def document_of(report: Report) -> dict[str, Any]:
    """Return report.json as read by a program, after validation by its schema. It has no NaN and no infinity."""
    document: dict[str, Any] = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    return document


def pages_of(report: Report) -> tuple[str, str]:
    """Return the HTML page and the Markdown."""
    return html(report), markdown(report)


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def answer(report: Report, question: str) -> Answer:
    (answered,) = [answer for answer in report.answers if answer.id == question]
    return answered


def answers(report: Report) -> dict[str, str]:
    return {answer.id: answer.answer for answer in report.answers}


def check(
    report: Report,
    verdict: str = "",
    headline: str = "",
    *,
    shown: Sequence[str] = (),
    hidden: Sequence[str] = (),
    document: Mapping[str, Any] | None = None,
    **questions: str | tuple[str, ...],
) -> None:
    """Check parts of a report, and that report.json is valid by its schema.

    Args:
        report: the report.
        verdict: its verdict.
        headline: a part of the headline.
        shown: parts of the page, and of Markdown.
        hidden: what neither of the two contains.
        document: values in report.json; a mapping stands for some keys of an object.
        questions: by question, the answer, or the answer followed by parts of its text.
    """
    assert not verdict or report.verdict == verdict, f"the verdict is {report.verdict}"
    assert headline in report.headline, report.headline
    for question, expected in questions.items():
        answered, *parts = (expected,) if isinstance(expected, str) else expected
        assert answer(report, question).answer == answered, answer(report, question)
        assert [part for part in parts if part not in answer(report, question).text] == [], answer(report, question)
    for page in pages_of(report):
        assert [part for part in shown if part not in page] == []
        assert [part for part in hidden if part in page] == []
    _contains(document_of(report), document or {})


def _contains(value: Any, expected: Any) -> None:
    if not isinstance(expected, Mapping):
        assert value == expected
        return
    for key in expected:
        _contains(value[key], expected[key])


def figure(report: Report, id: str) -> Figure:
    (drawn,) = [figure for figure in figures(report) if figure.id == id]
    return drawn


def fault(type: str = "cut", target: str = "north", **fields: Any) -> Fault:
    """Return a fault of one link, from 10 s to 15 s; nothing is known of its effect."""
    unknown = ("carrier_s", "longest_gap_s", "back_s", "back_after_end_s", "recovered")
    times = {"began_s": 10.0, "ended_s": 15.0, **dict.fromkeys(unknown)}
    return Fault(**{"fault": "f1", "type": type, "target": target, "links": (target,), **times, **fields})
