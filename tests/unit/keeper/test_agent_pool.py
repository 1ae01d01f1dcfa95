"""Processes of ranks: which faults keep them away and when they return, with fork servers that are made up."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.core.plan.resources import Rank
from testbed.errors import HostError, LabError
from testbed.host import scratch
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper import agent_pool
from testbed.keeper.agent_pool import AgentPool

FAILED = {"state": "failed", "pid": 7, "reason": "", "ended_t": 1.0}


class Parent:
    """A fork server. Processes that are requested are ``ready`` at once, if set; ``gone``: it does not answer."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report, self.exited, self.messages = report, threading.Event(), list[dict[str, Any]]()
        self.gone = self.ready = False

    def say(self, message: dict[str, Any]) -> None:
        if self.gone:
            raise LabError("the training agents are gone")
        self.messages.append(message)
        if self.ready and message["do"] == "rank":
            self.report({"event": "ready", "rank": message["rank"], "pid": 100 + len(self.messages)})

    def verbs(self) -> list[str]:
        return [message["do"] for message in self.messages]


def died(pid: int, **fields: Any) -> dict[str, Any]:
    return {"event": "died", "rank": 0, "pid": pid, "signal": 9, "t": 5.0, **fields}


@pytest.fixture
def parents(monkeypatch: pytest.MonkeyPatch) -> list[Parent]:
    """The fork servers, as they begin."""
    begun: list[Parent] = []
    monkeypatch.setattr(agent_pool, "ForkServer", lambda log, report, *_: begun.append(Parent(report)) or begun[-1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(agent_pool.agent_host, "start", lambda argv: None)
    return begun


def pool_in(folder: Path, user: ProgramUser | None = None) -> AgentPool:
    driver = SimpleNamespace(path=lambda node: folder / node)
    pool = AgentPool(LabFolder(folder), cast(Any, driver), lambda event: None, user=user)
    pool.ranks = {0: Rank(0, "east-0", "east", "172.31.0.3", 9100)}
    pool.states = {0: {"state": "gone", "pid": 0, "reason": "", "ended_t": None}}
    pool.adopt(cast(Any, None))
    return pool


@pytest.fixture
def pool(tmp_path: Path, parents: list[Parent]) -> Iterator[AgentPool]:
    yield pool_in(tmp_path)
    scratch.remove(LabFolder(tmp_path))


@pytest.fixture
def parent(pool: AgentPool, parents: list[Parent]) -> Parent:
    return parents[0]


def test_a_rank_that_two_faults_hold_returns_with_the_last_of_them(pool: AgentPool, parent: Parent) -> None:
    pool.hold([0])
    pool.hold([0])
    pool.release([0])
    assert pool.is_down(0)
    with pytest.raises(LabError, match="by a fault"):
        pool.refresh({0: pool.ranks[0]})
    pool.release([0])
    assert not pool.is_down(0)
    assert parent.verbs() == ["signal", "signal", "rank"]


def test_a_rank_that_could_not_be_released_is_released_once(
    pool: AgentPool, parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undo is called again for what failed; a later fault must still be able to hold the rank."""

    def refuse(argv: object) -> None:
        raise HostError("no memory for another process")

    pool.hold([0])
    parent.exited.set()
    with monkeypatch.context() as patched:
        patched.setattr(agent_pool.agent_host, "start", refuse)
        with pytest.raises(HostError):
            pool.release([0])
    assert pool.is_down(0)
    pool.release([0])
    assert not pool.is_down(0)
    pool.hold([0])
    assert pool.is_down(0)


def test_a_parent_that_ends_meanwhile_is_no_reason_to_fail(pool: AgentPool, parent: Parent) -> None:
    pool.hold([0])
    parent.gone = True
    pool.release([0])
    assert not pool.is_down(0)


def test_a_rank_that_is_killed_while_the_others_get_ready_does_not_count_as_training(
    pool: AgentPool, parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last answer to /metrics and the job: otherwise nobody would ever notice that it is gone."""
    pool.ranks[1] = Rank(1, "west-0", "west", "172.31.0.4", 9100)
    pool.states[1] = cast(Any, FAILED | {"state": "finished"})
    parent.ready = True
    refresh = pool.refresh

    def refreshed() -> None:
        refresh()
        parent.report(died(102, rank=1))

    with monkeypatch.context() as patched:
        patched.setattr(pool, "refresh", refreshed)
        with pytest.raises(LabError, match=r"ranks \[1\] ended before the job began: .*rank 1 was killed by SIGKILL"):
            pool.train({"job": "j1"})
    assert [state["state"] for state in pool.states.values()] == ["waiting", "gone"]
    assert parent.verbs() == ["rank", "rank"], "no job begins, not even of the others"
    pool.train({"job": "j1"})
    assert {state["state"] for state in pool.states.values()} == {"training"}
    assert parent.verbs()[-1] == "train"


def deploy(pool: AgentPool) -> None:
    """Let the rank have a fresh process, and do not wait for it."""
    pool.hold([0])
    pool.release([0])


def test_a_late_event_of_a_replaced_process_is_not_of_its_successor(pool: AgentPool, parent: Parent) -> None:
    pool.states[0] = cast(Any, FAILED)
    deploy(pool)
    for event, state in (
        (died(7), "starting"),
        ({"event": "ready", "rank": 0, "pid": 8}, "waiting"),
        (died(8), "gone"),
    ):
        parent.report(event)
        assert pool.states[0]["state"] == state


def test_a_successor_that_dies_before_it_is_ready_is_gone(pool: AgentPool, parent: Parent) -> None:
    pool.states[0] = cast(Any, FAILED)
    deploy(pool)
    parent.report(died(8))
    assert pool.states[0]["state"] == "gone"


def test_each_process_of_a_rank_has_scratch(tmp_path: Path, pool: AgentPool, parents: list[Parent]) -> None:
    """As root, and as a user without privileges: by what the fork server is sent."""
    deploy(pool)
    deploy(pool_in(tmp_path, ProgramUser(60700, 60700, (), "testbed", None, "")))
    (top,) = Path("/var/tmp").glob(f"*-{(tmp_path / 'scratch').read_text().rpartition('-')[2]}")
    root, unprivileged = (parent.messages[-1] for parent in parents)
    own, other = (f"{top}/east-0-{uid}" for uid in (os.geteuid(), 60700))
    assert root["user"] is None
    assert root["environment"] == {"TESTBED_SCRATCH": own, "TMPDIR": f"{own}/tmp"}
    assert unprivileged["user"]["environment"].items() >= {"TESTBED_SCRATCH": other, "TMPDIR": f"{other}/tmp"}.items()
    assert unprivileged["environment"] == {}
    assert Path(other, "tmp").is_dir()


def test_a_process_that_is_stopped_while_it_trains_is_suspended(pool: AgentPool) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            pool.states[0] |= {"state": "training", "pid": child.pid}
            assert not pool.is_suspended(0)
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert pool.is_suspended(0)
            pool.states[0]["state"] = "waiting"
            assert not pool.is_suspended(0)
        finally:
            child.kill()
    assert not process.is_suspended(child.pid)
