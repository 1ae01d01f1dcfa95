"""The report of a run on a host that stalls: unknown at most, and only where the stalls matter."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import run_factory

from testbed.core.report.answers import EXIT_CODES
from testbed.core.report.document import Report, build, to_json
from testbed.core.report.markdown import markdown
from testbed.core.report.run_page import html
from testbed.host.files.store import RunDirectory

SCHEMA = json.loads((resources.files("testbed.core.report") / "report.schema.json").read_text(encoding="utf-8"))


def report_of(path: Path) -> Report:
    return build(RunDirectory(path).read())


def answers(report: Report) -> dict[str, str]:
    return {answer.id: answer.answer for answer in report.answers}


def stall(path: Path, *stalls: tuple[float, float]) -> Path:
    """Log stalls, (seconds since the job began, length), alternately on two cores."""
    lines = [
        {"core": index % 2, "t": run_factory.BEGAN_T + began_s, "s": length_s}
        for index, (began_s, length_s) in enumerate(stalls)
    ]
    (path / "stalls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def late(path: Path, share: float = 0.03) -> Path:
    """Let a share of each second's packets be 2 to 5 ms late."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "fiber":
            counts = line["lateness"]["counts"]
            moved = int(counts[3] * share / run_factory.SHARES[3])
            counts[3] -= moved
            counts[11] += moved
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


EACH_SECOND = tuple((second + 0.5, 0.02) for second in range(-5, 60))


def test_late_packets_that_stalls_explain_prevent_no_pass(tmp_path):
    assert answers(report_of(late(run_factory.make_run(tmp_path / "quiet"))))["fidelity"] == "no"
    report = report_of(stall(late(run_factory.make_run(tmp_path / "noisy")), *EACH_SECOND))
    assert answers(report)["fidelity"] == "noisy host"
    assert report.verdict == "pass"
    for page in (html(report), markdown(report)):
        assert "stalls explain the late packets" in page
    jsonschema.validate(json.loads(json.dumps(to_json(report), allow_nan=False)), SCHEMA)


def test_an_empty_log_explains_nothing(tmp_path):
    report = report_of(stall(late(run_factory.make_run(tmp_path / "r"))))
    assert (answers(report)["fidelity"], report.verdict) == ("no", "fail")


def test_netem_is_not_measurable_on_a_noisy_host_too(tmp_path):
    report = report_of(stall(run_factory.make_run(tmp_path / "r", emulator="netem"), *EACH_SECOND))
    assert (answers(report)["fidelity"], report.verdict) == ("not measurable", "pass")


@pytest.mark.parametrize("uncertified", [False, True])
def test_fidelity_overrules_no_unknown(tmp_path, uncertified):
    """A job whose holder was killed: it is unknown how it would have ended, whatever the fibers did."""
    run = late(run_factory.make_run(tmp_path / "r", status="interrupted", steps=120, uncertified=uncertified))
    report = report_of(run)
    assert answers(report)["fidelity"] == "no"
    assert report.verdict == "unknown"
    assert EXIT_CODES[report.verdict] == 3
    assert "interrupted" in report.headline


def test_a_failure_stays_one_beside_noise(tmp_path):
    run = stall(late(run_factory.make_run(tmp_path / "r", status="failed", steps=260)), *EACH_SECOND)
    assert report_of(run).verdict == "fail"
