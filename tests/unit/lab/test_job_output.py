"""The output of a job as another process shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.lab.job_output import JobOutput

MEMBERS = [{"rank": rank, "node": f"east-{rank}"} for rank in range(2)]


@pytest.mark.parametrize(
    ("workload", "labels"),
    [
        ({"command": "torchrun x.py", "start": "per-node", "members": MEMBERS}, ["[east-0]", "[east-1]"]),
        ({"command": "python x.py", "members": MEMBERS}, ["[rank 0]", "[rank 1]"]),
        ({"command": "python x.py"}, ["[rank 0]", "[rank 1]"]),
        (None, ["[rank 0]", "[rank 1]"]),
    ],
    ids=["per node", "per rank", "of an older version", "no metadata"],
)
def test_each_line_has_the_label_that_launch_shows(tmp_path: Path, workload: object, labels: list[str]) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        (tmp_path / "ranks" / f"rank-{rank}.log").write_text("line\n")
    if workload is not None:
        (tmp_path / "run.json").write_text(json.dumps({"workload": workload}))
    assert list(JobOutput(tmp_path).read()) == [f"{it} line" for it in labels]
    assert list(JobOutput(tmp_path, [1]).read()) == ["line"]
