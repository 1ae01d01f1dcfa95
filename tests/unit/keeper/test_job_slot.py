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


class Slot(JobSlot):
    """The slot of a lab with ranks that are made up; ``asked``: why holders were asked to stop."""

    def __init__(self) -> None:
        self.ranks, self.log, self.asked = Agents(), EventLog(), list[str]()
        super().__init__("metro", self.ranks, self.log, lambda: [], lambda work: work())  # type: ignore[arg-type]

    def hold(self, kind: str = "train", *, detached: bool = False, holder: int | None = None) -> tuple[str, Caller]:
        caller = Caller(print, lambda update: self.asked.append(update["stop"]))
        pid = holder or os.getpid()
        answer = self.claim(caller, kind, "x", pid, process.started(pid), detached=detached)
        assert answer["busy"] is None
        return answer["job"], caller

    @property
    def busy(self) -> str:
        job = self.claim(Caller(print), "launch", "y", 0, 0)["busy"]
        return "" if job is None else job["id"]

    def record(self, job: str) -> protocol.JobRecord:
        return next(record for record in self.records() if record["id"] == job)

    def state(self, job: str) -> str:
        return self.record(job)["state"]

    def wait_for(self, state: str, job: str) -> None:
        oracle.until(lambda: self.state(job) == state, 10.0, f"{job} is {state}, after {self.records()}")


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Slot:
    for bound, seconds in (("STOP_GRACE_S", 0.2), ("DOWN_GRACE_S", 0.2), ("CLAIM_BOUND_S", 5.0)):
        monkeypatch.setattr(job_slot, bound, seconds)
    return Slot()


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


def test_one_job_at_a_time_and_no_id_twice(slot: Slot) -> None:
    first, _ = slot.hold("launch")
    assert first == slot.busy == "j1"
    slot.release(first, "failed", "rank 2 ended with status 7", 7)
    ended = slot.record("j1")
    assert (ended["state"], ended["why"], ended["exit_status"]) == ("failed", "rank 2 ended with status 7", 7)
    assert ended["ended_t"] is not None and slot.hold()[0] == "j2"
    slot.release(first, "finished", "", 0)  # late, and of no job that holds anything
    assert (slot.busy, slot.state("j1")) == ("j2", "failed")


def test_a_holder_whose_connection_ends_has_lost_its_job(slot: Slot, run: RunDirectory) -> None:
    job, caller = slot.hold()
    slot.describe(job, str(run.path), [])
    slot.ranks.training = job
    slot.closed(Caller(print))
    assert slot.state(job) == "running", "another connection"
    slot.closed(caller)
    assert slot.hold()[0] == "j2", "the next one waits until the slot is free"
    assert slot.ranks.ended == [job]
    lost = slot.record(job)
    assert (lost["state"], lost["exit_status"]) == ("lost", 3) and f"pid {os.getpid()}" in lost["why"]
    info = run.read_json("run.json")
    assert (info["status"], info["reason"]) == ("interrupted", lost["why"])
    with pytest.raises(LabError, match="job j1 was ended"):
        slot.admit(job)  # a restart that its holder, which was only stopped, requests late


def test_a_run_that_has_ended_is_not_ended_again(slot: Slot, run: RunDirectory) -> None:
    run.write_json("run.json", {"name": "r", "status": "finished", "reason": ""})
    job, caller = slot.hold()
    slot.describe(job, str(run.path), [])
    slot.closed(caller)
    slot.wait_for("lost", job)
    assert run.read_json("run.json")["status"] == "finished"


def test_a_holder_whose_process_ends_has_lost_its_job(slot: Slot, sleeper: subprocess.Popen[bytes]) -> None:
    """Its connection lives on in a child that it forked."""
    job, _ = slot.hold(holder=sleeper.pid)
    sleeper.kill()
    slot.wait_for("lost", job)
    assert slot.busy == ""


def test_stop_asks_the_holder_and_waits_for_it(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = slot.hold()
    monkeypatch.setattr(job_slot, "STOP_GRACE_S", 10.0)

    def holder() -> None:
        slot.wait_for("stopping", job)
        oracle.until(lambda: slot.asked == ["enough"], 10.0, "the holder is asked")
        slot.release(job, "stopped", "enough", 130)

    beside = threading.Thread(target=holder)
    beside.start()
    record = slot.stop(job, "enough")
    beside.join()
    assert (record["state"], record["why"], record["exit_status"]) == ("stopped", "enough", 130)
    assert slot.ranks.ended == [], "the holder has ended it"
    assert slot.stop(job, "again") == record, "one that has ended stays as it is"


@pytest.mark.parametrize("detached", [True, False])
def test_stop_ends_by_force_what_its_holder_does_not(
    slot: Slot, sleeper: subprocess.Popen[bytes], detached: bool
) -> None:
    job, _ = slot.hold(detached=detached, holder=sleeper.pid)
    assert slot.stop(job, "enough")["state"] == "stopped"
    assert (slot.ranks.ended, slot.busy, slot.asked) == ([job], "", ["enough"])
    assert (sleeper.poll() is not None) is detached, "a process of the user's is never ended"


def test_an_unknown_job_is_refused_with_those_that_there_are(slot: Slot) -> None:
    slot.hold()
    with pytest.raises(UserError, match=r"unknown job 'j7' \(available: j1\)"):
        slot.stop("j7", "")


def test_ranks_that_did_not_end_keep_the_slot_until_they_have(slot: Slot) -> None:
    job, _ = slot.hold()
    slot.ranks.training = job
    slot.release(job, "failed", "rank 1 is gone", 1)
    assert slot.hold()[0] == "j2"
    assert slot.ranks.ended == [job]
    assert (slot.state(job), slot.record(job)["why"]) == ("failed", "rank 1 is gone")


def test_going_down_ends_the_job_and_lets_no_other_begin(slot: Slot, run: RunDirectory) -> None:
    job, _ = slot.hold()
    slot.describe(job, str(run.path), [])
    slot.close("lab metro is being taken down")
    assert slot.asked == ["lab metro is being taken down"]
    assert slot.state(job) == "stopped"
    assert run.read_json("run.json")["status"] == "interrupted"
    with pytest.raises(LabError, match="lab metro is being taken down"):
        slot.hold()
    with pytest.raises(LabError):
        slot.admit("j9")


def test_ranks_train_only_for_the_job_that_holds_the_slot(slot: Slot) -> None:
    job, _ = slot.hold()
    slot.admit(job)
    with pytest.raises(LabError, match="job j1 is running in lab metro"):
        slot.admit("j5")


def test_no_rank_trains_for_a_job_without_the_slot(slot: Slot) -> None:
    """Nobody could end it."""
    with pytest.raises(LabError, match="job j4 does not hold the job slot of lab metro"):
        slot.admit("j4")
    assert slot.records() == []


def test_each_job_has_its_events(slot: Slot) -> None:
    job, _ = slot.hold("launch")
    slot.stop(job, "enough")
    events = [(event["event"], event["job"]) for event in slot.log.since(0)["events"]]
    assert events == [("job-claimed", job), ("job-stop-requested", job), ("job-released", job)]
    json.dumps(slot.records())
