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


class Reported:
    """The steps that a program has reported."""

    step = 0
    last: Mapping[str, Any] = {}


def limits(reported: Reported | None = None, **limit_s: Any) -> Limits:
    return Limits(ProgramWorkload(("true",), **limit_s), reported or Reported())


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


def test_limits_are_not_reached_where_none_is_set() -> None:
    none = limits()
    assert not none.reached(time.monotonic() - 1e9) and not none.exceeded


def test_limits_end_a_program_in_order_at_its_time_before_its_timeout() -> None:
    both = limits(for_s=10.0, timeout_s=10.0)
    assert not both.reached(time.monotonic())
    assert both.reached(time.monotonic() - 10.0)
    assert both.in_order and not both.exceeded


def test_limits_fail_a_program_at_its_timeout() -> None:
    timeout = limits(timeout_s=60.0)
    assert timeout.reached(time.monotonic() - 60.0)
    assert (timeout.in_order, timeout.exceeded) == (False, "the program has not ended within 1 min")


def test_limits_count_a_stall_from_the_latest_step_and_only_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_steps, "STEPS_LOOK_S", 0.0)
    reported = Reported()
    stall = limits(reported, stall_s=1e-9)
    for _ in range(3):
        assert not stall.reached(0.0), "no step yet"
    for reported.step in (1, 2, 3):
        reported.last = {"step": reported.step}
        assert not stall.reached(0.0)
    assert stall.reached(0.0)
    assert stall.exceeded.endswith("since step 3")
