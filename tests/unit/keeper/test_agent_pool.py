"""Who keeps ranks away, and lets them come back, with parents that are made up."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.core.plan.resources import Rank
from testbed.errors import HostError, LabError
from testbed.keeper.agent_pool import SHARED, AgentPool


class Parent:
    """``gone``: it cannot be spoken to any more."""

    def __init__(self) -> None:
        self.exited, self.said, self.gone = threading.Event(), list[dict[str, Any]](), False

    def say(self, message: dict[str, Any]) -> None:
        if self.gone:
            raise LabError("the training agents are gone")
        self.said.append(message)


@pytest.fixture
def workers(tmp_path: Path) -> AgentPool:
    driver = SimpleNamespace(path=lambda node: tmp_path / node)
    made = AgentPool("lab", cast(Any, driver), tmp_path, tmp_path / "log", lambda event: None)
    made.ranks = {0: Rank(0, "east-0", "east", "172.31.0.3", 9100)}
    made.states = {0: {"state": "gone", "pid": 0, "reason": "", "ended_t": None}}
    made._servers[SHARED] = cast(Any, Parent())
    return made


def test_what_two_faults_keep_away_comes_back_with_the_last_of_them(workers: AgentPool) -> None:
    workers.hold([0])
    workers.hold([0])
    workers.release([0])
    assert workers.is_down(0)
    with pytest.raises(LabError, match="by a fault"):
        workers.refresh({0: workers.ranks[0]})
    workers.release([0])
    assert not workers.is_down(0)
    assert [it["do"] for it in cast(Any, workers._servers[SHARED]).said] == ["signal", "signal", "rank"]


def test_one_that_could_not_be_let_go_is_let_go_once(workers: AgentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo is called again for what failed; a fault that comes later must still be able to keep the rank away."""

    def refuse(key: str) -> None:
        raise HostError("no memory for another process")

    workers.hold([0])
    workers._servers[SHARED].exited.set()
    with monkeypatch.context() as patched:
        patched.setattr(workers, "_start", refuse)
        with pytest.raises(HostError):
            workers.release([0])
    assert workers.is_down(0)
    workers._servers[SHARED] = cast(Any, Parent())
    workers.release([0])
    assert not workers.is_down(0)
    workers.hold([0])
    assert workers.is_down(0)


def test_a_parent_that_ends_meanwhile_is_no_reason_to_fail(workers: AgentPool) -> None:
    workers.hold([0])
    cast(Any, workers._servers[SHARED]).gone = True
    workers.release([0])
    assert not workers.is_down(0)
