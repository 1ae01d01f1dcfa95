"""Reports of run directories: built, in every form, and looked up by question."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from oracles import report_schema

from testbed.core.report.answers import Answer
from testbed.core.report.document import Report, to_json
from testbed.core.report.figures import figures
from testbed.core.report.markdown import markdown
from testbed.core.report.plotly_figure import Figure
from testbed.core.report.run_page import html
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


def figure(report: Report, id: str) -> Figure:
    (drawn,) = [figure for figure in figures(report) if figure.id == id]
    return drawn
