"""Rank programs in containers: controlled over FIFOs, signalled inside, ended together with their caller.

Those of MPI need an image with MPI, which is too large to build in every test run:
``testbed image build --with validate --tag scale-across-testbed:VERSION-validate``, in the tests' own docker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import argv_of, captured, words_of
from builders.conditions import ALONE
from builders.labs import NODES, Lab, bring_up, lab_without_leftovers
from oracles import oracle

from testbed.core.validation import cases, fault_matrix
from testbed.core.validation.library import PYTHON, CollectiveLibrary
from testbed.core.validation.result import CaseResult, Cell
from testbed.host import collective_libraries, lab_folder
from testbed.host.drivers import images
from testbed.host.drivers.containerlab import agent_user
from testbed.lab.validation import correctness, fault_cells
from testbed.lab.validation.fault_injection import FiberFaults
from testbed.lab.validation.library_session import Session
from testbed.lab.validation.traffic_meter import Wire
from testbed.lab.validation.validation import validate
from testbed.lab.validation.worker_set import WorkerSet

pytestmark = ALONE

PROGRAM = "testbed_agents.adapters.ring"


@pytest.fixture(scope="module")
def lab(containers: str, state_folder: Path) -> Iterator[Lab]:
    with lab_without_leftovers(state_folder, driver="containerlab") as made:
        yield made


@pytest.fixture(scope="module")
def with_mpi(containers: str, state_folder: Path) -> Iterator[Lab]:
    """A lab of the image that has MPI."""
    chosen = f"{containers}-validate"
    if why := images.missing(chosen, ["validate"]):
        pytest.skip(f"{why} --with validate --tag {chosen}")
    name = oracle.unused_name()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "reference", lambda: chosen)
        made = bring_up(name, driver="containerlab")
    with made as found:
        yield found
    assert oracle.left_behind(name, state_folder) == []


def top(lab: str, *nodes: str) -> list[str]:
    """Return the processes of containers, as docker sees them."""
    listed = [captured(words_of(f"docker top clab-{lab}-{node} -eo pid,args")).stdout for node in nodes]
    return [line for text in listed for line in text.splitlines()[1:]]


def inside(lab: str) -> list[str]:
    """All that runs in the containers of nodes and of the management network beside what keeps them up."""
    return [line for line in top(lab, *NODES, "mgmt") if "sleep infinity" not in line]


def programs(lab: str) -> list[str]:
    """Rank programs in a lab's containers."""
    return [line for line in top(lab, *NODES) if PROGRAM in line and "watchdog" not in line]


@contextlib.contextmanager
def session_of(lab: Lab, library: str, folder: Path) -> Iterator[tuple[WorkerSet, Session]]:
    workers = WorkerSet(lab_folder.folder(lab.name), lab.topology, collective_libraries.find(library), folder)
    try:
        yield workers, Session(workers, timeout_s=5.0)
    finally:
        workers.leave()


def answered(session: Session, workers: WorkerSet, every: int) -> set[str]:
    """Return the states of every so many of the quick cases."""
    results: list[CaseResult] = []
    whole = cases.correctness("quick", [rank.site for rank in workers.ranks])
    correctness.run_cases(session, whole[::every], results.append)
    return {result.state for result in results}


def killed_rank(lab: Lab, session: Session, **changed: Any) -> Cell:
    """Kill a rank during an operation, ``changed``, and return what came of it."""
    (trial,) = (
        it for it in fault_matrix.trials("quick", lab.topology, session.offers) if it.fault.name == "rank-killed"
    )
    trial = dataclasses.replace(trial, operation=dataclasses.replace(trial.operation, **changed))
    cells: list[Cell] = []
    folder = lab_folder.folder(lab.name)
    with Wire(folder, lab.topology) as wire, FiberFaults(folder, lab.topology) as fibers:
        fault_cells.run_trials(session, wire, fibers, [trial], cells.append)
    (cell,) = cells
    return cell


def test_the_ring_is_right_and_is_told_of_a_killed_rank(lab: Lab, tmp_path: Path) -> None:
    with session_of(lab, "ring", tmp_path / "ring") as (workers, session):
        assert answered(session, workers, 20) == {"right"}
        assert list(workers.outputs.iterdir()) == []
        cell = killed_rank(lab, session, count=1_000_001)
        assert (cell.outcome, cell.rebuilt) == ("error within its bound", True), cell
        assert len(programs(lab.name)) == 4
    oracle.until(lambda: programs(lab.name) == [], 15.0, "rank programs end")


def test_what_the_image_lacks_is_a_skip_that_says_so(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "lacking": CollectiveLibrary("lacking", "needs what is nowhere", (PYTHON,), modules=("json", "no_such_module")),
        "no-mpi": dataclasses.replace(collective_libraries.find("mpich"), name="no-mpi", programs=("mpiexec.nowhere",)),
    }
    monkeypatch.setattr(collective_libraries, "find", known.__getitem__)
    outcome = validate(["lacking", "no-mpi"], lab=lab.name, runs=tmp_path, allow_uncertified=True)
    assert [it.verdict for it in outcome.validation.libraries] == ["skipped", "skipped"]
    lacking, no_mpi = outcome.validation.libraries
    assert "lacks no_such_module; " in lacking.why[0]
    assert "mpiexec.nowhere; build an image that has them with: testbed image build --with validate" in no_mpi.why[0]
    assert outcome.exit_code == 3
    assert outcome.validation.driver == "containerlab"
    assert lab.status().state == "up"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_an_mpi_is_right_and_takes_all_ranks_with_a_killed_one(with_mpi: Lab, tmp_path: Path, name: str) -> None:
    """Its mpiexec in the management network's container, which has no way of its own into the nodes'."""
    with session_of(with_mpi, name, tmp_path / name) as (workers, session):
        assert answered(session, workers, 10) == {"right", "unsupported"}
        ask_from_a_node(with_mpi.name, tmp_path / name)
        cell = killed_rank(with_mpi, session)
        assert cell.outcome == "crash", cell
        assert any("testbed_agents.adapters.mpi" in line for line in inside(with_mpi.name))
    oracle.until(lambda: inside(with_mpi.name) == [], 15.0, "ranks, daemons and mpiexec end")


def ask_from_a_node(lab: str, folder: Path) -> None:
    """As a rank could: the user that may, at the socket that is shown, asks for another node; it is refused."""
    asking = ["python", "-m", "testbed_agents.launcher_client", str(folder / "reach.socket"), "west-0", "true"]
    asked = subprocess.run(["docker", "exec", "--user", agent_user(), f"clab-{lab}-east-0", *asking])
    assert asked.returncode == 255
    log = folder / "mpiexec.log"
    oracle.until(lambda: "is not in the management network" in log.read_text(), 10.0, "the refusal is logged")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_after_sigkill_an_mpi_ends_inside(with_mpi: Lab, tmp_path: Path, name: str) -> None:
    killed_while_it_runs(
        name, with_mpi, tmp_path, lambda: sum("libraries.mpi" in it for it in inside(with_mpi.name)) >= 4
    )
    oracle.until(lambda: inside(with_mpi.name) == [], 20.0, "ranks, daemons and mpiexec end with their parent")


@pytest.mark.thorough
def test_after_sigkill_rank_programs_end_inside(lab: Lab, tmp_path: Path) -> None:
    killed_while_it_runs("ring", lab, tmp_path, lambda: len(programs(lab.name)) == 4)
    oracle.until(lambda: programs(lab.name) == [], 20.0, "rank programs end with the process that started them")


def killed_while_it_runs(name: str, lab: Lab, folder: Path, running: Callable[[], bool]) -> None:
    """SIGKILL to a validation once its programs run."""
    argv = argv_of(f"validate {name} --only correctness")
    argv += ["-l", lab.name, "--allow-uncertified", "--runs", str(folder)]
    with (folder / "said").open("wb") as said:
        child = subprocess.Popen(argv, stdout=said, stderr=said)
    try:
        oracle.until(running, 60.0, "rank programs run")
    finally:
        os.kill(child.pid, 9)
        child.wait(10.0)
