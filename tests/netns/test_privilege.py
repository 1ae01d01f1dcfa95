"""Ranks, launched programs and libraries in namespaces have no privileges, and change nothing of what is recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Command, argv_of, check_refused
from builders.conditions import LABS, is_reachable
from builders.json_files import read_json
from builders.labs import Lab, launched, processes_in, shared_lab
from builders.proc import status_of, until_gone
from oracles import oracle

import testbed
from testbed.errors import UserError
from testbed.host import collective_libraries, lab_folder
from testbed.host.linux import program_user
from testbed.keeper import client
from testbed.lab.validation.worker_set import WorkerSet

pytestmark = LABS

HOSTILE = Path(__file__).with_name("hostile_program.py")
BOUND_S = 20.0
CALLER = (4242, 4343)
"""A user without an account, as whoever called sudo."""


needs_python = pytest.mark.skipif(
    not is_reachable(sys.executable, HOSTILE),
    reason="this Python is in a folder that only root may enter; make test installs another",
)


def call_by_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in zip(("SUDO_UID", "SUDO_GID"), CALLER, strict=True):
        monkeypatch.setenv(name, str(number))


@pytest.fixture(scope="module", autouse=True)
def without_sudo() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SUDO_UID", "SUDO_GID", program_user.VARIABLE):
            patch.delenv(name, raising=False)
        yield


trained = shared_lab(agents=True)


def assert_unprivileged(status: dict[str, str], uid: int, gid: int) -> None:
    assert status["Uid"].split() == [str(uid)] * 4
    assert status["Gid"].split() == [str(gid)] * 4
    assert set(status["Groups"].split()) <= {str(gid)}
    assert {key: int(value, 16) for key, value in status.items() if key.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert status["NoNewPrivs"] == "1"


@needs_python
@pytest.mark.parametrize("whose", ["the testbed's own", "SUDO_UID", "the owner of the folder"])
def test_a_hostile_program_changes_nothing(
    trained: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    (folder := tmp_path / "work").mkdir(mode=0o755)
    uid, gid = CALLER
    if whose == "SUDO_UID":
        call_by_sudo(monkeypatch)
    elif whose == "the owner of the folder":
        os.chown(folder, *CALLER)
    else:
        uid = gid = program_user.OWN_UID
    monkeypatch.chdir(folder)
    set_uid = shutil.copy(shutil.which("id") or "", tmp_path / "id")
    os.chmod(set_uid, 0o4755)  # noqa: PTH101
    state = lab_folder.folder(trained.name)
    keeper = client.keeper(state).hello()["pid"]
    hostname = Path("/etc/hostname").read_bytes(), os.stat("/etc/hostname").st_uid  # noqa: PTH116
    argv = [sys.executable, str(HOSTILE), str(state.path), str(keeper), str(os.getpid()), str(set_uid)]
    said = launched(trained, argv, directory=tmp_path / "runs")
    answers = [json.loads(line.partition("] ")[2]) for line in said]
    assert len(answers) == 4
    for answer in answers:
        assert {name for name, how in answer["refused"].items() if how == "done"} == set()
        assert {name: how for name, how in answer["allowed"].items() if how != "done"} == {}
        assert_unprivileged(answer["status"], uid, gid)
        assert answer["user"] == [uid, uid, gid, *answer["user"][3:]]
        assert answer["pdeathsig"] == signal.SIGKILL
        assert sorted(answer["descriptors"]) == ["0", "1", "2"]
        assert answer["descriptors"]["0"] == "/dev/null"
        assert {answer["descriptors"][it].partition(":")[0] for it in "12"} == {"pipe"}
        assert answer["environment"]["USER"] == "testbed"
        assert answer["environment"]["TMPDIR"].startswith(f"/var/tmp/testbed-{trained.name}-")
        assert answer["folder"] == str(folder)
    assert len({answer["environment"]["TMPDIR"] for answer in answers}) == 4
    # Afterwards the run belongs to whoever called sudo; links and second names lead to no file of the host's.
    run = trained.run_directory.path
    owner = CALLER if whose == "SUDO_UID" else (0, 0)
    for name in ("run.json", "metrics.jsonl", "ranks/rank-0.log", "ranks/rank-0"):
        found = (run / name).stat()
        assert (found.st_uid, found.st_gid) == owner, name
    assert (run / "ranks" / "rank-0" / "link").is_symlink()
    assert (Path("/etc/hostname").read_bytes(), os.stat("/etc/hostname").st_uid) == hostname  # noqa: PTH116
    assert read_json(run / "run.json")["program_user"]["uid"] == uid


@needs_python
def test_while_a_program_runs_the_run_belongs_to_root(
    trained: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_by_sudo(monkeypatch)
    owners: dict[str, int] = {}

    def look(line: str) -> None:
        (run,) = (tmp_path / "runs").iterdir()
        for path in (run, run / "run.json", run / "ranks", run / "ranks" / "rank-0.log", run / "ranks" / "rank-0"):
            owners[path.name] = path.stat().st_uid

    assert trained.launch(["echo", "here"], directory=tmp_path / "runs", echo=look).exit_status() == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert owners == {run.name: 0, "run.json": 0, "ranks": 0, "rank-0.log": 0, "rank-0": CALLER[0]}
    assert run.stat().st_uid == CALLER[0]


def test_as_root_a_program_is_root(trained: Lab, tmp_path: Path) -> None:
    said = launched(trained, ["id", "-u"], directory=tmp_path, as_root=True)
    assert sorted(said) == [f"[rank {rank}] 0" for rank in range(4)]


def test_a_program_ends_with_the_command_that_launched_it(trained: Lab, tmp_path: Path) -> None:
    words = argv_of(f"launch -l {trained.name} --allow-uncertified")
    words += ["--runs", str(tmp_path), "--", "sh", "-c", 'echo "pid $$"; exec sleep 1000']
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        pids = [int(command.stdout.readline().split()[-1]) for _ in range(4)]
        assert all(status_of(pid)["Uid"].split()[0] == str(program_user.OWN_UID) for pid in pids)
        command.kill()
        until_gone(*pids)


@needs_python
def test_ranks_have_no_privileges_and_a_restart_gives_them_none(trained: Lab) -> None:
    nodes = trained.topology.node_names
    for node in nodes:  # while they wait for a job
        for pid in processes_in(trained, node):
            assert_unprivileged(status_of(pid), program_user.OWN_UID, program_user.OWN_UID)
    job = trained.train(steps=4000, checkpoint_every=10)
    ranks = trained.run_directory.ranks
    for attempt in (1, 2):
        oracle.until(lambda n=attempt: job.attempt == n, 60.0, f"attempt {attempt} runs")  # type: ignore[misc]
        job.wait_for(job.step + 25, 120.0)
        pids = {node: processes_in(trained, node) for node in nodes}
        for rank, node in enumerate(nodes):
            (pid,) = pids[node]
            assert_unprivileged(status_of(pid), program_user.OWN_UID, program_user.OWN_UID)
            held = {str(it.readlink()) for it in Path(f"/proc/{pid}/fd").iterdir()}
            checkpoints = str(ranks / "checkpoints" / f"rank-{rank}")  # one may be written just now
            files = {it for it in held if it.startswith("/") and it != "/dev/null" and not it.startswith(checkpoints)}
            board = str(ranks / "checkpoints" / "rank-0" / f"board.a{attempt}")  # all ranks map it; its name is removed
            own = {str(ranks / f"rank-{rank}{end}") for end in (".jsonl", ".checks.jsonl", ".log")}
            counters = f"/proc/{pid}/net/dev"  # of its own namespace; any program may read them
            assert {it.removesuffix(" (deleted)") for it in files} <= {*own, board, counters}
        assert (ranks / "checkpoints" / "rank-0").stat().st_uid == program_user.OWN_UID
        for path in (ranks, ranks / "attempt", ranks / "checkpoints", ranks.parent / "run.json"):
            assert path.stat().st_uid == 0, path
        if attempt == 1:
            os.kill(pids[nodes[-1]][0], signal.SIGKILL)
    job.stop()
    oracle.until(job.over, BOUND_S, "the job is over")


@needs_python
def test_ranks_end_with_the_fork_server(trained: Lab) -> None:
    if not processes_in(trained, "east-0"):
        trained.train(steps=1).wait()
    (pid,) = processes_in(trained, "east-0")
    server = int(status_of(pid)["PPid"])
    assert status_of(server)["Uid"].split()[0] == "0"
    others = [it for node in trained.topology.node_names for it in processes_in(trained, node)]
    os.kill(server, signal.SIGKILL)
    until_gone(*others)


@needs_python
def test_libraries_have_no_privileges(lab: Lab, tmp_path: Path) -> None:
    workers = WorkerSet(lab_folder.folder(lab.name), lab.topology, collective_libraries.find("ring"), tmp_path / "ring")
    try:
        assert not workers.join(60.0).trouble
        for node in lab.topology.node_names:
            (pid,) = processes_in(lab, node)
            assert_unprivileged(status_of(pid), program_user.OWN_UID, program_user.OWN_UID)
        assert (tmp_path / "ring").stat().st_uid == 0
        assert (tmp_path / "ring" / "outputs").stat().st_uid == program_user.OWN_UID
    finally:
        workers.kill()


# ---- refusals, before anything starts


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (folder := tmp_path / "secret").mkdir(mode=0o700)
    (folder / "train.sh").write_text("#!/bin/sh\necho trained\n")
    (folder / "train.sh").chmod(0o755)
    return folder


@pytest.mark.parametrize("argv", [["{}/train.sh"], ["sh", "{}/train.sh"]])
def test_a_program_that_its_user_cannot_read_is_refused(
    lab: Lab, command: Command, tmp_path: Path, secret: Path, argv: list[str]
) -> None:
    words = [it.format(secret) for it in argv]
    launch = ("launch", "-l", lab.name, "--allow-uncertified")
    check_refused(command(*launch, "--runs", str(tmp_path / "runs"), "--", *words), 2, str(secret), "launch --as-root")
    assert not list((tmp_path / "runs").glob("*"))
    done = command(*launch, "--runs", str(tmp_path / "runs"), "--as-root", "--", *words)
    assert (done.returncode, done.stdout.count("trained")) == (0, 4), done.stderr


def test_a_folder_that_programs_cannot_write_is_refused(lab: Lab, command: Command, secret: Path) -> None:
    check_refused(
        command(f"launch -l {lab.name} --allow-uncertified --runs {secret}/runs -- true"),
        2,
        str(secret),
        "launch --as-root",
    )


def test_a_run_whose_ranks_could_not_write_is_refused_before_a_lab_is_built(
    command: Command, secret: Path, lab_name: str
) -> None:
    began = time.monotonic()
    done = command(f"run metro-40km --name {lab_name} --runs {secret}/runs")
    check_refused(done, 2, str(secret if is_reachable(sys.executable, HOSTILE) else ""))
    assert "namespaces:" not in done.stderr, time.monotonic() - began


def test_state_that_programs_could_move_away_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lab_name: str
) -> None:
    (home := tmp_path / "home").mkdir()
    os.chown(home, *CALLER)
    call_by_sudo(monkeypatch)
    (home / "state").mkdir()
    monkeypatch.setenv("TESTBED_STATE", str(home / "state"))
    with pytest.raises(UserError, match=f"can rename {home}/state"):
        testbed.up("metro-40km", name=lab_name, agents=False)
