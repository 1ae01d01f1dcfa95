"""Steps of a running program by its records, and the limits to them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.core.workload.members import Member
from testbed.core.workload.workload import ProgramWorkload
from testbed.lab.jobs import reported_steps
from testbed.lab.jobs.reported_steps import Limits, ReportedSteps

MEMBERS = [Member(rank, f"east-{rank}", "east") for rank in range(2)]


class Told:
    def __init__(self) -> None:
        self.step = 0
        self.last: Mapping[str, Any] = {}


def report(folder: Path, rank: int, step: int, t: float) -> None:
    line = {"kind": "progress", "t": t, "step": step, "tokens": None if step == 1 else 20, "train_loss": None}
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_a_step_counts_when_every_rank_that_reports_has_reported_it(tmp_path: Path) -> None:
    steps = ReportedSteps(tmp_path, MEMBERS)
    assert (steps.step, steps.last, steps.first_t, steps.tokens_per_step) == (0, {}, None, None)
    for rank, step, t in ((0, 1, 5.0), (1, 1, 6.0), (0, 3, 7.0), (1, 3, 8.0), (0, 5, 9.0)):
        report(tmp_path, rank, step, t)
    assert (steps.step, steps.last["step"]) == (3, 5)
    report(tmp_path, 1, 5, 10.0)
    assert (steps.step, steps.tokens_per_step) == (5, 10.0)


def test_no_limit_is_ever_reached_where_none_is_set() -> None:
    limits = Limits(ProgramWorkload(("true",)), Told())
    assert not limits.reached(time.monotonic() - 1e9) and not limits.exceeded


def test_the_time_that_it_has_is_an_end_in_order_and_comes_first() -> None:
    limits = Limits(ProgramWorkload(("true",), for_s=10.0, timeout_s=10.0), Told())
    assert not limits.reached(time.monotonic())
    assert limits.reached(time.monotonic() - 10.0)
    assert limits.in_order and not limits.exceeded


def test_a_timeout_is_a_failure() -> None:
    limits = Limits(ProgramWorkload(("true",), timeout_s=60.0), Told())
    assert limits.reached(time.monotonic() - 60.0)
    assert (limits.in_order, limits.exceeded) == (False, "the program has not ended within 1 min")


def test_a_stall_counts_from_the_latest_step_and_only_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_steps, "STEPS_LOOK_S", 0.0)
    told = Told()
    limits = Limits(ProgramWorkload(("true",), stall_s=1e-9), told)
    for _ in range(3):
        assert not limits.reached(0.0), "no step yet"
    for told.step in (1, 2, 3):
        told.last = {"step": told.step}
        assert not limits.reached(0.0)
    assert limits.reached(0.0)
    assert limits.exceeded.endswith("since step 3")
