"""Jobs on a lab that is up: one at a time, followed, stopped and ended from any process, whatever becomes of its own.

The oracle of what still runs is /proc, by the network namespaces of the lab's nodes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command, argv_of, check, check_refused
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import Lab, bring_up, keeper, programs_in
from builders.proc import until_gone
from oracles import oracle

from testbed.errors import Interrupted, LabBusy, UnknownName

pytestmark = [*LABS, pytest.mark.usefixtures("folder")]

ENDED_S = 15.0
"""Bound of an end, on two busy cores."""

Jobs = Callable[[], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def lab(state_folder: Path) -> Iterator[Lab]:
    """Provide a lab with agents for all tests of the module."""
    name = oracle.unused_name()
    with bring_up(name, agents=True) as found:
        found.allow_uncertified = True
        yield found
    assert oracle.left_behind(name, state_folder) == []


@pytest.fixture
def jobs(lab: Lab, command: Command) -> Jobs:
    def by_id() -> dict[str, dict[str, Any]]:
        listed = json.loads(check(command(f"jobs -l {lab.name} --json")))
        found = {job["id"]: job for job in listed}
        assert len(found) == len(listed)
        return found

    return by_id


def states(lab: Lab) -> set[str]:
    return {it["state"] for it in keeper(lab).ranks()}


def launched(command: Command, lab: Lab, *words: str) -> str:
    done = command(f"launch -l {lab.name} --detach --allow-uncertified --", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_detached_job_is_listed_followed_and_stopped(lab: Lab, command: Command, jobs: Jobs, folder: Path) -> None:
    begun = command(f"train -l {lab.name} --detach --steps 900 --allow-uncertified --json")
    assert begun.returncode == 0, begun.stderr
    answer = json.loads(begun.stdout)
    job, run = answer["job"], Path(answer["run"])
    assert int(job.removeprefix("j")) >= 1 and (run / "run.json").exists()

    theirs = lab.job(job)  # of another process, and yet a job like any other
    theirs.wait_for(3, timeout=60)
    now = jobs()[job]
    assert (now["kind"], now["what"], now["state"], now["run"]) == ("train", "ddp, 900 steps", "running", str(run))
    assert now["step"] >= 3 and now["steps"] == 900 and now["train_loss"] > 0 and now["tokens_per_s"] > 0
    assert now["pid"] != os.getpid() and Path(f"/proc/{now['pid']}").exists()

    assert read_json(run / "run.json")["workload"]["steps"] == 900
    shown = json.loads(command(f"status -l {lab.name} --json").stdout)
    (of_status,) = shown["jobs"]
    assert of_status["id"] == job and of_status["step"] >= now["step"] and of_status["elapsed_s"] > 0
    text = command(f"status -l {lab.name}").stdout
    assert f"job {job}: train, ddp, 900 steps: step " in text and str(run) in text.replace("\n", "")

    # One job at a time, of any kind, from anywhere: exit status 2 and its id, and nothing begins.
    runs = set(run.parent.iterdir())
    for refused in (
        command(f"launch -l {lab.name} --allow-uncertified -- true"),
        command(f"launch -l {lab.name} --allow-uncertified --detach -- true"),
        command(f"train -l {lab.name} --allow-uncertified"),
    ):
        assert refused.returncode == 2, refused.stderr
        assert f"It is job {job} (ddp, 900 steps)" in refused.stderr and refused.stderr.rstrip().endswith(f"stop {job}")
    with pytest.raises(LabBusy, match=f"It is job {job} "):
        lab.train(steps=5)
    with pytest.raises(LabBusy, match="is running a training job; its traffic would be counted as yours"):
        lab.launch(["true"], directory=folder)
    assert set(run.parent.iterdir()) == runs, "a job that is refused makes no run directory"

    # Ctrl-C of `attach` detaches; the job goes on.
    attached = subprocess.Popen(
        argv_of(f"attach -l {lab.name} {job}"),
        stderr=subprocess.PIPE,
        text=True,
    )
    while f"job {job}: ddp" not in attached.stderr.readline():
        assert attached.poll() is None
    attached.send_signal(signal.SIGINT)
    assert attached.wait(20) == 130
    assert f"detached; job {job} continues" in attached.stderr.read()
    assert not theirs.over()

    stopped = command(f"stop -l {lab.name} {job}")
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.startswith(f"{job}: stopped at step ")
    assert states(lab).isdisjoint({"training"})
    until_gone(now["pid"], bound_s=ENDED_S)
    ended = jobs()[job]
    assert (ended["state"], ended["exit_status"]) == ("stopped", 130)
    info = read_json(run / "run.json")
    assert (info["status"], info["reason"]) == ("interrupted", "stopped by `stop`")
    assert (run / "index.html").exists(), "its process has written the report"
    assert theirs.over() and isinstance(theirs.failed(), Interrupted)
    again = command(f"stop -l {lab.name} {job}")
    assert again.returncode == 0 and f"{job} had ended: stopped" in again.stdout
    assert command(f"attach -l {lab.name} {job}").returncode == 130


@pytest.mark.thorough
def test_a_detached_program_ends_as_it_would_in_the_foreground(
    lab: Lab, command: Command, jobs: Jobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "yes")
    script = 'echo "here $MINE $PWD"; while [ ! -e go ]; do sleep 0.1; done; echo last; exit 3'
    job = launched(command, lab, "sh", "-c", script)
    following = subprocess.Popen(
        argv_of(f"logs -l {lab.name} --job {job} -f"),
        stdout=subprocess.PIPE,
        text=True,
    )
    attached = subprocess.Popen(argv_of(f"attach -l {lab.name} {job}"), stdout=subprocess.PIPE, text=True)
    assert "here yes" in attached.stdout.readline()
    (folder / "go").touch()
    assert attached.wait(30) == 3, "the status of the job, which is that of its worst rank"
    out = following.communicate(timeout=30)[0].splitlines()
    assert sorted(it for it in out if it.endswith("last")) == [f"[rank {rank}] last" for rank in range(4)]
    assert f"[rank 0] here yes {folder}" in out
    ended = jobs()[job]
    assert (ended["state"], ended["exit_status"]) == ("failed", 3)
    assert read_json(Path(ended["run"]) / "run.json")["status"] == "failed"
    assert (Path(ended["run"]) / "index.html").exists()

    one = command(f"logs -l {lab.name} west-0 --job {job}")
    assert one.stdout.splitlines() == [f"here yes {folder}", "last"]
    # An id of a job is no node's name, and a node's name no job's.
    check_refused(command(f"logs -l {lab.name} {job}"), 2, f"--job {job}")
    check_refused(command(f"logs -l {lab.name} --job east-0"), 2, "unknown job 'east-0'")
    with pytest.raises(UnknownName, match="unknown job 'j999'"):
        lab.job("j999")
    assert command(f"stop -l {lab.name} j999").returncode == 2


LEAVERS = "sleep 7131 & setsid sleep 7131 & env -i sleep 7131 & sleep 7131"
"""Four ways to be there still when the rank's own process is gone: one inherits its session, one its environment."""


@pytest.mark.parametrize("who", ["the user's Python", "a detached job's process"])
def test_a_holder_that_is_killed_leaves_no_program(lab: Lab, command: Command, jobs: Jobs, who: str) -> None:
    bystander = subprocess.Popen(argv_of(f"exec -l {lab.name} east-0 -- sleep 7132"))
    try:
        if who == "a detached job's process":
            job = launched(command, lab, "sh", "-c", LEAVERS)
            holder = jobs()[job]["pid"]
        else:
            python = f"""
import os, sys, time, testbed
lab = testbed.attach({lab.name!r})
lab.allow_uncertified = True
job = lab.launch(["sh", "-c", {LEAVERS!r}])
if os.fork() == 0:   # a child that lives on, with its parent's connections
    time.sleep(30)
    os._exit(0)
print(job.id, flush=True)
time.sleep(600)
"""
            mine = subprocess.Popen([sys.executable, "-c", python], stdout=subprocess.PIPE, text=True)
            job, holder = mine.stdout.readline().strip(), mine.pid
        oracle.until(lambda: len(programs_in(lab, "7131")) >= 16, 20.0, "all are there")
        oracle.until(lambda: len(programs_in(lab, "7132")) == 1, 20.0, "the bystander too")
        os.kill(holder, signal.SIGKILL)
        began = time.monotonic()
        oracle.until(lambda: not programs_in(lab, "7131"), ENDED_S, "the job's processes have ended")
        # The slot is free by then, or a moment later: the next job waits for that.
        assert lab.launch(["true"]).exit_status() == 0
        print(f"free after {time.monotonic() - began:.2f} s")
        ended = jobs()[job]
        assert ended["state"] == "lost" and f"pid {holder}" in ended["why"]
        info = read_json(Path(ended["run"]) / "run.json")
        assert info["status"] == "interrupted" and info["ended_t"] > info["started_t"]
        assert command("report", ended["run"]).returncode == 3, "readable, and its result is unknown"
        assert len(programs_in(lab, "7132")) == 1, "what `exec` runs there is none of the job's"
    finally:
        bystander.kill()
        bystander.wait()
        oracle.until(lambda: not programs_in(lab, "7132"), 10.0, "the bystander has ended")


def test_a_holder_that_is_killed_leaves_no_rank_training(lab: Lab, command: Command, jobs: Jobs) -> None:
    """With a rank that is paused, and so cannot stop by itself."""
    begun = command(f"train -l {lab.name} --detach --steps 900 --allow-uncertified")
    job = begun.stdout.strip()
    lab.job(job).wait_for(2, timeout=60)
    record = jobs()[job]
    fault = lab.inject("rank-pause", "2")
    os.kill(record["pid"], signal.SIGKILL)
    oracle.until(lambda: "training" not in states(lab), 30.0, "no rank trains")
    lab.heal(fault.id)
    after = lab.train(steps=3)
    assert int(after.id[1:]) > int(job[1:]), "no id is given twice"
    after.wait(timeout=120)
    ended = jobs()[job]
    assert ended["state"] == "lost" and ended["step"] >= 2
    events = keeper(lab).events()["events"]
    assert {"job": job, "state": "lost"}.items() <= [it for it in events if it.get("job") == job][-1].items()


def test_stop_ends_a_job_of_this_process_and_the_process_goes_on(lab: Lab, command: Command) -> None:
    job = lab.launch(["sleep", "7133"])
    check(command(f"stop -l {lab.name}", job.id))
    assert job.over() and job.interrupted == "stopped by `stop`"
    assert not programs_in(lab, "7133")
    assert lab.launch(["true"]).exit_status() == 0


def test_down_ends_a_job_in_order(command: Command, lab_name: str, folder: Path) -> None:
    with bring_up(lab_name, "metro-single"):
        check(command(f"launch -l {lab_name} --detach --allow-uncertified -- sleep 7135"))
        (job,) = json.loads(command(f"jobs -l {lab_name} --json").stdout)
        check(command(f"down {lab_name}"))
        until_gone(job["pid"], bound_s=ENDED_S)
        info = read_json(Path(job["run"]) / "run.json")
        assert (info["status"], info["reason"]) == ("interrupted", f"lab {lab_name} is being taken down")
