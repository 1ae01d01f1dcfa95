"""SIGKILL of any process at any point: afterwards `down` leaves nothing that carries the lab's name.

The orchestrator is a process that prints each phase as it begins; then it, its keeper or the keeper's emulator is
killed. A bring-up that survives the death of its helpers must report failure and undo itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oracles import oracle

import testbed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="creates network namespaces: needs root"),
]

ORCHESTRATOR = """
import sys, time
import testbed
from testbed.lab.progress import Silent

class Aloud(Silent):
    def phase(self, name, detail=""):
        print(name, flush=True)

name, agents = sys.argv[1], sys.argv[2] == "agents"
try:
    lab = testbed.up("metro-40km", name=name, agents=agents, progress=Aloud(), allow_uncertified=True)
except testbed.errors.TestbedError as error:
    print("failed", error, flush=True)
    sys.exit(error.exit_code)
lab.cut("north", for_s=600)
print("cut", flush=True)
time.sleep(600)
"""

PHASES = ("plan", "namespaces", "fibers", "certify", "cut")


class Orchestrator:
    """A bring-up in a separate process. ``said`` is its latest phase."""

    def __init__(self, name: str, agents: bool) -> None:
        argv = [sys.executable, "-c", "import testbed.errors\n" + ORCHESTRATOR, name, "agents" if agents else "none"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""

    def until(self, phase: str) -> None:
        """Wait for a phase; the time limit of the whole test ends a hang."""
        assert self.process.stdout is not None
        while self.said != phase:
            line = self.process.stdout.readline()
            assert line, f"orchestrator ended after '{self.said}': {self.process.communicate()[1]}"
            self.said = line.split()[0]

    def result(self, bound_s: float) -> tuple[int, str]:
        """Wait for the process to end by itself; return its exit status and remaining output."""
        out, err = self.process.communicate(timeout=bound_s)
        assert "Traceback" not in err
        return self.process.returncode, out

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def begin(lab_name: str) -> Iterator[Callable[..., Orchestrator]]:
    begun: list[Orchestrator] = []

    def start(agents: bool = False) -> Orchestrator:
        begun.append(Orchestrator(lab_name, agents))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()


def down_leaves_nothing(name: str, state: Path) -> None:
    testbed.down(name)
    # A keeper that was starting, without a journal yet, finds its folder gone and ends without creating anything.
    assert [it for it in oracle.left_behind(name, state) if "testbed.keeper.main" not in it] == []
    oracle.until(lambda: not oracle.started_under(state), 3.0, "every process has ended")
    assert oracle.left_behind(name, state) == []
    assert testbed.down(name) is False


@pytest.mark.parametrize("phase", PHASES)
def test_the_orchestrator(begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, phase: str) -> None:
    orchestrator = begin()
    orchestrator.until(phase)
    orchestrator.kill()
    if phase == "cut":
        assert oracle.keeper_pids(lab_name, state_folder), "a lab that is up outlives the process that brought it up"
    down_leaves_nothing(lab_name, state_folder)


@pytest.mark.parametrize(
    "after_s", [0.02, 0.15, *(pytest.param(it, marks=pytest.mark.thorough) for it in (0.1, 0.2, 0.25, 0.3))]
)
def test_the_orchestrator_while_its_keeper_starts(
    begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, after_s: float
) -> None:
    """Between creation of the lab's folder and the keeper's first answer, the journal or the socket is missing."""
    orchestrator = begin()
    orchestrator.until("plan")
    time.sleep(after_s)
    orchestrator.kill()
    down_leaves_nothing(lab_name, state_folder)


def test_a_half_built_lab_goes_by_itself_with_its_orchestrator(
    begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path
) -> None:
    orchestrator = begin()
    orchestrator.until("certify")
    orchestrator.kill()
    oracle.until(lambda: not oracle.namespaces(lab_name), 5.0, "the keeper has undone the partial lab")
    oracle.until(lambda: not oracle.keeper_pids(lab_name, state_folder), 5.0, "the keeper is gone too")
    down_leaves_nothing(lab_name, state_folder)


@pytest.mark.parametrize("phase", PHASES[1:])
def test_the_keeper(begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, phase: str) -> None:
    orchestrator = begin()
    orchestrator.until(phase)
    oracle.kill(oracle.keeper_pids(lab_name, state_folder))
    if phase == "cut":
        orchestrator.kill()
    else:
        status, said = orchestrator.result(30.0)
        assert status != 0
        assert "failed" in said
        assert oracle.left_behind(lab_name, state_folder) == [], "a failed bring-up undoes itself"
    down_leaves_nothing(lab_name, state_folder)


@pytest.mark.parametrize("phase", [pytest.param("certify", marks=pytest.mark.thorough), "cut"])
def test_the_emulator(begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, phase: str) -> None:
    orchestrator = begin()
    orchestrator.until(phase)
    pids = oracle.emulator_pids(lab_name)
    assert pids
    oracle.kill(pids)
    if phase == "cut":
        for gateway in ("east-gw", "west-gw"):
            oracle.until(
                lambda gateway=gateway: oracle.no_carrier(oracle.netns(lab_name, gateway), "south"),  # type: ignore[misc]
                2.0,
                "a dead emulator is a cut",
            )
        orchestrator.kill()
    else:
        status, _ = orchestrator.result(30.0)
        assert status != 0, "expected failure of bring-up without fibers"
        assert oracle.left_behind(lab_name, state_folder) == []
    down_leaves_nothing(lab_name, state_folder)


@pytest.mark.parametrize("victim", ["orchestrator", "keeper", "agents"])
def test_while_agents_are_deployed(
    begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, victim: str
) -> None:
    pytest.importorskip("torch")
    orchestrator = begin(agents=True)
    orchestrator.until("agents")
    if victim == "orchestrator":
        orchestrator.kill()
    else:
        find = {
            "keeper": lambda: oracle.keeper_pids(lab_name, state_folder),
            "agents": lambda: oracle.agent_pids(state_folder),
        }
        oracle.kill(find[victim]())
        status, said = orchestrator.result(30.0)
        assert status != 0
        assert "failed" in said
    down_leaves_nothing(lab_name, state_folder)


@pytest.mark.parametrize(
    "victims", [*(pytest.param(it, marks=pytest.mark.thorough) for it in ("keeper", "agents")), "all"]
)
def test_a_lab_with_agents_that_is_up(
    begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path, victims: str
) -> None:
    pytest.importorskip("torch")
    orchestrator = begin(agents=True)
    orchestrator.until("cut")
    pids = {
        "keeper": oracle.keeper_pids(lab_name, state_folder),
        "agents": oracle.agent_pids(state_folder),
    }
    assert len(pids["agents"]) == 5, "the fork server and four ranks"
    oracle.kill(
        pids[victims] if victims != "all" else [*pids["keeper"], *pids["agents"], *oracle.emulator_pids(lab_name)]
    )
    orchestrator.kill()
    down_leaves_nothing(lab_name, state_folder)


def test_a_process_that_is_killed_twice_over(
    begin: Callable[..., Orchestrator], lab_name: str, state_folder: Path
) -> None:
    """Keeper and orchestrator at once: only `down` is left to undo the lab."""
    orchestrator = begin()
    orchestrator.until("fibers")
    oracle.kill([orchestrator.process.pid, *oracle.keeper_pids(lab_name, state_folder)])
    orchestrator.kill()
    assert oracle.namespaces(lab_name)
    down_leaves_nothing(lab_name, state_folder)
