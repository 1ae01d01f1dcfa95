"""The prediction is said once the ranks have timed their operations, and nothing waits for it for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.workload.workload import AgentWorkload
from testbed.host.files import catalog
from testbed.lab.run import run as run_module

TOPOLOGY = catalog.load_topology("metro-40km")


def said(
    monkeypatch: pytest.MonkeyPatch, *, step: int = 0, timed: bool = False, failure: str = "", over: bool = False
) -> list[str]:
    monkeypatch.setattr(run_module, "expected_step", lambda *words: "prediction")
    monkeypatch.setattr(run_module, "_said_before", lambda expected, strategy: expected)
    notes: list[str] = []
    logs = [SimpleNamespace(calibrations=(1,) if timed else ()) for _ in TOPOLOGY.node_names]
    prepared: Any = SimpleNamespace(workload=AgentWorkload(), topology=TOPOLOGY)
    lab: Any = SimpleNamespace(certificate=None, recorder=SimpleNamespace(lab_failure=failure))
    job: Any = SimpleNamespace(step=step, over=lambda: over)
    directory: Any = SimpleNamespace(rank_logs=lambda: logs)
    run_module._say_before(prepared, lab, job, directory, SimpleNamespace(note=notes.append))  # type: ignore[arg-type]
    return notes


def test_it_is_said_also_if_the_first_step_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, timed=True) == said(monkeypatch, timed=True, step=3) == ["prediction"]


@pytest.mark.parametrize("state", [{"step": 1}, {"over": True}, {"failure": "the emulator died"}])
def test_it_is_not_waited_for_if_it_cannot_come(monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]) -> None:
    assert said(monkeypatch, **state) == []


def test_it_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_SAY_BOUND_S", 0.0)
    assert said(monkeypatch) == []
