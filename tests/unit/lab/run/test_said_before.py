"""The prediction is said once the ranks have timed their operations, and nothing waits for it for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.workload.workload import AgentWorkload
from testbed.host.files import catalog
from testbed.lab.run import predicted_before

TOPOLOGY = catalog.load_topology("metro-40km")


def said(
    monkeypatch: pytest.MonkeyPatch,
    *,
    strategy: str = "ddp",
    step: int = 0,
    timed: bool = False,
    failure: str = "",
    over: bool = False,
) -> list[str]:
    monkeypatch.setattr(predicted_before, "expected_step", lambda *words: "prediction")
    monkeypatch.setattr(predicted_before, "_predicted", lambda workload, expected: expected)
    notes: list[str] = []
    logs = [SimpleNamespace(calibrations=(1,) if timed else ()) for _ in TOPOLOGY.node_names]
    lab: Any = SimpleNamespace(certificate=None, recorder=SimpleNamespace(lab_failure=failure))
    job: Any = SimpleNamespace(step=step, over=lambda: over)
    directory: Any = SimpleNamespace(rank_logs=lambda: logs)
    progress: Any = SimpleNamespace(note=notes.append)
    predicted_before.say_prediction(AgentWorkload(strategy=strategy), TOPOLOGY, lab, job, directory, progress)
    return notes


def test_it_is_said_also_if_the_first_step_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, timed=True) == said(monkeypatch, timed=True, step=3) == ["prediction"]


@pytest.mark.parametrize("state", [{"over": True}, {"failure": "the emulator died"}])
def test_it_is_not_waited_for_if_it_cannot_come(monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]) -> None:
    assert said(monkeypatch, **state) == []


def test_that_there_is_none_is_said_once_the_job_trains_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "no prediction for ddp: not all ranks timed their operations before the first step"
    assert said(monkeypatch, step=1) == [why]


@pytest.mark.parametrize("strategy", ["async-diloco", "decoupled", "torchft-diloco"])
def test_why_a_strategy_has_none_is_said_at_once(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    (line,) = said(monkeypatch, strategy=strategy)
    assert line.startswith(f"no prediction for {strategy}: ") and line.endswith("cannot be timed before the job")


def test_it_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_before, "_BOUND_S", 0.0)
    assert said(monkeypatch) == ["no prediction for ddp: not all ranks timed their operations within 0 s"]
