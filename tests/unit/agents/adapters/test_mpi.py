"""MPI's own launchers start the rank programs with a replacement for ssh; the ranks need nothing else to connect."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.rank_programs import PYTHON_PATH, decoded, expected
from oracles import oracle

from testbed.core.validation.library import Launcher
from testbed.core.validation.shipped_libraries import SHIPPED
from testbed.core.workload.mpi_launch import mpiexec_argv

PROGRAMS = Path(sys.executable).parent
HOSTS = ["10.77.0.1", "10.77.0.2"]

AGENT = """#!/bin/sh
[ "$1" = -x ] && shift
case $1 in {first}) node={nodes[0]} ;; *) node={nodes[1]} ;; esac
shift
exec ip netns exec $node sh -c "$*"
"""


def command(launcher: Launcher) -> tuple[str, ...]:
    return mpiexec_argv(
        launcher,
        programs="/opt/bin",
        hosts=["172.31.0.3", "172.31.0.4"],
        interface="mgmt",
        network="172.31.0.0/16",
        agent="/run/agent",
        program=["python", "-m", "ranks"],
        pass_on=["PATH", "TESTBED_LINES"],
    )


@pytest.mark.parametrize("launcher", ["mpich", "openmpi"])
def test_the_program_is_last_and_hosts_are_in_the_order_of_ranks(launcher: Launcher) -> None:
    argv = command(launcher)
    assert argv[0].startswith("/opt/bin/") and argv[-3:] == ("python", "-m", "ranks")
    hosts = argv[argv.index("--host" if launcher == "openmpi" else "-hosts") + 1]
    assert [it.split(":")[0] for it in hosts.split(",")] == ["172.31.0.3", "172.31.0.4"]
    assert argv[argv.index("-n") + 1] == "2"
    assert "/run/agent" in argv
    for name in ("PATH", "TESTBED_LINES"):
        assert any(name in it.split(",") for it in argv)


def test_no_daemon_starts_another_one() -> None:
    """Above 64 hosts Open MPI's would (PRRTE, plm_ssh_component.c); MPICH's hydra starts all by itself."""
    argv = command("openmpi")
    assert argv[argv.index("plm_ssh_no_tree_spawn") - 1 : argv.index("plm_ssh_no_tree_spawn") + 2] == (
        "--prtemca",
        "plm_ssh_no_tree_spawn",
        "1",
    )


def test_what_the_testbed_starts_itself_has_no_launcher() -> None:
    with pytest.raises(ValueError, match="direct"):
        command("direct")


@pytest.fixture(params=["mpich", "openmpi"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    library = SHIPPED[request.param]
    lacking = [name for name in library.modules if importlib.util.find_spec(name) is None]
    lacking += [name for name in library.programs if not (PROGRAMS / name).exists()]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed: {library.install}")
    return library.launcher


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Two namespaces, joined by a cable: UCX does not work on the loopback interface."""
    names = [f"mpi{os.getpid()}-{rank}" for rank in (0, 1)]
    try:
        for name in names:
            oracle.run("ip", "netns", "add", name)
        # With equal numbers on both ends the carrier may come a second late, and UCX wants it.
        one, other = ["fab", "index", "77", "netns", names[0]], ["fab", "netns", names[1]]
        oracle.run("ip", "link", "add", *one, "type", "veth", "peer", "name", *other)
        for name, host in zip(names, HOSTS, strict=True):
            oracle.run("ip", "-n", name, "address", "add", f"{host}/24", "dev", "fab")
            for interface in ("lo", "fab"):
                oracle.run("ip", "-n", name, "link", "set", interface, "up")
        yield names
    finally:
        for name in names:
            oracle.run("ip", "netns", "del", name, check=False)


@pytest.fixture
def lines(launcher: Launcher, nodes: list[str], tmp_path: Path) -> Iterator[list[tuple[int, int]]]:
    """Operations and answers of each rank, as descriptors."""
    descriptors = []
    for rank in range(len(HOSTS)):
        for name in ("operations", "answers"):
            os.mkfifo(tmp_path / f"{rank}.{name}")
        operations = os.open(tmp_path / f"{rank}.operations", os.O_RDWR)
        descriptors.append((operations, os.open(tmp_path / f"{rank}.answers", os.O_RDONLY | os.O_NONBLOCK)))
    agent = tmp_path / "agent"
    agent.write_text(AGENT.format(first=HOSTS[0], nodes=nodes))
    agent.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": PYTHON_PATH,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": HOSTS[0],
        "TESTBED_INTERFACE": "fab",
        "TESTBED_ADDRESSES": ",".join(HOSTS),
        "TESTBED_LINES": str(tmp_path),
        "TESTBED_FOLDER": str(tmp_path),
    }
    argv = mpiexec_argv(
        launcher,
        programs=str(PROGRAMS),
        hosts=HOSTS,
        interface="fab",
        network="10.77.0.0/24",
        agent=str(agent),
        program=[sys.executable, *SHIPPED[launcher].argv[1:]],
        pass_on=sorted(environment),
    )
    # The testbed starts launchers without privileges; this test is root, which Open MPI's refuses otherwise.
    environment |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    log = (tmp_path / "mpiexec.log").open("wb")
    mpiexec = subprocess.Popen(
        ["ip", "netns", "exec", nodes[0], *argv], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        yield descriptors
        for operations, _ in descriptors:
            os.write(operations, b'{"do": "leave"}\n')
        assert mpiexec.wait(timeout=30) == 0, (tmp_path / "mpiexec.log").read_text()
    finally:
        mpiexec.kill()
        mpiexec.wait()
        log.close()
        for pair in descriptors:
            for descriptor in pair:
                os.close(descriptor)


def hear(answers: int, bound_s: float = 60.0) -> dict[str, Any]:
    line, deadline = b"", time.monotonic() + bound_s
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([answers], [], [], max(0.0, deadline - time.monotonic()))
        assert ready and time.monotonic() < deadline, f"no answer: {line!r}"
        more = os.read(answers, 1 << 16)
        line += more
        if not more:  # nobody has opened it yet, or nobody has it open any more
            time.sleep(0.01)
    answer: dict[str, Any] = json.loads(line)
    return answer


@pytest.mark.netns
def test_mpi_is_right_for_what_it_offers(lines: list[tuple[int, int]], tmp_path: Path) -> None:
    def ask(operation: dict[str, Any]) -> list[dict[str, Any]]:
        for operations, _ in lines:
            os.write(operations, json.dumps(operation).encode() + b"\n")
        return [hear(answers) for _, answers in lines]

    offers = ask({"do": "join", "attempt": 1, "port": 1, "timeout_s": 10})[0]["offers"]
    number = 0
    for do in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send"):
        for element_type in offers[do]["types"]:
            for count in (0, 1, 7):
                number += 1
                call = {"do": do, "call": number, "group": "world", "type": element_type, "count": count}
                answers = ask(call | {"reduction": "sum", "root": 0, "to": 1, "seed": 5, "keep": True})
                for rank, answer in enumerate(answers):
                    assert "error" not in answer, answer
                    right = expected(do, rank, number, element_type, count, len(HOSTS))
                    assert ("output" in answer) == (right is not None), (call, answer)
                    if right is not None:
                        got = decoded(element_type, (tmp_path / answer["output"]).read_bytes())
                        if element_type == "float32":
                            right = right.astype(np.float32)  # of two numbers there is one rounding
                        assert np.array_equal(got, right), (call, got, right)
    assert all("error" in it for it in ask({"do": "join", "attempt": 2, "port": 1, "timeout_s": 10}))
