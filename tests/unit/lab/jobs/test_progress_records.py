"""The records of a launched program's steps, as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.core.workload.members import Member
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import progress_output
from testbed.lab.jobs.progress_output import ProgressRecords

MEMBER = Member(3, "west-1", "west")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def lines(run: RunDirectory) -> list[dict[str, object]]:
    path = run.ranks / "rank-3.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_file_begins_with_the_job_and_with_the_first_step(run: RunDirectory) -> None:
    records = ProgressRecords(run, MEMBER, 4, 10)
    records.began_t = 5.0
    records.take([])
    records.take([(6.0, {"train_loss": 3.0})])
    assert lines(run) == [], "no step yet"
    records.take([(7.0, {"step": 1.0}), (8.0, {"step": 2.0, "lr": 0.5})])
    records.close()
    job, first, second = lines(run)
    assert job == {
        "kind": "job",
        "t": 5.0,
        "rank": 3,
        "world_size": 4,
        "node": "west-1",
        "site": "west",
        "attempt": 1,
    }
    assert first == {"kind": "progress", "t": 7.0, "step": 1, "tokens": None, "train_loss": 3.0}
    assert second == {"kind": "progress", "t": 8.0, "step": 2, "tokens": 10, "train_loss": None, "lr": 0.5}


def test_after_the_end_nothing_is_written(run: RunDirectory) -> None:
    records = ProgressRecords(run, MEMBER, 4, None)
    records.take([(1.0, {"step": 1.0})])
    records.close()
    records.take([(2.0, {"step": 2.0})])
    assert len(lines(run)) == 2


def test_a_disk_that_fails_is_told_once_and_never_raised(run: RunDirectory) -> None:
    (run.ranks / "rank-3.jsonl").symlink_to("/etc/passwd")
    records = ProgressRecords(run, MEMBER, 4, None)
    for step in (1.0, 2.0):
        records.take([(1.0, {"step": step})])
    assert "rank 3 cannot be recorded" in records.error


def test_a_program_cannot_fill_the_disk_with_steps(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_output, "_MOST_LINES", 2)
    records = ProgressRecords(run, MEMBER, 4, None)
    for step in range(5):
        records.take([(float(step), {"step": float(step)})])
    assert len(lines(run)) == 3
    assert "more than 2 lines" in records.error
