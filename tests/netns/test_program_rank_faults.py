"""Faults of ranks act on the ranks of a launched program, of which each node has two; limits end a program."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import Lab, bring_up, folder, keeper, processes_in
from oracles import oracle

import testbed
from testbed.core.workload.progress_source import LinePattern
from testbed.errors import JobFailed, LabError, UnknownName, UserError
from testbed.keeper import client

pytestmark = LABS

TURNS = """
import os, sys, time
# A child works: what a rank has started belongs to it. Each turn is 5 ms of computing, whatever else runs meanwhile.
if os.fork():
    os.wait()
    sys.exit(0)
with open(os.environ["TESTBED_FOLDER"] + "/turns", "wb", buffering=0) as out:
    while True:
        began = time.thread_time()
        while time.thread_time() - began < 0.005:
            pass
        time.sleep(0.005)
        out.write(b".")
"""


@pytest.fixture(scope="module")
def program(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[testbed.ProgramJob]:
    """A program with two ranks on each node, none of which ends."""
    lab.allow_uncertified = True
    script = script_in(tmp_path_factory.mktemp("turns"), TURNS)
    job = lab.launch([sys.executable, str(script)], ranks_per_node=2)
    oracle.until(lambda: min(turns(lab)) > 5, 30.0, "every rank takes its turns")
    yield job
    job.stop()


def script_in(folder: Path, text: str) -> Path:
    folder.chmod(0o755)  # programs run without privileges
    (folder / "program.py").write_text(text)
    return folder / "program.py"


def turns(lab: Lab) -> list[int]:
    files = [lab.run_directory.path / "ranks" / f"rank-{rank}" / "turns" for rank in range(8)]
    return [it.stat().st_size if it.exists() else 0 for it in files]


def taken(lab: Lab, over_s: float) -> list[int]:
    before = turns(lab)
    time.sleep(over_s)
    return [after - first for first, after in zip(before, turns(lab), strict=True)]


def go_on(lab: Lab, ranks: list[int]) -> None:
    before = turns(lab)
    oracle.until(lambda: all(turns(lab)[rank] > before[rank] + 5 for rank in ranks), 10.0, f"ranks {ranks} go on")


def test_a_paused_rank_stands_and_its_neighbour_goes_on(lab: Lab, program: testbed.ProgramJob) -> None:
    with lab.inject("rank-pause", "5") as fault:
        assert fault.nodes == ("west-0",)
        stood = turns(lab)[5]
        go_on(lab, [0, 4, 6])
        assert turns(lab)[5] <= stood + 1
    go_on(lab, [5])


def test_a_whole_node_is_paused(lab: Lab, program: testbed.ProgramJob) -> None:
    with lab.inject("rank-pause", "west-1"):
        stood = turns(lab)[6:]
        go_on(lab, [0, 5])
        assert all(now <= then + 1 for then, now in zip(stood, turns(lab)[6:], strict=True))
    go_on(lab, [6, 7])


@pytest.mark.alone
def test_a_slowed_rank_takes_longer(lab: Lab, program: testbed.ProgramJob) -> None:
    """Compared with its neighbour on the same node, both in three periods, whatever else the machine does."""

    def ratio() -> float:
        periods = [taken(lab, 1.0) for _ in range(3)]
        return statistics.median(it[5] / max(1, it[4]) for it in periods)

    with lab.inject("straggler", "4", slower="4x"):
        assert 2.0 < ratio() < 8.0
        with lab.inject("rank-pause", "4"):
            stood = turns(lab)[4]
            go_on(lab, [5])
            assert turns(lab)[4] <= stood + 1, "what is paused is not continued by its turns"
        go_on(lab, [4])
    assert ratio() < 2.0


def test_what_ranks_cannot_be_refused(lab: Lab, program: testbed.ProgramJob) -> None:
    with pytest.raises(UnknownName, match="rank, node or site '8'"):
        lab.inject("rank-kill", "8")
    with pytest.raises(UserError, match="whose 2 ranks would share it"):
        lab.inject("straggler", "5", cpu="30%")


def test_a_killed_rank_is_the_testbeds_doing(lab: Lab, program: testbed.ProgramJob) -> None:
    """Last of those that share the program: as with torchrun, the others are ended after a while."""
    lab.inject("rank-kill", "3")
    with pytest.raises(JobFailed, match="rank 3 on east-1 ended with status 137"):
        program.wait(timeout=30.0)
    ends = read_json(lab.run_directory.path / "run.json")["workload"]["ends"]
    assert [(it["rank"], it["signal"], it["by_testbed"]) for it in ends] == [(3, 9, True)]
    assert processes_in(lab, "east-1") == [], "its child neither"
    with pytest.raises(UserError, match="no training agents for it to act on, and runs no program"):
        lab.inject("rank-pause", "1")


LIMITED = "import time\nfor step in range(1, 4): print(f'step {step}', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"for_s": 1.5}, ""),
        ({"timeout_s": 1.5}, "the program has not ended within 1.5 s"),
        ({"stall_s": 1.5, "timeout_s": 50.0}, "the program has reported no step for 1.5 s, since step 3"),
    ],
)
def test_limits(lab: Lab, tmp_path: Path, limits: dict[str, Any], says: str) -> None:
    lab.allow_uncertified = True
    script = script_in(tmp_path, LIMITED)
    workload = testbed.ProgramWorkload(
        (sys.executable, script.name), progress=LinePattern((r"step (?P<step>\d+)",)), folder=str(tmp_path), **limits
    )
    job = lab.start(workload)
    oracle.until(job.over, 40.0, "the limit is reached")
    assert job.failure() == says
    assert (job.step, job.steps, job.reports_steps) == (3, None, True)
    assert job.began_t is not None
    report = lab.report()
    (ran,) = [it for it in report.answers if it.id == "ran"]
    assert ran.answer == ("no" if says else "yes")
    assert says in ran.text


def test_a_program_that_a_dead_keeper_had_stopped_goes_on(state_folder: Path, tmp_path: Path) -> None:
    name = oracle.unused_name()
    with bring_up(name) as lab:
        lab.launch([sys.executable, str(script_in(tmp_path, TURNS))], ranks_per_node=2)
        oracle.until(lambda: min(turns(lab)) > 5, 30.0, "every rank takes its turns")
        lab.inject("rank-pause", "2")
        lab.inject("straggler", "6", slower="3x")
        oracle.kill(oracle.keeper_pids(name, state_folder))
        ended: Callable[[], bool] = lambda: not client.answers(folder(lab))  # noqa: E731
        oracle.until(ended, 10.0, "the keeper is gone")
        lab.heal()
        go_on(lab, [2, 6])
    assert oracle.left_behind(name, state_folder) == []


def test_a_lab_without_a_program_says_so(lab: Lab) -> None:
    assert keeper(lab).ranks_per_node() in (1, 2)
    with pytest.raises((UserError, LabError), match="no training agents"):
        lab.inject("rank-kill", "0")
