"""Launchers that people use: an MPI's mpiexec, one program per node, remote starts from nodes, and ssh."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import captured
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import NODES, Lab, address_of, counters, run_in
from oracles import oracle

from testbed.errors import MissingTool, UserError
from testbed.host import lab_folder

pytestmark = LABS

BOUND_S = 60.0
MEGABYTE = 1 << 20
UID = 60_700

FAKE_HYDRA = """#!/bin/bash
# Starts ranks as hydra does: by the agent in place of ssh, a daemon on each host, which sets PMI_RANK.
[ "$1" = --version ] && { echo "HYDRA build details:    Version:   9.9"; exit 0; }
while [ $# -gt 0 ]; do
    case $1 in
        -launcher-exec) agent=$2; shift 2 ;;
        -hosts) hosts=${2//,/ }; shift 2 ;;
        -ppn) each=$2; shift 2 ;;
        -genvlist) shift 2; break ;;
        *) shift 2 ;;
    esac
done
rank=0
for host in $hosts; do
    line=
    for ((i = 0; i < each; i++)); do line+="PMI_RANK=$rank ${*@Q} & pids=\\"\\$pids \\$!\\"; "; rank=$((rank + 1)); done
    "$agent" "$host" "$line worst=0; for it in \\$pids; do wait \\$it || worst=\\$?; done; exit \\$worst" &
    daemons="$daemons $!"
done
worst=0
for it in $daemons; do wait "$it" || worst=$?; done
echo "launcher ends with $worst" >&2
exit $worst
"""

PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, bytes = 2 << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *room = calloc(1, bytes);
    if (rank == 0) MPI_Send(room, bytes, MPI_CHAR, size - 1, 1, MPI_COMM_WORLD);
    if (rank == size - 1) MPI_Recv(room, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("%d of %d, RANK %s on %s\n", rank, size, getenv("RANK"), getenv("TESTBED_NODE"));
    MPI_Finalize();
    return rank == 1 ? atoi(argv[1]) : 0;
}
"""


def crossed(lab: Lab) -> int:
    """Return the bytes that have crossed any fiber."""
    return sum(direction["bytes"] for direction in counters(lab).values())


def is_running(mark: str) -> bool:
    return any(mark in " ".join(words) for _, words, _ in oracle.processes())


@pytest.fixture
def fake_hydra(folder: Path) -> dict[str, Any]:
    """Provide the options of a launch by a launcher that starts ranks as hydra does."""
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(FAKE_HYDRA)
    mpiexec.chmod(0o755)
    return {"start": "mpi", "mpiexec": str(mpiexec)}


def launched(lab: Lab, folder: Path, argv: list[str], **how: object) -> tuple[int, list[str]]:
    said: list[str] = []
    job = lab.launch(argv, directory=folder / "runs", echo=said.append, **how)  # type: ignore[arg-type]
    return job.exit_status(BOUND_S), said


def first(lab: Lab, folder: Path, script: str) -> list[str]:
    """Run a shell script in the first node; return what it said."""
    status, said = launched(lab, folder, ["sh", "-c", f'[ "$RANK" = 0 ] || exit 0\n{script}'])
    assert status == 0, said
    return [it.removeprefix("[rank 0] ") for it in said if it.startswith("[rank 0]")]


# ---- remote starts


def test_a_program_starts_others_in_other_nodes_as_itself(lab: Lab, folder: Path) -> None:
    script = """
    "$TESTBED_RSH" west-1 'hostname; id -u; echo $TESTBED_NODE $TESTBED_SITE'; echo status $?
    echo through stdin | "$TESTBED_RSH" west-1.mgmt cat
    "$TESTBED_RSH" 10.2.1.1 'hostname; exit 5'; echo status $?
    "$TESTBED_RSH" east-1 'grep ^CapBnd /proc/self/status; grep ^NoNewPrivs /proc/self/status'
    """
    assert first(lab, folder, script) == [
        *("west-1", str(UID), "west-1 west", "status 0", "through stdin", "west-0", "status 5"),
        *("CapBnd:\t0000000000000000", "NoNewPrivs:\t1"),
    ]


def test_it_starts_nothing_elsewhere_and_as_nobody_else(lab: Lab, folder: Path) -> None:
    script = """exec 2>&1
    "$TESTBED_RSH" east-gw id; echo status $?
    "$TESTBED_RSH" plant id; echo status $?
    "$TESTBED_RSH" -l 0 west-1 id; echo status $?
    "$TESTBED_RSH" root@west-1 id; echo status $?
    """
    said = first(lab, folder, script)
    assert said[1::2] == ["status 255"] * 4
    assert ["unknown host east-gw" in said[0], "unknown host plant" in said[2]] == [True, True]
    wanted = f"programs start as the user who asks: expected uid {UID}, got"
    assert [f"{wanted} 0" in said[4], f"{wanted} root" in said[6]] == [True, True]


def test_who_is_not_in_the_lab_is_refused(lab: Lab, folder: Path) -> None:
    (program,) = first(lab, folder, 'echo "$TESTBED_RSH"')
    stranger = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", program, "east-0", "id"]
    done = captured(stranger, timeout=BOUND_S)
    assert (done.returncode, done.stdout) == (255, "")
    assert f"it is not in lab {lab.name}" in done.stderr
    # Not in a namespace of its own either, though that is no host's.
    done = captured(["unshare", "--net", *stranger], timeout=BOUND_S)
    assert (done.returncode, done.stdout) == (255, "")


def test_what_it_started_ends_with_it(lab: Lab, folder: Path) -> None:
    mark = f"1{folder.stat().st_ino}"  # a unique sleep time
    script = f'"$TESTBED_RSH" west-1 "sleep {mark}" & until "$TESTBED_RSH" west-1 "pgrep -f [s]leep.{mark}" >/dev/null;'
    assert first(lab, folder, f"{script} do sleep 0.1; done; echo runs; kill $!") == ["runs"]
    oracle.until(lambda: not is_running(mark), 20, "it ends")


# ---- ssh


@pytest.fixture
def ssh(lab: Lab, folder: Path) -> Iterator[list[str]]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    if shutil.which("sshd", path=path) is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH's server or client is not installed: apt-get install openssh-server openssh-client")
    file = folder / "ssh_config"
    file.write_text(lab.ssh_config())
    yield ["ssh", "-F", str(file)]


def test_plain_ssh_reaches_nodes_over_no_fiber(lab: Lab, ssh: list[str]) -> None:
    done = captured([*ssh, "west-1", "hostname; id -u; id -un; exit 7"], timeout=BOUND_S)
    assert (done.stdout.split(), done.returncode) == (["west-1", str(UID), "testbed"], 7), done.stderr
    before = crossed(lab)
    sent = subprocess.run([*ssh, "west-0", "wc -c"], input=bytes(4 * MEGABYTE), capture_output=True, timeout=BOUND_S)
    assert int(sent.stdout) == 4 * MEGABYTE, sent.stderr
    assert crossed(lab) - before < MEGABYTE / 10


def test_a_terminal_over_ssh(lab: Lab, ssh: list[str]) -> None:
    done = captured([*ssh, "-tt", "east-1", "tty; exit 4"], timeout=BOUND_S)
    assert (done.stdout.strip()[:9], done.returncode) == ("/dev/pts/", 4), done.stderr


def test_programs_in_nodes_use_it_too(lab: Lab, ssh: list[str], folder: Path) -> None:
    assert first(lab, folder, f"{' '.join(ssh)} west-0 hostname") == ["west-0"]


def test_nothing_listens_and_keys_are_the_users_alone(lab: Lab, ssh: list[str]) -> None:
    text = Path(ssh[-1]).read_text().split()
    key = Path(text[text.index("IdentityFile") + 1])
    for path in (key, key.with_name("host_ed25519")):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o600, UID)
    assert (stat.S_IMODE(key.parent.stat().st_mode), key.parent.stat().st_uid) == (0o711, 0)
    for node in ("east-0", "west-1", "mgmt"):
        listening = run_in(lab, node, "ss -Hltn").split("\n")
        assert not [line for line in listening if ":22 " in line]


def test_without_sshd_it_says_what_to_install(lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "sshd" else f"/usr/bin/{name}")
    with pytest.raises(MissingTool, match=r"sshd.*openssh-server") as told:
        lab.ssh_config()
    assert told.value.exit_code == 3


# ---- one program per node


def test_one_program_per_node_with_what_torchrun_needs(lab: Lab, folder: Path) -> None:
    words = "$PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE $PET_MASTER_ADDR $TESTBED_NODES $TESTBED_NODE_RANK"
    script = f'echo {words} ${{RANK-none}}; [ "$PET_MASTER_PORT" = "$MASTER_PORT" ]'
    status, said = launched(lab, folder, ["sh", "-c", script], start="per-node", ranks_per_node=2)
    assert status == 0
    master = address_of(lab, "east-0")
    assert sorted(said) == [f"[{node}] 4 {n} 2 {master} 4 {n} none" for n, node in enumerate(NODES)]


def test_a_rank_of_a_fault_is_the_program_of_its_node(lab: Lab, folder: Path) -> None:
    """What the program starts itself is not known to the testbed one by one."""
    said: list[str] = []
    script = ["sh", "-c", "echo runs; exec sleep 1000"]
    job = lab.launch(script, start="per-node", ranks_per_node=2, directory=folder / "runs", echo=said.append)
    try:
        oracle.until(lambda: len(said) == 4, BOUND_S, "every program runs")
        with lab.inject("rank-kill", "west-1"):
            assert job.exit_status(BOUND_S) == 137
    finally:
        job.stop()
    (path,) = (folder / "runs").glob("*/run.json")
    (end,) = read_json(path)["workload"]["ends"]
    assert (end["rank"], end["signal"], end["by_testbed"]) == (3, 9, True)


TORCHRUN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(f"sum {int(one)} on {os.environ['TESTBED_NODE']}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_torchrun_itself_over_two_nodes_a_site(lab: Lab, folder: Path) -> None:
    pytest.importorskip("torch")
    import sys

    (folder / "ranks.py").write_text(TORCHRUN)
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "ranks.py"]
    status, said = launched(lab, folder, argv, start="per-node")
    assert status == 0, said
    for node in NODES:
        assert " ".join(said).count(f"sum 8 on {node}") == 2
    assert not [it for it in said if "hostname" in it], "torch looks up who connects"


# ---- MPI


def test_an_mpiexec_starts_each_rank_in_its_place_and_tells_how_each_ended(
    lab: Lab, folder: Path, fake_hydra: dict[str, Any]
) -> None:
    """With a launcher that starts ranks as hydra does; real ones are below, where they are installed."""
    script = 'echo $RANK $LOCAL_RANK $WORLD_SIZE $(hostname) $UCX_TLS $UCX_NET_DEVICES; [ "$RANK" != 5 ] || exit 3'
    status, said = launched(lab, folder, ["sh", "-c", script], ranks_per_node=2, **fake_hydra)
    assert status == 3, said
    for rank in range(8):
        line = f"{rank} {rank % 2} 8 {NODES[rank // 2]} tcp,self fabric0"
        assert f"[rank {rank}] {line}" in said
        (log,) = folder.glob(f"runs/*/ranks/rank-{rank}.log")
        assert log.read_text() == f"{line}\n"
    assert "[mpiexec] launcher ends with 3" in said
    (run,) = folder.glob("runs/*/run.json")
    workload = read_json(run)["workload"]
    assert workload["statuses"] == [0, 0, 0, 0, 0, 3, 0, 0]
    assert (workload["start"], workload["mpi"]) == ("mpi", "MPICH 9.9")
    scratch = Path(lab_folder.folder(lab.name).scratch.read_text())
    assert (scratch / "rsh" / "reach").exists() and not list(scratch.glob("mpi-*")), "FIFOs are gone"


def test_a_stopped_mpi_job_leaves_nothing_behind(lab: Lab, folder: Path, fake_hydra: dict[str, Any]) -> None:
    mark = f"2{folder.stat().st_ino}"
    said: list[str] = []
    argv = ["sh", "-c", f"echo begins; exec sleep {mark}"]
    job = lab.launch(argv, directory=folder / "runs", echo=said.append, **fake_hydra)
    oracle.until(lambda: said.count("[rank 3] begins") == 1 and len(said) == 4, BOUND_S, "all ranks begin")
    job.stop()
    oracle.until(lambda: not is_running(mark), 20, "ranks end")


def test_what_is_no_mpiexec_is_refused(lab: Lab, folder: Path) -> None:
    with pytest.raises(UserError, match="expected the mpiexec of MPICH or Open MPI"):
        launched(lab, folder, ["true"], start="mpi", mpiexec="/bin/true")


@pytest.mark.parametrize(
    ("compiler", "mpiexec"), [("mpicc.openmpi", "mpirun.openmpi"), ("mpicc.mpich", "mpiexec.mpich")]
)
def test_a_real_mpi_sends_its_bytes_through_the_fibers(lab: Lab, folder: Path, compiler: str, mpiexec: str) -> None:
    if lacking := [program for program in (compiler, mpiexec, "gcc") if shutil.which(program) is None]:
        pytest.skip(
            f"not installed: {', '.join(lacking)}: apt-get install gcc libopenmpi-dev openmpi-bin (the latter two by "
            "make test), or libmpich-dev of Debian 13 or newer: that of Debian 12 hangs (pmodels/mpich#6596)"
        )
    if compiler == "mpicc.mpich" and "4.0" in oracle.run(mpiexec, "--version"):
        pytest.skip("MPICH before 4.2 hangs in MPI_Finalize over TCP: pmodels/mpich#6596")
    (folder / "send.c").write_text(PROGRAM)
    oracle.run(compiler, "-o", str(folder / "send"), str(folder / "send.c"))
    before = crossed(lab)
    status, said = launched(lab, folder, ["./send", "3"], start="mpi")  # which MPI it is, the program tells
    assert status == 3, said
    for rank, node in enumerate(NODES):
        assert f"[rank {rank}] {rank} of 4, RANK {rank} on {node}" in said
    assert crossed(lab) - before > 2 * MEGABYTE
