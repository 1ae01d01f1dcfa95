"""A report without a prediction says so, and why, wherever it would have one; it has no figure in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.reports import document_of, markdown, pages_of, report_of
from builders.run_factory import STEPS, edit

from testbed.cli import reports
from testbed.core.report.document import Report

SERVED = "its sites go at their own paces, and what one waits for at the server cannot be timed before the job"


def report_of_strategy(run: Path, name: str) -> Report:
    job = {"strategy": {"name": name, "options": {}}, "steps": STEPS}
    return report_of(edit(run, "ranks/rank-*[0-9].jsonl", where={"kind": "job"}, **job))


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("async-diloco", SERVED),
        ("decoupled", SERVED),
        (
            "torchft-diloco",
            "torchft makes its own process groups and waits for its quorum, which cannot be timed",
        ),
    ],
)
def test_that_and_why_there_is_no_prediction_is_on_every_page(run: Path, strategy: str, why: str) -> None:
    report = report_of_strategy(run, strategy)
    document = document_of(report)
    assert document["prediction"] is None and document["unpredicted"].startswith(why)
    assert reports.prediction(report).startswith(f"no prediction of a step: {why}")
    for page in pages_of(report):
        assert f"No prediction of a step: {why}" in page.replace("&#39;", "'")


@pytest.mark.parametrize("strategy", ["diloco", "tensor"])
def test_a_run_that_was_predicted_says_nothing_of_that(run: Path, strategy: str) -> None:
    report = report_of_strategy(run, strategy)
    assert report.prediction is not None and not report.unpredicted


def test_a_congestion_control_that_the_kernel_lacks_is_told(run: Path) -> None:
    edit(run, "topology.json", congestion="bbr")
    edit(run, "certificate.json", {"host.congestion_control": "cubic"})
    assert "bbr, which this kernel lacks: cubic instead" in markdown(report_of(run))
