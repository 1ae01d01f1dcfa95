"""Faults of ranks and places on a lab that is up, seen by `ip` and /proc; undone, all is as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle
import pytest

import testbed
from testbed.errors import JobFailed, LabError, UserError

pytestmark = [pytest.mark.netns]

NODES = ("east-0", "east-1", "west-0", "west-1")
GATEWAYS = ("east-gw", "west-gw")


@pytest.fixture(scope="module")
def lab(state_folder: Path) -> Iterator[testbed.Lab]:
    name = oracle.unused_name()
    with testbed.up("metro-40km", name=name, driver="netns") as found:
        yield found
    assert oracle.left_behind(name, state_folder) == []


def ns(lab: testbed.Lab, node: str) -> str:
    return oracle.netns(lab.name, node)


def picture(lab: testbed.Lab) -> dict[str, Any]:
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
def healthy(lab: testbed.Lab) -> Iterator[testbed.Lab]:
    """``lab`` with idle agents; what a test has injected is healed after it, and then everything is as it was."""
    before = picture(lab)
    yield lab
    lab.heal()
    oracle.until(lambda: picture(lab) == before, 10.0, "all is as it was")


def agents(lab: testbed.Lab) -> dict[str, list[int]]:
    """Processes inside each node."""
    return {node: oracle.inside_pids(ns(lab, node)) for node in NODES}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def begin(lab: testbed.Lab) -> Any:
    """A job that has done some steps and has many before it."""
    job = lab.train(steps=100_000, restarts=0)
    job.wait_for(step=5, timeout=60)
    return job


@pytest.fixture
def job(healthy: testbed.Lab) -> Iterator[Any]:
    began = begin(healthy)
    yield began
    began.stop()
    oracle.until(began.over, 30.0, "the job is over")


def test_a_killed_rank_is_gone_and_its_job_says_who_it_was(healthy: testbed.Lab, job: Any) -> None:
    (victim,) = agents(healthy)["west-0"]
    healthy.inject("rank-kill", "2")
    oracle.until(lambda: gone(victim), 5.0, "the process is gone")
    with pytest.raises(JobFailed, match=r"rank 2 on west-0 gone: .*SIGKILL"):
        job.wait_for(step=100_000, timeout=60)
    again = healthy.train(steps=3)
    again.wait(60)


def test_a_rank_that_is_kept_away_keeps_jobs_away(healthy: testbed.Lab) -> None:
    (victim,) = agents(healthy)["east-1"]
    healthy.inject("rank-kill", "east-1", away="1s")
    assert gone(victim)
    with pytest.raises(LabError, match=r"\[1\] are down"):
        healthy.train(steps=3)
    oracle.until(lambda: agents(healthy)["east-1"], 10.0, "a fresh agent, after a second")
    healthy.train(steps=3).wait(60)


def test_a_paused_rank_stands_still_and_goes_on(healthy: testbed.Lab, job: Any) -> None:
    (pid,) = agents(healthy)["west-1"]
    with healthy.inject("rank-pause", "3"):
        oracle.until(lambda: state_of(pid) == "T", 1.0, "it is stopped")
        stood = job.step
        time.sleep(1.0)  # the claim is that nothing happens in this time
        assert job.step <= stood + 1
    oracle.until(lambda: state_of(pid) != "T", 1.0, "it goes on")
    job.wait_for(step=job.step + 3, timeout=30)


def test_a_straggler_is_waited_for(healthy: testbed.Lab, job: Any) -> None:
    def steps_s(count: int) -> float:
        first = job.step
        began = time.monotonic()
        job.wait_for(step=first + count, timeout=120)
        return time.monotonic() - began

    usual = steps_s(15)
    with healthy.inject("straggler", "0", slower="6x"):
        job.wait_for(step=job.step + 2, timeout=60)
        slow = steps_s(15)
    assert slow > 1.7 * usual
    job.wait_for(step=job.step + 2, timeout=60)
    assert steps_s(15) < 0.7 * slow


def test_a_node_without_power_is_dark_and_empty(healthy: testbed.Lab) -> None:
    program = subprocess.Popen(["ip", "netns", "exec", ns(healthy, "west-1"), "sleep", "600"])
    try:
        oracle.until(lambda: program.pid in oracle.inside_pids(ns(healthy, "west-1")), 5.0, "the program runs")
        with healthy.inject("node-kill", "west-1"):
            assert agents(healthy)["west-1"] == []
            assert program.wait(5) == -9
            assert oracle.no_carrier(ns(healthy, "west-1"), "fabric0")
            assert oracle.no_carrier(ns(healthy, "west-1"), "mgmt0")
            assert not oracle.no_carrier(ns(healthy, "west-0"), "fabric0")
            assert len(agents(healthy)["west-0"]) == 1
        oracle.until(lambda: agents(healthy)["west-1"], 10.0, "a fresh agent")
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()
    healthy.train(steps=3).wait(60)


def test_a_gateway_without_power_takes_all_its_fibers_and_no_node(healthy: testbed.Lab) -> None:
    before = agents(healthy)
    with healthy.inject("gateway-down", "east"):
        for gateway in GATEWAYS:
            for link in ("north", "south"):
                oracle.until(lambda g=gateway, n=link: oracle.no_carrier(ns(healthy, g), n), 2.0, f"{gateway} {link}")  # type: ignore[misc]
        there = oracle.addresses(ns(healthy, "east-1"), "fabric0")["inet"]
        assert oracle.ping(ns(healthy, "east-0"), there), "the fabric goes on"
    assert agents(healthy) == before


def test_a_power_domain_goes_as_one(healthy: testbed.Lab) -> None:
    with healthy.inject("power-loss", "west"):
        found = agents(healthy)
        assert (found["west-0"], found["west-1"]) == ([], [])
        assert all(len(found[node]) == 1 for node in ("east-0", "east-1"))
        assert all(oracle.no_carrier(ns(healthy, "east-gw"), link) for link in ("north", "south"))
        assert oracle.no_carrier(ns(healthy, "west-gw"), "mgmt0")
    oracle.until(lambda: all(agents(healthy).values()), 10.0, "fresh agents")


def test_an_evacuated_site_is_warned_first(healthy: testbed.Lab) -> None:
    fault = healthy.inject("evacuation", "west", warning="500ms")
    assert all(agents(healthy).values()), "warned, and nothing has happened yet"
    assert not oracle.no_carrier(ns(healthy, "east-gw"), "north")
    oracle.until(lambda: not agents(healthy)["west-0"], 5.0, "the power is gone")
    oracle.until(lambda: oracle.no_carrier(ns(healthy, "east-gw"), "north"), 2.0, "and the light")
    fault.heal()


def test_a_partition_of_the_management_network_leaves_the_job_alone(healthy: testbed.Lab, job: Any) -> None:
    with healthy.inject("management-partition", "west"):
        for node in ("west-0", "west-1", "west-gw"):
            assert oracle.no_carrier(ns(healthy, node), "mgmt0")
        assert not oracle.no_carrier(ns(healthy, "east-0"), "mgmt0")
        job.wait_for(step=job.step + 5, timeout=60)


def test_two_faults_of_one_rank_end_with_the_last_of_them(healthy: testbed.Lab) -> None:
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
        ("straggler", "0", {"slower": "0%"}, "slows nothing"),
        ("straggler", "0", {"slower": "-3x"}, "no slowdown"),
        ("node-kill", "west", {}, "no node"),
        ("power-loss", "north", {}, "power domain or site"),
        ("evacuation", "west", {"warning": "soon"}, "warning=soon"),
        ("gateway-down", "plant", {}, "no site"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(
    lab: testbed.Lab, fault: str, target: str, parameters: dict[str, str], says: str
) -> None:
    before = picture(lab), agents(lab)
    with pytest.raises(UserError, match=says):
        lab.inject(fault, target, **parameters)
    assert (picture(lab), agents(lab)) == before


def test_a_killed_keeper_leaves_no_paused_rank_behind(state_folder: Path) -> None:
    name = oracle.unused_name()
    made = testbed.up("metro-40km", name=name, driver="netns")
    try:
        (pid,) = oracle.inside_pids(oracle.netns(name, "east-0"))
        made.inject("rank-pause", "0")
        made.inject("node-kill", "west-1")
        oracle.kill(oracle.keeper_pids(name, state_folder))
        oracle.until(lambda: gone(pid), 10.0, "its warm parent took it along")
    finally:
        done = subprocess.run(
            [sys.executable, "-m", "testbed.cli.main", "down", name], env=os.environ, capture_output=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert oracle.left_behind(name, state_folder) == []


def test_nothing_is_launched_where_there_is_no_power(healthy: testbed.Lab, tmp_path: Path) -> None:
    """A namespace would run it all the same. A site that is only warned still has its power."""
    healthy.allow_uncertified = True
    healthy.inject("evacuation", "east", warning="100s")
    assert healthy.launch(["true"], directory=tmp_path) == 0
    fault = healthy.inject("node-kill", "west-1")
    with pytest.raises(LabError, match=r"^west-1: no power, by a fault; heal it first"):
        healthy.launch(["true"], directory=tmp_path)
    healthy.heal(fault.id)
    assert healthy.launch(["true"], directory=tmp_path) == 0


def test_faults_of_ranks_need_ranks() -> None:
    """Else they would begin, do nothing, and whatever was expected of them would be found to hold."""
    with testbed.up(
        "metro-40km", name=oracle.unused_name(), driver="netns", agents=False, allow_uncertified=True
    ) as bare:
        for kind in ("rank-kill", "rank-pause", "straggler"):
            with pytest.raises(UserError, match=f"^{kind}: this lab has no training agents"):
                bare.inject(kind, "0")
        bare.inject("node-kill", "east-0")
        assert [it.type for it in bare.faults()] == ["node-kill"]
