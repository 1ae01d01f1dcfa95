"""Figures of a job, from records that are written by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.keeper.protocol import JobRecord
from testbed.lab import job_status
from testbed.lab.job_output import JobOutput, lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text('{"workload": {"command": "x"}}')
    return tmp_path


def record(run: Path, **more: Any) -> JobRecord:
    made: dict[str, Any] = {"id": "j1", "kind": "train", "what": "x", "run": str(run), "pid": 7, "detached": False}
    made |= {"began_unix_s": 0.0, "began_t": time.monotonic() - 5, "ended_t": None, "state": "running", "why": ""}
    return {**made, "exit_status": None, **more}  # type: ignore[typeddict-item, return-value]


def write(run: Path, rank: int, *records: dict[str, Any], torn: str = "") -> None:
    text = "".join(json.dumps(it) + "\n" for it in records) + torn
    (run / "ranks" / f"rank-{rank}.jsonl").write_text(text)


def steps(count: int, *, ago_s: float, every_s: float, attempt: int = 1, tokens: int = 256) -> list[dict[str, Any]]:
    first = time.monotonic() - ago_s - (count - 1) * every_s
    return [
        {"kind": "step", "step": n + 1, "t_end": first + n * every_s, "tokens": tokens, "train_loss": 5 - n / 100}
        | {"attempt": attempt}
        for n in range(count)
    ]


def test_steps_are_those_of_every_rank_and_tokens_of_all(run: Path) -> None:
    begins = {"kind": "job", "t": 0.0, "steps": 400, "resumed_from": 0, "attempt": 1}
    write(run, 0, begins, *steps(41, ago_s=0.0, every_s=0.1))
    write(run, 1, begins, *steps(40, ago_s=0.1, every_s=0.1), torn='{"kind": "step", "st')
    found = job_status.of(record(run))
    assert (found.step, found.steps) == (40, 400)
    assert found.train_loss == pytest.approx(4.60)
    assert found.tokens_per_s == pytest.approx(2 * 256 / 0.1, rel=0.1)
    assert found.elapsed_s == pytest.approx(5, abs=1) and not found.ended


def test_a_job_that_stands_still_becomes_slower(run: Path) -> None:
    write(run, 0, *steps(11, ago_s=0.0, every_s=0.1))
    going = job_status.of(record(run)).tokens_per_s
    write(run, 0, *steps(11, ago_s=9.0, every_s=0.1))
    standing = job_status.of(record(run)).tokens_per_s
    assert going == pytest.approx(2560, rel=0.15) and standing == pytest.approx(2560 / 9.9, rel=0.1)


def test_a_restart_goes_back_to_its_checkpoint(run: Path) -> None:
    again = {"kind": "job", "t": 0.0, "steps": 400, "resumed_from": 50, "attempt": 2}
    write(run, 0, *steps(80, ago_s=3.0, every_s=0.1), again)
    write(run, 1, *steps(80, ago_s=3.0, every_s=0.1))
    found = job_status.of(record(run))
    assert found.step == 50 and found.tokens_per_s is None


def test_tokens_of_a_program_are_those_of_the_whole_job(run: Path) -> None:
    for rank in range(4):
        own = [{**it, "kind": "progress", "t": it["t_end"]} for it in steps(21, ago_s=0.0, every_s=0.1, tokens=1000)]
        for it in own:
            del it["t_end"]
        write(run, rank, {"kind": "job", "t": 0.0, "attempt": 1}, *own)
    found = job_status.of(record(run, kind="launch"))
    assert found.step == 21 and found.steps is None and found.tokens_per_s == pytest.approx(10_000, rel=0.1)


def test_a_program_that_reports_nothing_has_no_figures(run: Path) -> None:
    (run / "ranks" / "rank-0.jsonl").write_text("")
    os.mkfifo(run / "ranks" / "rank-1.jsonl")  # it can be put there by a program; it must not block
    found = job_status.of(record(run, kind="launch"))
    assert (found.step, found.tokens_per_s, found.train_loss) == (None, None, None)


def test_a_job_that_has_ended_has_its_steps_and_no_rate(run: Path) -> None:
    write(run, 0, *steps(11, ago_s=0.0, every_s=0.1))
    began_t = time.monotonic() - 100
    found = job_status.of(record(run, state="stopped", began_t=began_t, ended_t=began_t + 7, exit_status=130))
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
    assert list(lines(run, 2, lambda: True, follow=True)) == ["two", "torn"]
