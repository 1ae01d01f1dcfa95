"""What a comparison will run is known before a lab is brought up: ways, seeds, faults, and every mistake."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from builders.tables import table

from testbed.errors import FileMistakes, UserError
from testbed.lab.run.compare import plan_runs

NOTHING: Any = {"compute": None, "model": None, "noise": None}


def plan(ways: str, *, what: str = "metro-40km", seeds: int = 1, inject: tuple[str, ...] = (), steps: int = 100):
    return plan_runs(what, tuple(ways.split(";")), seeds, inject, 10, {"steps": steps, **NOTHING})


def test_runs_of_one_seed_follow_each_other_and_differ_in_the_way_alone() -> None:
    found = plan("ddp;diloco:every=20", seeds=2, inject=("cut north for=3s", "impair south after=50% for=2s loss=1%"))
    assert [(run.way, run.seed) for run in found] == [
        ("ddp", 0), ("diloco:every=20", 0), ("ddp", 1), ("diloco:every=20", 1),
    ]  # fmt: skip
    workloads = [run.prepared.workload for run in found]
    assert [workload.seed for workload in workloads] == [0, 0, 1, 1]
    assert [workload.strategy for workload in workloads[:2]] == ["ddp", "diloco"]
    assert workloads[1].options == {"every": 20}
    same = attrgetter("steps", "batch", "context", "layers", "learning_rate", "evaluate_every")
    assert {same(workload) for workload in workloads} == {(100, 4, 64, 4, 1e-3, 10)}
    cut, impaired = found[0].prepared.planned
    assert all(run.prepared.planned == (cut, impaired) for run in found)
    assert (cut.inject, cut.target, cut.after_step, cut.for_s) == ("cut", "north", 40, 3.0)
    assert (impaired.inject, impaired.after_step, impaired.parameters) == ("impair", 50, {"loss": "1%"})


def test_mistakes_of_all_runs_are_told_at_once() -> None:
    with pytest.raises(FileMistakes) as told:
        plan("ddp:every=5;diloco:every=0")
    assert "every" in str(told.value) and len(told.value.findings) == 2
    with pytest.raises(FileMistakes, match="nroth"):
        plan("ddp;diloco", inject=("cut nroth",))


@table(
    "ways, options, message",
    {
        "one strategy": ("ddp", {}, "at least two strategies"),
        "a strategy twice": ("ddp;ddp", {}, "named twice"),
        "a fault without a target": ("ddp;diloco", {"inject": ("cut",)}, "FAULT TARGET"),
        "a fault with a duration only": ("ddp;diloco", {"inject": ("cut for=3s",)}, "FAULT TARGET"),
        "too many runs": ("ddp;diloco", {"seeds": 101}, "1 to 200 runs"),
    },
)
def test_plan_runs_refuses(ways: str, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(ways, **options)


def test_faults_that_are_drawn_are_the_first_runs_also_in_the_files_that_repeat_each(tmp_path: Path) -> None:
    file = tmp_path / "drawn.yaml"
    file.write_text(
        "topology: metro-40km\nworkload: {steps: 100}\nrandom: {from: 5s, to: 60s}\n"
        "compress: {time: 1 year = 1s, repair: 12 h = 1s}\n"
    )
    found = plan("ddp;diloco", what=str(file), seeds=2)
    first = found[0].prepared
    assert first.planned
    assert all(run.prepared.planned == first.planned for run in found)
    schedules = {run.prepared.again.partition("schedule:")[2] for run in found}
    assert len(schedules) == 1 and schedules != {""}
