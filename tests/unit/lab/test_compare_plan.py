"""What a comparison will run is known before a lab is brought up: ways, seeds, faults, and every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import FileMistakes, UserError
from testbed.lab.run.compare import _plan

NOTHING = {"compute": None, "model": None, "noise": None}


def plan(ways: str, *, what: str = "metro-40km", seeds: int = 1, inject: tuple[str, ...] = (), steps: int = 100):
    return _plan(what, tuple(ways.split(";")), seeds, inject, 10, None, steps, None, None, NOTHING)


def test_runs_of_one_seed_follow_each_other_and_differ_in_the_way_alone() -> None:
    found = plan("ddp;diloco:every=20", seeds=2, inject=("cut north for=3s", "impair south after=50% for=2s loss=1%"))
    assert [(it.way, it.seed) for it in found] == [
        ("ddp", 0), ("diloco:every=20", 0), ("ddp", 1), ("diloco:every=20", 1),
    ]  # fmt: skip
    workloads = [it.prepared.workload for it in found]
    assert [it.seed for it in workloads] == [0, 0, 1, 1]
    assert [it.strategy for it in workloads[:2]] == ["ddp", "diloco"]
    assert workloads[1].options == {"every": 20}
    same = {(it.steps, it.batch, it.context, it.layers, it.learning_rate, it.evaluate_every) for it in workloads}
    assert same == {(100, 4, 64, 4, 1e-3, 10)}
    cut, impaired = found[0].prepared.planned
    assert all(it.prepared.planned == (cut, impaired) for it in found)
    assert (cut.inject, cut.target, cut.after_step, cut.for_s) == ("cut", "north", 40, 3.0)
    assert (impaired.inject, impaired.after_step, impaired.parameters) == ("impair", 50, {"loss": "1%"})


def test_mistakes_of_all_runs_are_told_at_once() -> None:
    with pytest.raises(FileMistakes) as told:
        plan("ddp:every=5;diloco:every=0")
    assert "every" in str(told.value) and len(told.value.findings) == 2
    with pytest.raises(FileMistakes, match="nroth"):
        plan("ddp;diloco", inject=("cut nroth",))


@pytest.mark.parametrize(
    ("ways", "inject", "message"),
    [
        ("ddp", (), "at least two strategies"),
        ("ddp;ddp", (), "named twice"),
        ("ddp;diloco", ("cut",), "FAULT TARGET"),
        ("ddp;diloco", ("cut for=3s",), "FAULT TARGET"),
    ],
)
def test_words_that_are_no_comparison_are_refused(ways: str, inject: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(ways, inject=inject)
    with pytest.raises(UserError, match="1 to 200 runs"):
        plan("ddp;diloco", seeds=101)


def test_faults_that_are_drawn_are_the_first_runs_also_in_the_files_that_repeat_each(tmp_path: Path) -> None:
    file = tmp_path / "drawn.yaml"
    file.write_text(
        "topology: metro-40km\nworkload: {steps: 100}\nrandom: {from: 5s, to: 60s}\n"
        "compress: {time: 1 year = 1s, repair: 12 h = 1s}\n"
    )
    found = plan("ddp;diloco", what=str(file), seeds=2)
    first = found[0].prepared
    assert first.planned
    assert all(it.prepared.planned == first.planned for it in found)
    schedules = {it.prepared.again.partition("schedule:")[2] for it in found}
    assert len(schedules) == 1 and schedules != {""}
