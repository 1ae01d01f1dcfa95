"""The job slot of a lab: who holds it, how it is asked to end its job, and what follows when it does not."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles import oracle

from testbed.errors import LabError, UserError
from testbed.host.files.store import RunDirectory
from testbed.host.linux import process
from testbed.keeper import job_slot, protocol
from testbed.keeper.event_log import EventLog
from testbed.keeper.job_slot import JobSlot
from testbed.keeper.service import Caller


class Agents:
    """Ranks that are made up: ``training`` is the job that they train in."""

    def __init__(self) -> None:
        self.training, self.ended = "", list[str]()

    @property
    def states(self) -> dict[int, dict[str, Any]]:
        return {0: {"state": "training" if self.training else "waiting", "job": self.training or "j0"}}

    def is_training(self, job: str) -> bool:
        return self.training == job

    def end_job(self, job: str, do: Callable[..., None]) -> None:
        self.ended.append(job)
        if self.training == job:
            self.training = ""


class Made:
    def __init__(self) -> None:
        self.agents, self.events = Agents(), EventLog()
        self.slot = JobSlot("metro", self.agents, self.events, lambda: [], lambda work: work())  # type: ignore[arg-type]
        self.asked: list[str] = []

    def claim(self, kind: str = "train", *, detached: bool = False, holder: int | None = None) -> tuple[str, Caller]:
        caller = Caller(print, lambda update: self.asked.append(update["stop"]))
        pid = holder or os.getpid()
        answer = self.slot.claim(protocol.ClaimJob(kind, "x", pid, process.started(pid), detached), caller)
        assert answer["busy"] is None
        return answer["job"], caller

    def busy(self) -> str:
        found = self.slot.claim(protocol.ClaimJob("launch", "y", 0, 0), Caller(print))["busy"]
        return "" if found is None else found["id"]

    def record(self, job: str) -> protocol.JobRecord:
        return next(it for it in self.slot.records() if it["id"] == job)

    def until(self, condition: Callable[[], bool]) -> None:
        oracle.until(condition, 10.0, f"the state after {self.slot.records()}")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(job_slot, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr(job_slot, "DOWN_GRACE_S", 0.2)
    monkeypatch.setattr(job_slot, "CLAIM_BOUND_S", 5.0)
    return Made()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "r")
    made.write_json("run.json", {"name": "r", "status": "running", "reason": ""})
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def test_one_job_at_a_time_and_no_id_twice(made: Made) -> None:
    first, _ = made.claim("launch")
    assert first == "j1" and made.busy() == "j1"
    made.slot.release(first, "failed", "rank 2 ended with status 7", 7)
    ended = made.record("j1")
    assert (ended["state"], ended["why"], ended["exit_status"]) == ("failed", "rank 2 ended with status 7", 7)
    assert ended["ended_t"] is not None and made.claim()[0] == "j2"
    made.slot.release(first, "finished", "", 0)  # late, and of no job that holds anything
    assert made.busy() == "j2" and made.record("j1")["state"] == "failed"


def test_a_holder_whose_connection_ends_has_lost_its_job(made: Made, run: RunDirectory) -> None:
    job, caller = made.claim()
    made.slot.describe(job, str(run.path), [])
    made.agents.training = job
    made.slot.closed(Caller(print))
    assert made.record(job)["state"] == "running", "another connection"
    made.slot.closed(caller)
    assert made.claim()[0] == "j2", "the next one waits until the slot is free"
    assert made.agents.ended == [job]
    lost = made.record(job)
    assert lost["state"] == "lost" and lost["exit_status"] == 3 and f"pid {os.getpid()}" in lost["why"]
    info = run.read_json("run.json")
    assert (info["status"], info["reason"]) == ("interrupted", lost["why"])
    with pytest.raises(LabError, match="job j1 was ended"):
        made.slot.admit(job)  # a restart that its holder, which was only stopped, asks for late


def test_a_run_that_has_ended_is_not_ended_again(made: Made, run: RunDirectory) -> None:
    run.write_json("run.json", {"name": "r", "status": "finished", "reason": ""})
    job, caller = made.claim()
    made.slot.describe(job, str(run.path), [])
    made.slot.closed(caller)
    made.until(lambda: made.record(job)["state"] == "lost")
    assert run.read_json("run.json")["status"] == "finished"


def test_a_holder_whose_process_ends_has_lost_its_job(made: Made, sleeper: subprocess.Popen[bytes]) -> None:
    """Its connection lives on in a child that it forked."""
    job, _ = made.claim(holder=sleeper.pid)
    sleeper.kill()
    made.until(lambda: made.record(job)["state"] == "lost")
    assert made.busy() == ""


def test_stop_asks_the_holder_and_waits_for_it(made: Made) -> None:
    job, _ = made.claim()
    job_slot.STOP_GRACE_S = 10.0  # type: ignore[misc]

    def holder() -> None:
        made.until(lambda: made.asked == ["enough"])
        assert made.record(job)["state"] == "stopping"
        made.slot.release(job, "stopped", "enough", 130)

    beside = threading.Thread(target=holder)
    beside.start()
    record = made.slot.stop(job, "enough")
    beside.join()
    assert (record["state"], record["why"], record["exit_status"]) == ("stopped", "enough", 130)
    assert made.agents.ended == [], "the holder has ended it"
    assert made.slot.stop(job, "again") == record, "one that has ended stays as it is"


@pytest.mark.parametrize("detached", [True, False])
def test_stop_ends_by_force_what_its_holder_does_not(
    made: Made, sleeper: subprocess.Popen[bytes], detached: bool
) -> None:
    job, _ = made.claim(detached=detached, holder=sleeper.pid)
    record = made.slot.stop(job, "enough")
    assert record["state"] == "stopped" and made.agents.ended == [job] and made.busy() == ""
    assert made.asked == ["enough"]
    assert (sleeper.poll() is not None) is detached, "a process of the user's is never ended"


def test_an_unknown_job_is_refused_with_those_that_there_are(made: Made) -> None:
    made.claim()
    with pytest.raises(UserError, match=r"unknown job 'j7' \(available: j1\)"):
        made.slot.stop("j7", "")


def test_ranks_that_did_not_end_keep_the_slot_until_they_have(made: Made) -> None:
    job, _ = made.claim()
    made.agents.training = job
    made.slot.release(job, "failed", "rank 1 is gone", 1)
    assert made.claim()[0] == "j2"
    assert made.agents.ended == [job]
    assert made.record(job)["state"] == "failed" and made.record(job)["why"] == "rank 1 is gone"


def test_going_down_ends_the_job_and_lets_no_other_begin(made: Made, run: RunDirectory) -> None:
    job, _ = made.claim()
    made.slot.describe(job, str(run.path), [])
    made.slot.close("lab metro is being taken down")
    assert made.asked == ["lab metro is being taken down"]
    assert made.record(job)["state"] == "stopped"
    assert run.read_json("run.json")["status"] == "interrupted"
    with pytest.raises(LabError, match="lab metro is being taken down"):
        made.claim()
    with pytest.raises(LabError):
        made.slot.admit("j9")


def test_ranks_train_only_for_the_job_that_holds_the_slot(made: Made) -> None:
    job, _ = made.claim()
    made.slot.admit(job)
    with pytest.raises(LabError, match="job j1 is running in lab metro"):
        made.slot.admit("j5")


def test_a_job_of_an_older_command_counts_and_can_be_stopped(made: Made) -> None:
    """It takes no slot, and numbers its jobs itself."""
    made.slot.admit("j4")
    made.agents.training = "j4"
    assert made.busy() == "j4" and [it["id"] for it in made.slot.records()] == ["j4"]
    assert made.slot.stop("j4", "enough")["state"] == "stopped"
    assert made.agents.ended == ["j4"]
    assert made.claim()[0] == "j5"


def test_events_tell_of_each_job(made: Made) -> None:
    job, _ = made.claim("launch")
    made.slot.stop(job, "enough")
    told = [(it["event"], it["job"]) for it in made.events.since(0)["events"]]
    assert told == [("job-claimed", job), ("job-stop-requested", job), ("job-released", job)]
    json.dumps(made.slot.records())
