"""A report without a prediction says so, and why, wherever it would have one; it has no figure in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import run_factory

from testbed.cli import tables
from testbed.core.report import markdown, run_page
from testbed.core.report.document import to_json
from testbed.host.files import store

SERVED = "its sites go at their own paces, and what one waits for at the server cannot be timed before the job"


def changed(path: Path, strategy: str) -> Path:
    """Return a run of ``strategy`` at ``path``."""
    run_factory.make_run(path)
    for file in (path / "ranks").glob("rank-*[0-9].jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "job":
                line["strategy"] = {"name": strategy, "options": {}}
                line["steps"] = run_factory.STEPS
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("async-diloco", SERVED),
        ("decoupled", SERVED),
        (
            "torchft-diloco",
            "torchft makes its own process groups and waits for its quorum, which cannot be timed",
        ),
        ("tensor", "its operations were not timed before the first step, and it has no closed form"),
    ],
)
def test_that_and_why_there_is_no_prediction_is_on_every_page(tmp_path: Path, strategy: str, why: str) -> None:
    report = store.build_report(store.RunDirectory(changed(tmp_path / "run", strategy)))
    document = to_json(report)
    assert document["prediction"] is None and str(document["unpredicted"]).startswith(why)
    assert tables.prediction(report).startswith(f"no prediction of a step: {why}")
    for page in (run_page.html(report), markdown.markdown(report)):
        assert f"No prediction of a step: {why}" in page.replace("&#39;", "'")


def test_a_run_that_was_predicted_says_nothing_of_that(tmp_path: Path) -> None:
    report = store.build_report(store.RunDirectory(changed(tmp_path / "run", "diloco")))
    assert report.prediction is not None and not report.unpredicted


def test_a_congestion_control_that_the_kernel_lacks_is_told(tmp_path: Path) -> None:
    path = run_factory.make_run(tmp_path / "run")
    topology = json.loads((path / "topology.json").read_text())
    (path / "topology.json").write_text(json.dumps({**topology, "congestion": "bbr"}))
    certificate = json.loads((path / "certificate.json").read_text())
    certificate["host"] = {**certificate.get("host", {}), "congestion_control": "cubic"}
    (path / "certificate.json").write_text(json.dumps(certificate))
    assert "bbr, which this kernel lacks: cubic instead" in markdown.markdown(
        store.build_report(store.RunDirectory(path))
    )
