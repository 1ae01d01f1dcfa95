"""The prediction is said once the ranks have timed their operations, and nothing waits for it for good."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tables import table

from testbed.core.workload.workload import AgentWorkload
from testbed.host.files import catalog
from testbed.lab.run import predicted_before

Notes = Callable[..., list[str]]
TOPOLOGY = catalog.load_topology("metro-40km")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """``notes(step=3)``: what is noted before a job in this state."""

    monkeypatch.setattr(predicted_before, "expected_step", lambda *words, interval: "prediction")
    monkeypatch.setattr(predicted_before, "predicted_note", lambda workload, expected: expected)

    def run(
        strategy: str = "ddp", step: int = 0, timed: bool = False, failure: str = "", over: bool = False
    ) -> list[str]:
        lines: list[str] = []
        logs = [SimpleNamespace(calibrations=(1,) if timed else ()) for _ in TOPOLOGY.node_names]
        lab: Any = SimpleNamespace(certificate=None, recorder=SimpleNamespace(lab_failure=failure))
        job: Any = SimpleNamespace(step=step, over=lambda: over)
        directory: Any = SimpleNamespace(rank_logs=lambda: logs)
        progress: Any = SimpleNamespace(note=lines.append)
        predicted_before.say_prediction(AgentWorkload(strategy=strategy), TOPOLOGY, lab, job, directory, progress)
        return lines

    return run


UNTIMED = "no prediction for ddp: not all ranks timed their operations"


@table(
    "state, expected",
    {
        "once the ranks have timed their operations": ({"timed": True}, ["prediction"]),
        "also if the first step was short": ({"timed": True, "step": 3}, ["prediction"]),
        "not if the job is over": ({"over": True}, []),
        "not if the lab has failed": ({"failure": "the emulator died"}, []),
        "there is none once the job trains without it": ({"step": 1}, [f"{UNTIMED} before the first step"]),
        "there is none after a bound": ({}, [f"{UNTIMED} within 0 s"]),
    },
)
def test_say_prediction(notes: Notes, monkeypatch: pytest.MonkeyPatch, state: Any, expected: list[str]) -> None:
    if not state:
        monkeypatch.setattr(predicted_before, "BOUND_S", 0.0)
    assert notes(**state) == expected


@pytest.mark.parametrize("strategy", ["async-diloco", "decoupled", "torchft-diloco"])
def test_say_prediction_says_at_once_why_a_strategy_has_none(notes: Notes, strategy: str) -> None:
    (line,) = notes(strategy=strategy)
    assert line.startswith(f"no prediction for {strategy}: ") and line.endswith("cannot be timed before the job")
