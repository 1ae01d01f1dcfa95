"""Who keeps ranks away, and lets them come back, with parents that are made up."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
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
def workers(tmp_path: Path) -> Iterator[AgentPool]:
    driver = SimpleNamespace(path=lambda node: tmp_path / node)
    made = AgentPool(LabFolder(tmp_path), cast(Any, driver), lambda event: None)
    made.ranks = {0: Rank(0, "east-0", "east", "172.31.0.3", 9100)}
    made.states = {0: {"state": "gone", "pid": 0, "reason": "", "ended_t": None}}
    made._servers[SHARED] = cast(Any, Parent())
    yield made
    scratch.remove(LabFolder(tmp_path))


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


class Forking(Parent):
    """A parent whose ranks are ready at once; ``pids`` counts them."""

    def __init__(self, workers: AgentPool) -> None:
        super().__init__()
        self.workers, self.pids = workers, 100

    def say(self, message: dict[str, Any]) -> None:
        super().say(message)
        if message["do"] == "rank":
            self.pids += 1
            self.workers._handle(SHARED, {"event": "ready", "rank": message["rank"], "pid": self.pids})


def test_a_rank_that_is_killed_while_the_others_get_ready_does_not_count_as_training(
    workers: AgentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last answer to /metrics and the job: nobody would ever notice that it is gone."""
    workers.ranks[1] = Rank(1, "west-0", "west", "172.31.0.4", 9100)
    workers.states[1] = {"state": "finished", "pid": 7, "reason": "", "ended_t": 1.0}
    parent = Forking(workers)
    workers._servers[SHARED] = cast(Any, parent)
    refresh = workers.refresh

    def refreshed() -> None:
        refresh()
        workers._handle(SHARED, {"event": "died", "rank": 1, "pid": parent.pids, "signal": 9, "t": 5.0})

    with monkeypatch.context() as patched:
        patched.setattr(workers, "refresh", refreshed)
        with pytest.raises(LabError, match=r"ranks \[1\] ended before the job began: .*rank 1 was killed by SIGKILL"):
            workers.train({"job": "j1"})
    assert {number: it["state"] for number, it in workers.states.items()} == {0: "waiting", 1: "gone"}
    assert [it["do"] for it in parent.said] == ["rank", "rank"], "no job begins, not even of the others"
    workers.train({"job": "j1"})
    assert {it["state"] for it in workers.states.values()} == {"training"}
    assert parent.said[-1]["do"] == "train"


def test_the_late_news_of_a_process_that_was_replaced_is_not_of_its_successor(workers: AgentPool) -> None:
    parent = Parent()
    workers._servers[SHARED] = cast(Any, parent)
    workers.states[0] = {"state": "failed", "pid": 7, "reason": "", "ended_t": 1.0}
    workers._deploy(0)
    workers._handle(SHARED, {"event": "died", "rank": 0, "pid": 7, "signal": 9, "t": 5.0})
    assert workers.states[0]["state"] == "starting"
    workers._handle(SHARED, {"event": "ready", "rank": 0, "pid": 8})
    workers._handle(SHARED, {"event": "died", "rank": 0, "pid": 8, "signal": 9, "t": 6.0})
    assert workers.states[0]["state"] == "gone"


def test_a_successor_that_dies_before_it_is_ready_is_gone(workers: AgentPool) -> None:
    workers.states[0] = {"state": "failed", "pid": 7, "reason": "", "ended_t": 1.0}
    workers._deploy(0)
    workers._handle(SHARED, {"event": "died", "rank": 0, "pid": 8, "signal": 9, "t": 5.0})
    assert workers.states[0]["state"] == "gone"


def test_every_process_of_a_rank_has_scratch(workers: AgentPool, tmp_path: Path) -> None:
    """As root, and as a user without privileges: by what the fork server is told."""
    said = cast(Any, workers._servers[SHARED]).said
    workers._deploy(0)
    (top,) = Path("/var/tmp").glob(f"*-{(tmp_path / 'scratch').read_text().rpartition('-')[2]}")
    own = f"{top}/east-0-{os.geteuid()}"
    assert said[-1]["user"] is None
    assert said[-1]["environment"] == {"TESTBED_SCRATCH": own, "TMPDIR": f"{own}/tmp"}
    workers._user = ProgramUser(60700, 60700, (), "testbed", None, "")
    workers._deploy(0)
    own = f"{top}/east-0-60700"
    assert said[-1]["user"]["environment"].items() >= {"TESTBED_SCRATCH": own, "TMPDIR": f"{own}/tmp"}.items()
    assert said[-1]["environment"] == {}
    assert Path(own, "tmp").is_dir()


def test_a_process_that_is_stopped_while_it_trains_is_suspended(workers: AgentPool) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            workers.states[0] |= {"state": "training", "pid": child.pid}
            assert not workers.is_suspended(0)
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert workers.is_suspended(0)
            workers.states[0]["state"] = "waiting"
            assert not workers.is_suspended(0)
        finally:
            child.kill()
    assert not process.is_suspended(child.pid)
