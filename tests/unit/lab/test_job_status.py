"""Figures of a job, from records that are written by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from builders.tables import table

from testbed.lab import job_status
from testbed.lab.job_output import JobOutput, lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text('{"workload": {"command": "x"}}')
    return tmp_path


def status(run: Path, **fields: Any) -> job_status.JobStatus:
    """Return the status of a job that began 5 s ago, with these fields of its record."""
    record: dict[str, Any] = {"id": "j1", "kind": "train", "what": "x", "run": str(run), "pid": 7, "detached": False}
    record |= {"began_unix_s": 0.0, "began_t": time.monotonic() - 5, "ended_t": None, "state": "running", "why": ""}
    return job_status.of({**record, "exit_status": None, **fields})  # type: ignore[typeddict-item]


def write(run: Path, rank: int, *records: dict[str, Any], torn: str = "") -> None:
    text = "".join(json.dumps(record) + "\n" for record in records) + torn
    (run / "ranks" / f"rank-{rank}.jsonl").write_text(text)


def job(**fields: Any) -> dict[str, Any]:
    return {"kind": "job", "t": 0.0, "attempt": 1, **fields}


def steps(count: int, ago_s: float = 0.0, tokens: int = 256, kind: str = "step", t: str = "t_end") -> list[Any]:
    """Return the records of steps of 0.1 s, of which the last ended ``ago_s`` seconds ago."""
    first = time.monotonic() - ago_s - (count - 1) * 0.1
    return [
        {"kind": kind, "step": n + 1, t: first + n * 0.1, "tokens": tokens, "train_loss": 5 - n / 100, "attempt": 1}
        for n in range(count)
    ]


def test_steps_are_those_of_every_rank_and_tokens_of_all(run: Path) -> None:
    begin = job(steps=400, resumed_from=0)
    write(run, 0, begin, *steps(41))
    write(run, 1, begin, *steps(40, ago_s=0.1), torn='{"kind": "step", "st')
    found = status(run)
    assert (found.step, found.steps) == (40, 400)
    assert found.train_loss == pytest.approx(4.60)
    assert found.tokens_per_s == pytest.approx(2 * 256 / 0.1, rel=0.1)
    assert found.elapsed_s == pytest.approx(5, abs=1) and not found.ended


@table(
    "ago_s, tokens_per_s, rel",
    {"of a job that runs": (0.0, 2560, 0.15), "of a job that stalls": (9.0, 2560 / 9.9, 0.1)},
)
def test_tokens_per_s(run: Path, ago_s: float, tokens_per_s: float, rel: float) -> None:
    write(run, 0, *steps(11, ago_s))
    assert status(run).tokens_per_s == pytest.approx(tokens_per_s, rel=rel)


def test_restart_goes_back_to_its_checkpoint(run: Path) -> None:
    write(run, 0, *steps(80, 3.0), job(steps=400, resumed_from=50, attempt=2))
    write(run, 1, *steps(80, 3.0))
    found = status(run)
    assert found.step == 50 and found.tokens_per_s is None


def test_tokens_of_a_program_are_those_of_the_whole_job(run: Path) -> None:
    for rank in range(4):
        write(run, rank, job(), *steps(21, tokens=1000, kind="progress", t="t"))
    found = status(run, kind="launch")
    assert found.step == 21 and found.steps is None and found.tokens_per_s == pytest.approx(10_000, rel=0.1)


def test_program_that_reports_nothing_has_no_figures(run: Path) -> None:
    (run / "ranks" / "rank-0.jsonl").write_text("")
    os.mkfifo(run / "ranks" / "rank-1.jsonl")  # it can be put there by a program; it must not block
    found = status(run, kind="launch")
    assert (found.step, found.tokens_per_s, found.train_loss) == (None, None, None)


def test_job_that_has_ended_has_its_steps_and_no_rate(run: Path) -> None:
    write(run, 0, *steps(11))
    began_t = time.monotonic() - 100
    found = status(run, state="stopped", began_t=began_t, ended_t=began_t + 7, exit_status=130)
    assert found.ended and found.step == 11 and found.tokens_per_s is None
    assert found.elapsed_s == pytest.approx(7)


def test_output_is_that_of_all_ranks_each_line_once(run: Path) -> None:
    output = JobOutput(run)
    (run / "ranks" / "rank-10.log").write_text("ten\n")
    (run / "ranks" / "rank-2.log").write_text("two\nto")
    (run / "ranks" / "rank-2.jsonl").write_text("{}\n")
    assert list(output.read()) == ["[rank 2] two", "[rank 10] ten"]
    with (run / "ranks" / "rank-2.log").open("a") as log:
        log.write("rn\n")
    assert list(output.read()) == ["[rank 2] torn"]
    assert list(lines(run, [2], lambda: True, follow=True)) == ["two", "torn"]
