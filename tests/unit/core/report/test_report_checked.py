"""The checkers in the three forms of a report, and as metrics; the run is made up, with records that are right."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from builders.reports import answer, answers, check
from builders.run_factory import NODES, write_lines

from testbed.core.report.document import Report
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
    write_lines(run / "ranks" / f"rank-{rank}.checks.jsonl", lines)


def collective(ended_t: float, crc32: str) -> list[dict[str, Any]]:
    return [{"elements": 4, "began_t": 1007.0, "ended_t": ended_t, "crc32": crc32}]


def reported(run: Path) -> Report:
    report = write_report(RunDirectory.open(run))
    check(report)
    return report


@pytest.fixture
def checked(run: Path) -> Path:
    for rank in range(len(NODES)):
        write_checks(run, rank)
    return run


def forms_of(run: Path) -> list[str]:
    return [(run / form).read_text() for form in ("index.html", "report.md", "report.json")]


def test_a_right_run_passes_and_says_what_was_looked_at(checked: Path) -> None:
    report = reported(checked)
    compared = "400 collectives compared over 4 ranks; 400 elements of 400 of them recomputed"
    check(report, "pass", checked=("yes", compared))
    values = measured(report)
    assert [values[name] for name in ("wrong_sums", "hangs", "stale_parameters", "lost_updates")] == [0, 0, 0, 0]
    assert report.malformed == {}


def test_a_wrong_sum_fails_the_run_and_is_named_in_every_form(checked: Path) -> None:
    write_checks(checked, 2, collectives=collective(1007.2, "bad"))
    report = reported(checked)
    assert (report.verdict, report.headline) == ("fail", "It ran, but the training is incorrect.")
    text = "the result on rank 2 differs from the result on ranks 0, 1, 3"
    assert answers(report)["checked"] == "no"
    assert answer(report, "checked").text == f"1 wrong sum: step 7, collective 0, {text}."
    assert measured(report)["wrong_sums"] == 1
    assert all(text in form for form in forms_of(checked))


def test_a_hang_is_told_and_counted_but_makes_nothing_wrong(checked: Path) -> None:
    for rank in range(len(NODES)):
        write_checks(checked, rank, collectives=collective(1027.0, f"{7:08x}"))
    report = reported(checked)
    assert measured(report)["hangs"] == 1
    assert (report.verdict, answers(report)["checked"]) == ("pass", "yes")
    text = answer(report, "checked").text
    assert "hang" not in text and "hung" not in text, "a yes does not contain what was found against it"
    assert all("all ranks were in it for 20.0 s" in form for form in forms_of(checked))


def test_without_the_records_of_one_rank_there_is_no_pass(checked: Path) -> None:
    (checked / "ranks" / "rank-3.checks.jsonl").unlink()
    report = reported(checked)
    assert (report.verdict, answers(report)["checked"]) == ("unknown", "unknown")
    text = answer(report, "checked").text
    assert text == "Could not be determined: rank 3 has no record of step 1 in attempt 1."
    assert measured(report)["wrong_sums"] is None


def test_a_job_that_records_nothing_is_not_asked(run: Path) -> None:
    report = reported(run)
    assert "checked" not in answers(report)
    assert measured(report)["wrong_sums"] is None
