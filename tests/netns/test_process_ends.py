"""Processes that somebody else ends, and programs that end themselves: the verdict tells them apart, and stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from builders.commands import Command, run_line
from builders.conditions import LABS
from builders.json_files import read_json, recorded_events
from builders.labs import Lab, OwnLab, end_rank, ns, shared_lab
from oracles import oracle

from testbed.errors import JobFailed, LabError, StorageError
from testbed.host.files.store import RunDirectory

pytestmark = LABS
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 32, "checkpoint_every": 10}


training = shared_lab(agents=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a disk of 60 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    run_line(f"mount -t tmpfs -o size=60m tmpfs {folder}")
    yield folder
    run_line(f"umount --lazy {folder}")


def fill(disk: Path) -> None:
    with (disk / "ballast").open("ab", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(bytes(4096))


def in_training(lab: Lab) -> Any:
    """Return a job that has a checkpoint."""
    job = lab.train(40, **SMALL)
    job.wait_for(12, timeout=60)
    return job


# Tests of ``lab`` come first: agents of ``training`` that were ended are replaced, which takes both cores while ``lab``
# is certified.
@pytest.mark.parametrize(
    ("script", "status", "verdict"),
    [
        ("exit 3", 3, "fail"),
        ("test $RANK != 1 || kill -SEGV $$", 139, "fail"),
        ("test $RANK != 1 || kill -KILL $$", 137, "unknown"),
    ],
)
@pytest.mark.alone
def test_a_launched_program(lab: Lab, command: Command, tmp_path: Path, script: str, status: int, verdict: str) -> None:
    assert lab.launch(["sh", "-c", script], directory=tmp_path).exit_status() == status
    (run,) = tmp_path.iterdir()
    said = command(f"report {run}")
    assert said.stdout.startswith(verdict)
    assert said.returncode == {"fail": 1, "unknown": 3}[verdict]


@pytest.mark.thorough
def test_a_launched_program_that_loses_its_power_is_explained(lab: Lab, tmp_path: Path) -> None:
    statuses: list[int] = []

    def launch() -> None:
        statuses.append(lab.launch(["sleep", "30"], directory=tmp_path).exit_status())

    thread = Thread(target=launch)
    thread.start()
    try:
        nodes = [ns(lab, node) for node in ("west-0", "west-1")]
        oracle.until(lambda: all(map(oracle.inside_pids, nodes)), 20.0, "it runs on all nodes that lose power")
        lab.inject("power-loss", "west")
        thread.join(60)
    finally:
        lab.heal()
    (run,) = tmp_path.iterdir()
    ends = read_json(run / "run.json")["workload"]["ends"]
    assert {(it["rank"], it["signal"], it["by_testbed"]) for it in ends} == {(2, 9, True), (3, 9, True)}


@pytest.mark.alone
def test_a_rank_shot_by_somebody_else_during_a_cut_leaves_the_verdict_open(training: Lab) -> None:
    job = in_training(training)
    with training.cut("north"):
        end_rank(training, "west-0")
        job.wait(90)
    report = training.report()
    assert report.training.steps_committed == 40, "it recovered"
    assert report.verdict == "unknown"
    assert "rank 2: SIGKILL, sender unknown." in report.sentences


def test_a_rank_that_the_testbed_kills_is_explained(training: Lab) -> None:
    job = in_training(training)
    training.inject("rank-kill", "2")
    job.wait(90)
    report = training.report()
    assert [event["by_testbed"] for event in recorded_events(training.run_directory.path, "rank-died")] == [True]
    assert not any(it.id.startswith("ended") for it in report.answers)


def test_a_rank_that_crashes_fails_the_run_though_it_recovered(training: Lab) -> None:
    job = in_training(training)
    end_rank(training, "east-1", signal.SIGSEGV)
    job.wait(90)
    report = training.report()
    assert report.training.steps_committed == 40
    assert report.verdict == "fail"


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, LabError), (signal.SIGABRT, JobFailed)])
def test_without_restarts_the_error_tells_too(training: Lab, number: signal.Signals, error: type[Exception]) -> None:
    job = training.train(1000, restarts=0, **SMALL)
    job.wait_for(5, timeout=60)
    end_rank(training, "west-1", number)
    with pytest.raises(error, match=rf"rank 3 on west-1 gone: .*{number.name}"):
        job.wait(60)


def test_the_end_of_a_run_is_written_on_a_full_disk(disk: Path) -> None:
    run = RunDirectory.create(disk, "full")
    run.write_json("run.json", {"status": "running"})
    run.reserve()
    fill(disk)
    long = "x" * 50_000
    for number in range(4):
        run.write_reserved("run.json", {"status": long, "number": number})
        fill(disk)  # whatever became free
        assert run.read_json("run.json") == {"status": long, "number": number}
    with pytest.raises(StorageError, match="No space"):
        run.write_reserved("run.json", {"status": long, "number": 4})
    assert run.read_json("run.json")["number"] == 3
    (disk / "ballast").unlink()
    run.free_reserve()
    run.write_reserved("run.json", {"status": "", "number": 5})
    assert not list(run.path.glob(".reserve*"))


@pytest.mark.alone
def test_a_full_disk_is_status_3_then_and_later(own: OwnLab, command: Command, disk: Path) -> None:
    pytest.importorskip("torch", reason="the training agents need torch")
    words = ("run", "metro-40km", "--name", own, "--runs", str(disk), "--steps", "4000", "--allow-uncertified")
    done: list[int] = []
    thread = Thread(target=lambda: done.append(command(*words, timeout_s=150.0).returncode))
    thread.start()
    logs = "*/ranks/rank-0.jsonl"  # its first records are of operations timed alone
    oracle.until(lambda: any('"step"' in it.read_text() for it in disk.glob(logs)), 100.0, "it trains")
    fill(disk)
    thread.join(150)
    assert done == [3]
    (run,) = disk.glob(f"{own}-*")
    info = read_json(run / "run.json")
    assert (info["status"], bool(info["unknown_because"])) == ("failed", True)
    (disk / "ballast").unlink()
    assert command(f"report {run}").returncode == 3
