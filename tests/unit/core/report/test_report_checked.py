"""The checkers in the three forms of a report, and as metrics; the run is made up, with records that are right."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from builders.run_factory import NODES, make_run
from oracles import report_schema

from testbed.core.report.document import Report, to_json
from testbed.core.report.measured import measured
from testbed.host.files.store import RunDirectory, write_report

STEPS = 400
CHECKED_STEPS = range(1, STEPS + 1)


def write_checks(run: Path, rank: int, **wrong: Any) -> None:
    """``wrong`` replaces fields of this rank's record of step 7."""
    world = len(NODES)
    begin = {"rank": rank, "world_size": world, "step": 0, "hang_s": 15.0, "parameters": "p0", "optimizer_steps": 0}
    lines: list[dict[str, Any]] = [{"kind": "begin", "attempt": 1, "t": 1007.5, **begin}]
    for step in CHECKED_STEPS:
        tag = {"attempt": 1, "step": step}
        collective = {"elements": 4, "began_t": 1000.0 + step, "ended_t": 1000.2 + step, "crc32": f"{step:08x}"}
        parameters = {"optimizer_steps": step, "trained_on": f"p{step - 1}", "became": f"p{step}"}
        done = {"t": 1001.0 + step, "collectives": [collective], **parameters}
        lines.append({"kind": "step", **tag, **done, **(wrong if step == 7 else {})})
        inputs, outputs = struct.pack("<f", 1.0 + rank).hex(), struct.pack("<f", world * (world + 1) / 2).hex()
        lines.append({"kind": "sample", **tag, "sequence": 0, "at": [3], "inputs": inputs, "outputs": outputs})
    (run / "ranks" / f"rank-{rank}.checks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def reported(run: Path) -> Report:
    report = write_report(RunDirectory.open(run))
    report_schema.validator("report.schema.json").validate(to_json(report))
    return report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = make_run(tmp_path / "run")
    for rank in range(len(NODES)):
        write_checks(path, rank)
    return path


def answer(report: Report) -> tuple[str, str]:
    return next((each.answer, each.text) for each in report.answers if each.id == "checked")


def test_a_right_run_passes_and_says_what_was_looked_at(run: Path) -> None:
    report = reported(run)
    assert (report.verdict, answer(report)[0]) == ("pass", "yes")
    assert "400 collectives compared over 4 ranks; 400 elements of 400 of them recomputed" in answer(report)[1]
    values = measured(report)
    assert [values[name] for name in ("wrong_sums", "hangs", "stale_parameters", "lost_updates")] == [0, 0, 0, 0]
    assert report.malformed == {}


def test_a_wrong_sum_fails_the_run_and_is_named_in_every_form(run: Path) -> None:
    collective = {"elements": 4, "began_t": 1007.0, "ended_t": 1007.2, "crc32": "bad"}
    write_checks(run, 2, collectives=[collective])
    report = reported(run)
    assert (report.verdict, report.headline) == ("fail", "It ran, but the training is incorrect.")
    said = "step 7, collective 0, the result on rank 2 differs from the result on ranks 0, 1, 3"
    assert answer(report) == ("no", f"1 wrong sum: {said}.")
    assert measured(report)["wrong_sums"] == 1
    for form in ("index.html", "report.md", "report.json"):
        assert "the result on rank 2 differs from the result on ranks 0, 1, 3" in (run / form).read_text()


def test_a_hang_is_told_and_counted_but_makes_nothing_wrong(run: Path) -> None:
    for rank in range(len(NODES)):
        collective = {"elements": 4, "began_t": 1007.0, "ended_t": 1027.0, "crc32": f"{7:08x}"}
        write_checks(run, rank, collectives=[collective])
    report = reported(run)
    assert measured(report)["hangs"] == 1
    assert (report.verdict, answer(report)[0]) == ("pass", "yes")
    assert "hang" not in answer(report)[1], "a yes does not contain what was found against it"
    assert "hung" not in answer(report)[1]
    for form in ("index.html", "report.md", "report.json"):
        assert "all ranks were in it for 20.0 s" in (run / form).read_text()


def test_without_the_records_of_one_rank_there_is_no_pass(run: Path) -> None:
    (run / "ranks" / "rank-3.checks.jsonl").unlink()
    report = reported(run)
    assert (report.verdict, answer(report)) == (
        "unknown",
        ("unknown", "Could not be determined: rank 3 has no record of step 1 in attempt 1."),
    )
    assert measured(report)["wrong_sums"] is None


def test_a_job_that_records_nothing_is_not_asked(tmp_path: Path) -> None:
    report = reported(make_run(tmp_path / "run"))
    assert not any(each.id == "checked" for each in report.answers)
    assert measured(report)["wrong_sums"] is None
