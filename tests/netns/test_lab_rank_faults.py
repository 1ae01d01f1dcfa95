"""Faults of ranks and sites: with jobs, several at once, refused ones, and undo without a keeper.

tests/contract/rank_faults_contract.py has what holds for both drivers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command, check
from builders.conditions import LABS
from builders.json_files import read_lines
from builders.labs import Lab, bring_up, is_dark, ns, processes_in, shared_lab
from builders.proc import is_gone, state_of, until_gone
from oracles import oracle

from testbed.errors import HostError, JobFailed, LabError, UserError

pytestmark = LABS

NODES = ("east-0", "east-1", "west-0", "west-1")
GATEWAYS = ("east-gw", "west-gw")


lab = shared_lab(agents=True)


def picture(lab: Lab) -> dict[str, Any]:
    """All interfaces, addresses and routes of the lab, as ``ip`` shows them; what passes by itself left out."""
    found: dict[str, Any] = {}
    for node in (*NODES, *GATEWAYS, "plant", "mgmt"):
        for what in (("-d", "addr"), ("route",), ("-6", "route")):
            found[f"{node} {what}"] = _plain(
                oracle.ip(ns(lab, node), *what, *(("show", "table", "all") if "route" in what else ()))
            )
    return found


_PASSING = {
    "gc_timer",
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "message_age_timer",
    "forward_delay_timer",
    "hold_timer",
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(it) for key, it in value.items() if key not in _PASSING}
    if isinstance(value, list):
        return sorted((_plain(it) for it in value), key=lambda it: json.dumps(it, sort_keys=True))
    return value


@pytest.fixture
def healthy(lab: Lab) -> Iterator[Lab]:
    """``lab`` with idle agents; what a test has injected is healed after it, and then everything is as it was."""
    before = picture(lab)
    yield lab
    lab.heal()
    oracle.until(lambda: picture(lab) == before, 10.0, "all is as it was")


def agents(lab: Lab) -> dict[str, list[int]]:
    """Processes inside each node."""
    return {node: processes_in(lab, node) for node in NODES}


def begin(lab: Lab) -> Any:
    """A job that has done some steps and has many before it."""
    job = lab.train(steps=100_000, restarts=0)
    job.wait_for(step=5, timeout=60)
    return job


@pytest.fixture
def job(healthy: Lab) -> Iterator[Any]:
    began = begin(healthy)
    yield began
    began.stop()
    oracle.until(began.over, 30.0, "the job is over")


@pytest.mark.thorough
def test_a_killed_rank_is_gone_and_its_job_says_who_it_was(healthy: Lab, job: Any) -> None:
    (victim,) = agents(healthy)["west-0"]
    healthy.inject("rank-kill", "2")
    until_gone(victim, bound_s=5.0)
    with pytest.raises(JobFailed, match=r"rank 2 on west-0 gone: .*SIGKILL"):
        job.wait_for(step=100_000, timeout=60)
    again = healthy.train(steps=3)
    again.wait(60)


def test_a_rank_that_is_kept_away_keeps_jobs_away(healthy: Lab) -> None:
    (victim,) = agents(healthy)["east-1"]
    healthy.inject("rank-kill", "east-1", away="1s")
    assert is_gone(victim)
    with pytest.raises(LabError, match=r"\[1\] are down"):
        healthy.train(steps=3)
    oracle.until(lambda: agents(healthy)["east-1"], 10.0, "a fresh agent, after a second")
    healthy.train(steps=3).wait(60)


def test_a_node_without_power_is_dark_and_empty(healthy: Lab) -> None:
    program = subprocess.Popen(["ip", "netns", "exec", ns(healthy, "west-1"), "sleep", "600"])
    try:
        oracle.until(lambda: program.pid in processes_in(healthy, "west-1"), 5.0, "the program runs")
        with healthy.inject("node-kill", "west-1"):
            assert agents(healthy)["west-1"] == []
            assert program.wait(5) == -9
            assert is_dark(healthy, "west-1", "fabric0")
            assert is_dark(healthy, "west-1", "mgmt0")
            assert not is_dark(healthy, "west-0", "fabric0")
            assert len(agents(healthy)["west-0"]) == 1
        oracle.until(lambda: agents(healthy)["west-1"], 10.0, "a fresh agent")
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()
    healthy.train(steps=3).wait(60)


def test_two_faults_of_one_rank_end_with_the_last_of_them(healthy: Lab) -> None:
    (pid,) = agents(healthy)["east-0"]
    first = healthy.inject("rank-pause", "0")
    second = healthy.inject("rank-pause", "east")
    oracle.until(lambda: state_of(pid) == "T", 1.0, "it is stopped")
    first.heal()
    assert state_of(pid) == "T"
    second.heal()
    oracle.until(lambda: state_of(pid) != "T", 1.0, "it goes on")


@pytest.mark.parametrize(
    ("fault", "target", "parameters", "says"),
    [
        ("rank-kill", "4", {}, "rank, node or site"),
        ("rank-pause", "nowhere", {}, "rank, node or site"),
        ("straggler", "0", {"slower": "0%"}, "greater than 0"),
        ("straggler", "0", {"slower": "-3x"}, "expected a slowdown"),
        ("node-kill", "west", {}, "unknown node"),
        ("power-loss", "north", {}, "power domain or site"),
        ("evacuation", "west", {"warning": "soon"}, "warning=soon"),
        ("gateway-down", "plant", {}, "unknown site"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(
    lab: Lab, fault: str, target: str, parameters: dict[str, Any], says: str
) -> None:
    before = picture(lab), agents(lab)
    with pytest.raises(UserError, match=says):
        lab.inject(fault, target, **parameters)
    assert (picture(lab), agents(lab)) == before


@pytest.mark.thorough
def test_a_killed_keeper_and_a_reboot_leave_nothing_of_its_faults(
    state_folder: Path, tmp_path: Path, command: Command
) -> None:
    name = oracle.unused_name()
    made = bring_up(name, agents=True)
    folder, kept = state_folder / "labs" / name, tmp_path / "kept"
    try:
        (pid,) = oracle.inside_pids(oracle.netns(name, "east-0"))
        made.inject("rank-pause", "0")
        made.inject("node-kill", "west-1")
        made.inject("evacuation", "east", warning="100s")
        with contextlib.suppress(HostError):  # where there are no control groups it is refused
            made.inject("straggler", "1", cpu="20%")
            assert cpu_groups(name)
        oracle.kill(oracle.keeper_pids(name, state_folder))
        until_gone(pid, bound_s=10.0)
        kept.mkdir()
        for file in folder.glob("*.json*"):
            shutil.copy(file, kept)
    finally:
        done = command(f"down {name}")
    assert done.returncode == 0, done.stderr
    assert oracle.left_behind(name, state_folder) == []
    assert cpu_groups(name) == []
    after_a_reboot(command, folder, kept, name)


def after_a_reboot(command: Command, folder: Path, kept: Path, name: str) -> None:
    """What is then left of a lab is its folder: ``kept``, of another boot. A process that is not ours has its pids."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        began = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
        kept.rename(folder)
        lines = read_lines(folder / "journal.jsonl")
        lines[0] |= {"boot": "an earlier one", "keeper": [bystander.pid, began]}
        for line in lines:
            facts = line.get("done", {})
            facts.update({"pid": bystander.pid, "began": began} if "pid" in facts else {})
            facts.update({"parents": [[bystander.pid, began]]} if "parents" in facts else {})
        (folder / "journal.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines))
        healed = command(f"heal -l {name}")
        assert healed.returncode == 0, healed.stderr
        assert "rank-pause 0" in healed.stdout and "node-kill west-1" in healed.stdout
        again = command(f"heal -l {name}")
        assert again.returncode == 0 and "rank-pause" not in again.stdout
        check(command(f"down {name}"))
        assert not folder.exists()
        assert bystander.poll() is None, "a process that has the number of one of ours is not ours"
    finally:
        bystander.kill()
        bystander.wait()


def cpu_groups(lab: str) -> list[Path]:
    return sorted(Path("/sys/fs/cgroup").glob(f"**/testbed.{lab}.*"))


def test_nothing_is_launched_where_a_job_trains(healthy: Lab, job: Any, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is running a training job; its traffic would be counted as yours"):
        healthy.launch(["true"], directory=tmp_path).exit_status()


def test_nothing_is_launched_where_there_is_no_power(healthy: Lab, tmp_path: Path) -> None:
    """A namespace would run it all the same. A site that is only warned still has its power."""
    healthy.allow_uncertified = True
    healthy.inject("evacuation", "east", warning="100s")
    assert healthy.launch(["true"], directory=tmp_path).exit_status() == 0
    fault = healthy.inject("node-kill", "west-1")
    with pytest.raises(LabError, match=r"^a fault has cut the power of west-1; heal it: "):
        healthy.launch(["true"], directory=tmp_path).exit_status()
    healthy.heal(fault.id)
    assert healthy.launch(["true"], directory=tmp_path).exit_status() == 0


def test_faults_of_ranks_need_ranks() -> None:
    """Else they would begin, do nothing, and whatever was expected of them would be found to hold."""
    with bring_up() as bare:
        for kind in ("rank-kill", "rank-pause", "straggler"):
            with pytest.raises(UserError, match=f"^{kind}: this lab has no training agents"):
                bare.inject(kind, "0")
        bare.inject("node-kill", "east-0")
        assert [it.type for it in bare.faults()] == ["node-kill"]
