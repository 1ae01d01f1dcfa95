"""Experiments on a program of the user's: each exit status, the shipped example, and a run repeated from its file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from builders.commands import TESTBED, captured
from builders.conditions import LABS
from builders.json_files import read_json
from oracles import oracle

import testbed
from testbed.errors import UserError

EXAMPLE = ROOT / "examples" / "own_script"

pytestmark = [*LABS, pytest.mark.e2e]

ONE_EACH = "{sites.east.nodes: 1, sites.west.nodes: 1}"

STEPS = """
import os, sys, time
for step in range(1, int(sys.argv[1]) + 1):
    print(f"step {step} of rank {os.environ['RANK']}", flush=True)
    time.sleep(0.1)
if os.environ["RANK"] == "1":
    sys.exit(int(sys.argv[2]))
"""


def run_cli(what: Path, folder: Path, state_folder: Path, cwd: Path) -> tuple[int, str, dict]:
    """Return the exit status, what was said, and run.json; ``cwd``: where it is called from."""
    name = oracle.unused_name()
    argv = [*TESTBED, "run", str(what), "--name", name, "--allow-uncertified"]
    done = captured([*argv, "--runs", str(folder)], timeout=240.0, cwd=cwd)
    assert oracle.left_behind(name, state_folder) == []
    found = sorted(folder.glob("*/run.json"))
    return done.returncode, done.stderr + done.stdout, read_json(found[-1]) if found else {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)  # programs run without privileges
    (tmp_path / "program.py").write_text(STEPS)
    return tmp_path


def experiment(folder: Path, arguments: str, more: str) -> Path:
    file = folder / "x.yaml"
    file.write_text(
        f"topology: metro-40km\nset: {ONE_EACH}\n"
        f"workload: {{command: ['{sys.executable}', program.py, {arguments}], timeout: 60s,"
        f" progress: {{line: 'step (?P<step>\\d+)'}}}}\n{more}"
    )
    return file


@pytest.mark.alone
def test_the_example_comes_through_a_cut(folder: Path, state_folder: Path) -> None:
    (folder / "train.py").write_text((EXAMPLE / "train.py").read_text())
    text = (EXAMPLE / "cut.yaml").read_text()
    assert "../../.venv/bin/python" in text
    text = re.sub(r"--steps, \d+", "--steps, 120", text.replace("../../.venv/bin/python", sys.executable))
    (folder / "cut.yaml").write_text(re.sub(r"^  steps: \d+", "  steps: 120", text, flags=re.M))
    status, said, run = run_cli(folder / "cut.yaml", folder / "runs", state_folder, ROOT)
    report = read_json(next((folder / "runs").glob("*/report.json")))
    assert status == 0, said
    assert report["verdict"] == "pass"
    assert run["workload"]["statuses"] == [0, 0, 0, 0]
    assert [it["began"] for it in run["schedule"]] == [1, 1], "after a share of its steps"
    assert [it["holds"] for it in run["expectations"]] == [True] * len(run["expectations"])
    assert 1.0 < run["expectations"][0]["measured"] < 60.0, "it stood while both fibers were cut for 2 s"


@pytest.mark.thorough
@pytest.mark.alone
def test_a_program_that_fails_is_1_again_and_again(folder: Path, state_folder: Path) -> None:
    """Nothing depends on where the command is given: the program is beside the experiment, and the run's own file has
    its folder."""
    first = experiment(folder, "5, 3", "schedule: [{at: 100ms, inject: cut, target: north, for: 100ms}]\n")
    status, said, run = run_cli(first, folder / "first", state_folder, Path("/"))
    assert status == 1, said
    assert run["workload"]["statuses"] == [0, 3]
    assert (run["status"], run["unknown_because"]) == ("failed", "")
    assert "rank 1 on west-0 ended with status 3" in run["reason"]
    assert [it["began"] for it in run["schedule"]] == [1]
    (again,) = (folder / "first").glob("*/experiment.yaml")
    status, said, run = run_cli(again, folder / "again", state_folder, ROOT)
    assert (status, run["workload"]["statuses"]) == (1, [0, 3]), said


@pytest.mark.alone
def test_a_fault_that_never_came_is_3(folder: Path, state_folder: Path) -> None:
    """It is due long after the program has ended well."""
    file = experiment(folder, "3, 0", "schedule: [{after: step 999, inject: rank-kill, target: 1}]\n")
    status, said, run = run_cli(file, folder / "runs", state_folder, Path("/"))
    assert status == 3, said
    assert run["workload"]["statuses"] == [0, 0]
    assert [it["began"] for it in run["schedule"]] == [0]


def test_what_does_not_apply_is_2_before_anything_is_built(folder: Path, state_folder: Path) -> None:
    file = experiment(folder, "3, 0", "expect: [wrong_sums == 0]\n")
    file.write_text(file.read_text().replace("timeout: 60s", "checkpoint: 5"))
    status, said, run = run_cli(file, folder / "runs", state_folder, ROOT)
    assert (status, run) == (2, {})
    assert "x.yaml:3: checkpoint does not apply to a command" in said
    assert "x.yaml:4: wrong_sums does not apply to a command" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("program.py", "programme.py"), "no file 'programme.py'"),
        ((f"'{sys.executable}'", "no-such-program"), "no program 'no-such-program' on the PATH"),
        ((f"'{sys.executable}'", "./train.sh"), "no program './train.sh' in"),
        (("timeout: 60s", "folder: nowhere"), "no such folder to run the command in"),
    ],
)
def test_a_program_that_is_not_there_is_refused_before_anything_is_built(
    folder: Path, state_folder: Path, change: tuple[str, str], says: str
) -> None:
    file = experiment(folder, "3, 0", "")
    file.write_text(file.read_text().replace(*change))
    name = oracle.unused_name()
    with pytest.raises(UserError, match=re.escape(says)):
        testbed.run(str(file), name=name, runs=folder / "runs", driver="netns", allow_uncertified=True)
    assert oracle.left_behind(name, state_folder) == []


@pytest.mark.parametrize("options", [{"steps": 5}, {"data": Path("x")}, {"seed": 3}])
def test_options_of_the_agents_are_refused(folder: Path, options: dict[str, Any]) -> None:
    file = experiment(folder, "3, 0", "")
    with pytest.raises(UserError, match=f"runs a command, which --{next(iter(options))} cannot change"):
        testbed.run(str(file), runs=folder / "runs", **options)
