"""Labs of real containers, through the user's verbs; the oracles are docker, ip and ping."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import argv_of, captured, run_line
from builders.conditions import ALONE
from builders.json_files import read_json, read_lines
from builders.labs import bring_up, launched
from contract.capture_contract import CaptureContract
from contract.lab_contract import FILE, Inside, LabContract
from contract.rank_faults_contract import RankFaultsContract, Space
from oracles import oracle

from testbed.errors import LabError, ProgramBarred
from testbed.lab.lab import Lab

pytestmark = ALONE

STEPS = 34
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 32, "checkpoint_every": 5}
"""A job that takes a few seconds."""


def docker(line: str, *arguments: object) -> str:
    return run_line(f"docker {line}", *arguments, timeout_s=60)


def inspected(container: str) -> dict[str, Any]:
    return json.loads(docker("inspect", container))[0]


@pytest.fixture(scope="module")
def lab(containers: str, tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Lab]:
    """Two sites of one node each, two fibers, agents ready."""
    path = tmp_path_factory.mktemp("t") / "two.yaml"
    path.write_text(FILE)
    with bring_up(topology=str(path), agents=True, driver="containerlab") as made:
        yield made
    assert docker("ps --all --quiet") == ""


def test_each_node_gateway_plant_and_management_is_a_container(lab: Lab) -> None:
    names = set(docker("ps --format {{.Names}}").split())
    nodes = ("east-0", "west-0", "east-gw", "west-gw", "plant", "mgmt")
    assert names == {f"clab-{lab.name}-{node}" for node in nodes}
    for name in names:
        host = inspected(name)["HostConfig"]
        assert host["Privileged"] is False
        assert {it.removeprefix("CAP_") for it in host["CapAdd"]} == {"NET_ADMIN"}
        assert host["NetworkMode"] == "none"
        assert host["RestartPolicy"]["Name"] in ("no", "")
    labels = inspected(f"clab-{lab.name}-east-0")["Config"]["Labels"]
    assert [labels[f"testbed.{key}"] for key in ("lab", "role", "site", "rank")] == [lab.name, "node", "east", "0"]


def test_nothing_of_it_is_on_the_hosts_own_network(lab: Lab) -> None:
    links = json.loads(run_line("ip -j link"))
    for link in links:
        assert not link["ifname"].startswith(("north", "south", "east", "west", "plant"))


def test_ranks_have_no_privileges(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    said = launched(lab, ["python", "-c", "import os; print(os.getuid())"], directory=tmp_path)
    assert said and all(line.split()[2] != "0" for line in said)
    for container in (f"clab-{lab.name}-east-0", f"clab-{lab.name}-west-0"):
        rows = [line.split(None, 2)[1:] for line in docker("top", container, "-o", "pid,uid,args").splitlines()[1:]]
        assert any("testbed_agents.fork_server" in words for _, words in rows)
        assert all(uid != "0" for uid, words in rows if "testbed_agents" in words)


def test_a_nodes_shared_memory_is_that_of_a_node_that_is_a_namespace(lab: Lab) -> None:
    """Half of the memory, as of every tmpfs of the host; docker's own 64 MiB are too few for PyTorch's data loaders."""
    size = "df --block-size=1K --output=size"
    fresh = ["unshare", "--mount", "sh", "-ec", f"mount -t tmpfs fresh /mnt && {size} /mnt"]
    usual = captured(fresh, check=True).stdout.split()[-1]
    node = f"clab-{lab.name}-east-0"
    assert docker(f"exec {node}", *size.split(), "/dev/shm").split()[-1] == usual
    docker(f"exec --user=1000 {node} dd if=/dev/zero of=/dev/shm/x bs=1M count=80")
    docker(f"exec {node} rm /dev/shm/x")
    (memory,) = (it for it in Path("/proc/meminfo").read_text().splitlines() if it.startswith("MemTotal:"))
    assert int(usual) == pytest.approx(int(memory.split()[1]) / 2, rel=0.01)
    assert docker(f"exec clab-{lab.name}-east-gw", *size.split(), "/dev/shm").split()[-1] == str(64 * 1024)


WRITES = ["python", "-c", "import os; open('written-' + os.environ['RANK'], 'w').close(); print(os.getuid())"]


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root's, as a checkout of root's is: others may read it."""
    folder = tmp_path / "work"
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SUDO_UID", raising=False)
    return folder


def test_a_program_runs_as_the_owner_of_its_working_folder_and_writes_there(
    lab: Lab, working_folder: Path, tmp_path: Path
) -> None:
    os.chown(working_folder, 4711, 4712)
    working_folder.chmod(0o700)
    said = launched(lab, WRITES, directory=tmp_path)
    assert sorted(said) == ["[rank 0] 4711", "[rank 1] 4711"]
    owners = {(it.name, it.stat().st_uid, it.stat().st_gid) for it in working_folder.iterdir()}
    assert owners == {("written-0", 4711, 4712), ("written-1", 4711, 4712)}
    account = ["python", "-c", "import getpass, pathlib; (pathlib.Path.home() / 'x').touch(); print(getpass.getuser())"]
    assert lab.launch(account, directory=tmp_path).exit_status() == 0, "the image has no account of this user"


REPORTS = """
import testbed_agents, time
for step in (1, 2, 3):
    time.sleep(0.1)
    testbed_agents.step(step, train_loss=1 / step, tokens=4)
"""


def test_a_program_reports_its_steps_from_inside(lab: Lab, working_folder: Path, tmp_path: Path) -> None:
    os.chown(working_folder, 4711, 4712)

    def times(runs: str, argv: list[str], **how: Any) -> list[float]:
        assert lab.launch(argv, directory=tmp_path / runs, **how).exit_status() == 0
        (records,) = (tmp_path / runs).glob("*/ranks/rank-1.jsonl")
        found = read_lines(records)
        assert [it.get("step") for it in found] == [None, 1, 2, 3]
        return [it["t"] for it in found[1:]]

    for runs, path in (("calls", {}), ("path", {"PYTHONPATH": "/nowhere"})):
        called = times(runs, ["python", "-c", REPORTS], environment=path)
        assert min(b - a for a, b in itertools.pairwise(called)) > 0.05
    slowly = "for i in 1 2 3; do echo step $i; sleep 0.2; done | cut -c 1-"
    printed = times("lines", ["sh", "-c", slowly], progress={"line": r"^step (?P<step>\d+)$"})
    assert min(b - a for a, b in itertools.pairwise(printed)) > 0.1, "cut(1) held them back until its end"


SAME = """
import os, pathlib, socket, subprocess, time
node, folder = os.environ["TESTBED_NODE"], pathlib.Path()
places = [pathlib.Path(it) for it in (os.environ["TESTBED_SCRATCH"], os.environ["TMPDIR"], "/tmp", pathlib.Path.home())]
for place in places:
    (place / "same").write_text(node)
(folder / f"wrote-{node}").touch()
until = time.monotonic() + 20
while len(list(folder.glob("wrote-*"))) < 2 and time.monotonic() < until:
    time.sleep(0.02)
print(*((place / "same").read_text() for place in places))
print(subprocess.check_output(["stat", "-f", "-c", "%T", places[0], places[1], "/"], text=True).split())
"""


def test_each_node_has_scratch_of_its_own_on_the_hosts_disk(lab: Lab, working_folder: Path, tmp_path: Path) -> None:
    os.chown(working_folder, 4711, 4712)
    for kept in (False, True):
        notes: list[str] = []
        argv = ["python", "-c", SAME]
        said = launched(lab, argv, directory=tmp_path, note=notes.append, keep_scratch=kept)
        assert notes == [], "/tmp is the container's own, and all can be written"
        assert {"[rank 0] " + " ".join(["east-0"] * 4), "[rank 1] " + " ".join(["west-0"] * 4)} <= set(said)
        for kinds in (it.partition("] ")[2].strip("[]'").split("', '") for it in said if "[" in it.partition("] ")[2]):
            assert kinds[0] == kinds[1] != kinds[2] == "overlayfs", "not in the container's layer"
        scratch = read_json(lab.run_directory.path / "run.json")["workload"]["scratch"]
        assert set(scratch["folders"]) == {"east-0", "west-0"}
        for node, folder in scratch["folders"].items():
            assert Path(folder, "same").read_text() == node
            assert Path(folder).stat().st_mode & 0o777 == 0o700
            assert (Path(folder) == lab.run_directory.path / "scratch" / node) == kept
        for path in working_folder.iterdir():
            path.unlink()


def test_ranks_have_scratch_too(lab: Lab) -> None:
    (top,) = Path("/var/tmp").glob(f"testbed-{lab.name}-*")
    for node in ("east-0", "west-0"):
        inside = docker(
            f"exec --user=1000 clab-{lab.name}-{node} sh -c", f"ls -d {top}/*-1000; echo x > {top}/{node}-1000/x"
        )
        assert inside.split() == [f"{top}/{node}-1000"], "its own, and no other's"
        assert (top / f"{node}-1000" / "x").read_text() == "x\n"


def test_a_working_folder_that_programs_cannot_write_is_refused_before_the_start(
    lab: Lab, working_folder: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(ProgramBarred) as refused:
        lab.launch(WRITES, directory=runs).exit_status()
    assert str(refused.value) == (
        "programs in containers run as uid 1000 (the image's own), who cannot write in the current folder,"
        f" {working_folder}; give it to this user (chown 1000 {working_folder}), start from another folder, or add"
        " --read-only if your program writes nothing there"
    )
    assert not runs.exists()
    assert list(working_folder.iterdir()) == []
    said = launched(lab, ["pwd"], directory=runs, read_only=True)
    assert sorted(said) == [f"[rank {rank}] {working_folder}" for rank in (0, 1)]
    os.chown(working_folder, 1000, 1000)
    assert lab.launch(WRITES, directory=runs).exit_status() == 0, "what the message says helps"


def test_a_file_that_programs_cannot_read_is_refused_before_the_start(
    lab: Lab, working_folder: Path, tmp_path: Path
) -> None:
    os.chown(working_folder, 4711, 4712)
    (working_folder / "train.py").touch(0o600)
    with pytest.raises(ProgramBarred, match=rf"run as uid 4711 \(.*\), who cannot use {working_folder}/train.py"):
        lab.launch(["python", "train.py"], directory=tmp_path).exit_status()


def test_folders_below_roots_home_are_reached(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The image's own /root bars everybody else."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    with tempfile.TemporaryDirectory(dir="/root", prefix="testbed-test-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "work").mkdir()
        os.chown(folder / "work", 4711, 4712)
        monkeypatch.chdir(folder / "work")
        assert lab.launch(WRITES, directory=folder / "runs").exit_status() == 0
        monkeypatch.setenv("TESTBED_RUNS", str(folder / "more-runs"))
        lab.train(steps=2, layers=2, heads=2, width=32).wait(60)
        assert lab.report().training.steps_committed == 2
        lab.open_run(tmp_path)  # the folder of the latest run goes
        monkeypatch.chdir("/")


def test_exec_is_inside(lab: Lab) -> None:
    assert lab.exec("east-gw", ["test", "-e", "/.dockerenv"]) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_exec_runs_ends_with_exec(lab: Lab, number: signal.Signals) -> None:
    def there() -> bool:
        return any("sleep 4711" in line and "watchdog" not in line for line in docker("top", container).splitlines())

    container = f"clab-{lab.name}-west-gw"
    words = argv_of(f"exec -l {lab.name} west-gw -- sleep 4711")
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as visit:
        oracle.until(there, 30.0, "the program runs")
        visit.send_signal(number)
        visit.wait(20)
    oracle.until(lambda: not there(), 20.0, "it ends")


def test_a_paused_container_is_seen_and_holds_nobody(lab: Lab) -> None:
    container = f"clab-{lab.name}-west-0"
    docker("pause", container)
    try:
        said = f"the container of west-0 is paused; resume it with: docker unpause {container}"
        assert lab.status().state == "degraded"
        assert said in lab.status().why
        with pytest.raises(LabError, match="is paused"):
            lab.exec("west-0", ["true"])
    finally:
        docker("unpause", container)
    assert lab.status().why == ()
    assert lab.exec("west-0", ["true"]) == 0


def records(lab: Lab, rank: int) -> list[dict[str, Any]]:
    return read_lines(lab.run_directory.ranks / f"rank-{rank}.jsonl")


@pytest.mark.thorough
def test_a_job_comes_through_all_that_ends_an_attempt(lab: Lab) -> None:
    """One job: a rank is killed, a node loses its power, all fibers are cut for longer than the timeout, a site is
    evacuated. It comes to the same parameters as one that nothing happened to."""
    lab.train(STEPS, **SMALL).wait(60)
    undisturbed = records(lab, 0)[-1]["parameters_sha256"]

    job = lab.train(STEPS, **SMALL, restarts=3, timeout_s=1.5)

    def waits_for(step: int, attempt: int) -> None:
        oracle.until(lambda: (job.attempt == attempt and job.step >= step) or job.over(), 60.0, f"attempt {attempt}")
        assert job.failure() == ""

    waits_for(8, 1)
    lab.inject("rank-kill", "1")
    waits_for(14, 2)
    with lab.inject("node-kill", "east-0"):
        oracle.until(lambda: job.waiting == "a fault keeps rank 0 down", 20.0, "the restart waits for the power")
    waits_for(20, 3)
    with lab.cut("north"), lab.cut("south"):
        oracle.until(lambda: "not connected" in job.waiting, 20.0, "the restart waits for a fiber")
    waits_for(26, 4)
    with lab.inject("evacuation", "west", warning="2s"):
        oracle.until(lambda: job.waiting, 2.0, "it is over before the power goes")
        oracle.until(lambda: job.waiting == "a fault keeps rank 1 down", 10.0, "the power is gone")
    job.wait(60)

    ends = [records(lab, rank)[-1] for rank in (0, 1)]
    assert [(it["attempt"], it["status"], it["parameters_sha256"]) for it in ends] == [(5, "ok", undisturbed)] * 2
    report = lab.report()
    assert [(it.cause, it.in_order) for it in report.attempts[:4]] == [
        ("rank-kill 1", False),
        ("node-kill east-0", False),
        ("cut south", False),
        ("evacuation west", True),
    ]
    assert [it.resumed_from % 5 for it in report.attempts[:4]] == [0, 0, 0, 0], "from checkpoints"
    assert all(it.resumed_from > 0 for it in report.attempts[1:]), "from none that is the beginning"
    assert report.attempts[3].steps_lost == 0
    assert report.training.steps_committed == STEPS
    assert report.wire.ok
    # A cut for longer than the timeout is a hang.
    assert [it.id for it in report.checkers if not it.holds] == ["hangs"], report.checkers


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return lambda node, *argv: docker(f"exec clab-{lab.name}-{node}", *argv)


class TestContainers(LabContract, CaptureContract):
    driver = "containerlab"


@pytest.fixture(scope="module")
def space(lab: Lab) -> Space:
    return lambda node: f"clab-{lab.name}-{node}"


class TestRankFaultsInContainers(RankFaultsContract):
    pass
