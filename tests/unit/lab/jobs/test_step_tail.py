"""The records of one rank as its file grows."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.lab.jobs.reported_steps import StepTail


def test_a_program_s_records_are_handed_over_once_each_when_their_lines_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    tail = StepTail(path)
    assert tail.take() == []
    lines = [json.dumps({"kind": "progress", "t": float(step), "step": step}) for step in (1, 2, 3)]
    job = json.dumps({"kind": "job", "t": 0.0, "attempt": 1})
    path.write_text(f"{job}\n{lines[0]}\n{lines[1][:10]}")
    assert [it["step"] for it in tail.take()] == [1]
    path.write_text(f"{job}\n{lines[0]}\n{lines[1]}\n{lines[2]}\n")
    assert [it["step"] for it in tail.take()] == [2, 3]
    assert (tail.take(), tail.step) == ([], 3)


def test_an_agent_s_records_are_not_kept_for_anybody(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text(json.dumps({"kind": "step", "step": 7}) + "\n")
    tail = StepTail(path)
    assert (tail.take(), tail.step) == ([], 7)
