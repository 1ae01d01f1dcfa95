"""Contract of faults of ranks and sites in a lab of two sites with one node each, for every driver, and of their undo.

Subclass it and provide ``lab`` and ``space``. ``space(node)`` is the `ip netns` name of a node or gateway.
The oracles are /proc, `ip` and ``oracles/exact_state.py``; every state is compared with the one before the first fault.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles import exact_state, oracle

from testbed.errors import HostError, JobFailed
from testbed.lab.lab import Lab

NODES, GATEWAYS = ("east-0", "west-0"), ("east-gw", "west-gw")
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 32, "checkpoint_every": 10}
"""A model with steps of about 10 ms."""

Space = Callable[[str], str]
Picture = dict[str, exact_state.Picture]


def status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status (proc_pid_status(5)); empty if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def agents(space: str) -> list[int]:
    """Return the rank processes in a node, forked by a fork server in the same container or outside."""

    def is_agent(pid: int) -> bool:
        try:
            return b"testbed_agents.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    found = [pid for pid in oracle.inside_pids(space) if is_agent(pid)]
    return [pid for pid in found if is_agent(int(status(pid).get("PPid", 0)))]


def inhabitants(space: str) -> list[int]:
    """Return all processes in a node except the first process of a container."""
    return [pid for pid in oracle.inside_pids(space) if status(pid).get("NSpid", "").split()[1:] != ["1"]]


def throttled_periods(pid: int) -> int:
    """Return the number of periods in which the kernel throttled a process's control group."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "cpu" in controllers.split(","):
            file = Path("/sys/fs/cgroup", controllers, path.lstrip("/"), "cpu.stat")
            if file.exists() and (found := re.search(r"nr_throttled (\d+)", file.read_text())):
                return int(found[1])
    return 0


class RankFaultsContract:
    @pytest.fixture(scope="class")
    @classmethod
    def before(cls, lab: Lab, space: Space) -> Picture:
        oracle.until(lambda: all(agents(space(node)) for node in NODES), 60.0, "the agents are there")
        found = cls.picture(space)
        assert cls.differences(found, cls.picture(space)) == [], "fields that change by themselves must be omitted"
        return found

    @staticmethod
    def picture(space: Space) -> Picture:
        return {node: exact_state.of_namespace(space(node)) for node in (*NODES, *GATEWAYS, "plant", "mgmt")}

    @staticmethod
    def differences(before: Picture, after: Picture) -> list[str]:
        return [f"{node}: {it}" for node in before for it in exact_state.differences(before[node], after[node])]

    @pytest.fixture(autouse=True)
    def undone(self, lab: Lab, space: Space, before: Picture) -> Iterator[None]:
        """Heal all faults after each test, and check that the state is as before the first test."""
        yield
        lab.heal()
        left: list[str] = []

        def same() -> bool:
            left[:] = self.differences(before, self.picture(space))
            return not left

        try:
            oracle.until(same, 10.0, "the state is as before")
        except AssertionError:
            pytest.fail("not as before:\n" + "\n".join(left))

    @pytest.fixture(scope="class")
    @classmethod
    def job(cls, lab: Lab, before: Picture) -> Iterator[Any]:
        """Provide a job shared by the tests that use one, until one of its ranks is killed."""
        began = lab.train(steps=100_000, restarts=0, **SMALL)
        began.wait_for(step=20, timeout=60)
        yield began
        began.stop()
        oracle.until(began.over, 30.0, "the job is over")

    def dark_or_killed(self, space: Space, node: str, interface: str) -> bool:
        """The same of a site that loses its power meanwhile: that ends all its processes, the oracle's own as well."""
        try:
            return self.dark(space, node, interface)
        except AssertionError as error:
            if f"status {-signal.SIGKILL}" not in str(error):
                raise
            return False

    def dark(self, space: Space, node: str, interface: str) -> bool:
        return oracle.no_carrier(space(node), interface)

    # ---- ranks, of a job

    def test_a_partition_of_the_management_network_leaves_the_job_alone(self, lab: Lab, space: Space, job: Any) -> None:
        with lab.inject("management-partition", "west"):
            assert [self.dark(space, node, "mgmt0") for node in (*NODES, *GATEWAYS)] == [False, True, False, True]
            job.wait_for(step=job.step + 5, timeout=60)

    def test_a_paused_rank_stands_still_and_goes_on(self, lab: Lab, space: Space, job: Any) -> None:
        (pid,) = agents(space("west-0"))
        with lab.inject("rank-pause", "1"):
            oracle.until(lambda: status(pid)["State"].startswith("T"), 5.0, "it is stopped")
            paused_at = job.step
            assert oracle.used_cpu(pid, 0.5) == 0.0  # a paused rank uses no CPU
            assert job.step <= paused_at + 1
        oracle.until(lambda: not status(pid)["State"].startswith("T"), 5.0, "it goes on")
        job.wait_for(step=job.step + 3, timeout=30)

    def test_a_straggler_computes_longer(self, lab: Lab, job: Any) -> None:
        assert lab.run_directory is not None
        ranks = lab.run_directory.ranks

        def compute_s() -> float:
            job.wait_for(step=job.step + 7, timeout=60)
            records = [json.loads(line) for line in (ranks / "rank-0.jsonl").read_text().splitlines()]
            return statistics.median(it["compute_s"] for it in records[-6:] if it["kind"] == "step")

        usual = compute_s()
        with lab.inject("straggler", "0", slower="20x"):
            slow = compute_s()
        assert slow > 3 * usual  # not 20: while one rank sleeps, the others compute faster on few CPUs
        assert compute_s() < slow / 2

    def test_a_straggler_gets_no_more_of_a_cpu_than_it_is_given(self, lab: Lab, space: Space, job: Any) -> None:
        (pid,) = agents(space("east-0"))
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        try:
            fault = lab.inject("straggler", "0", cpu="5%")
        except HostError as error:
            pytest.skip(str(error))
        with fault:
            assert oracle.used_cpu(pid, 1.5) < 0.08
            oracle.until(lambda: throttled_periods(pid) > 0, 30.0, "the kernel has throttled it")
        assert Path(f"/proc/{pid}/cgroup").read_text() == groups
        assert not list(Path("/sys/fs/cgroup").glob(f"**/testbed.{lab.name}.*"))
        periods = throttled_periods(pid)
        job.wait_for(step=job.step + 3, timeout=60)
        assert throttled_periods(pid) == periods, "the rank is no longer throttled"

    def test_a_killed_rank_is_gone_and_another_comes(self, lab: Lab, space: Space, job: Any) -> None:
        (victim,) = agents(space("west-0"))
        lab.inject("rank-kill", "1", away="1s")
        assert status(victim).get("State", "Z").startswith("Z")
        assert agents(space("west-0")) == []
        with pytest.raises(JobFailed, match=r"^rank 1 on west-0 gone: .*SIGKILL"):
            job.wait_for(step=100_000, timeout=60)
        oracle.until(lambda: agents(space("west-0")), 30.0, "a fresh agent, after a second")
        assert agents(space("west-0")) != [victim]

    # ---- places

    def test_a_node_without_power_is_dark_and_empty(self, lab: Lab, space: Space, before: Picture) -> None:
        with lab.inject("node-kill", "west-0"):
            assert self.differences(before, self.picture(space)), "otherwise the later comparison proves nothing"
            assert inhabitants(space("west-0")) == []
            assert [self.dark(space, "west-0", it) for it in ("fabric0", "mgmt0")] == [True, True]
            assert not self.dark(space, "east-0", "fabric0")
            assert len(agents(space("east-0"))) == 1
        assert not self.dark(space, "west-0", "fabric0")

    def test_a_gateway_without_power_takes_its_fibers_and_no_node(self, lab: Lab, space: Space) -> None:
        running = [pid for node in NODES for pid in inhabitants(space(node))]
        with lab.inject("gateway-down", "east"):
            assert all(self.dark(space, gateway, link) for gateway in GATEWAYS for link in ("north", "south"))
            assert oracle.ping(space("east-0"), "10.1.0.1"), "the fabric still works"
        assert running and all(map(status, running))

    def test_a_power_event_takes_nodes_and_gateway_at_once(self, lab: Lab, space: Space) -> None:
        with lab.inject("power-loss", "east"):
            assert inhabitants(space("east-0")) == []
            assert all(self.dark(space, "west-gw", link) for link in ("north", "south"))
            assert [self.dark(space, node, "mgmt0") for node in ("east-0", "east-gw")] == [True, True]
            assert not self.dark(space, "west-0", "fabric0")

    def test_an_evacuated_site_is_warned_first(self, lab: Lab, space: Space) -> None:
        with lab.inject("evacuation", "west", warning="1500ms"):
            assert not any(self.dark(space, "west-gw", link) for link in ("north", "south")), "only warned so far"
            assert not self.dark(space, "west-0", "fabric0")
            oracle.until(lambda: self.dark_or_killed(space, "west-0", "fabric0"), 5.0, "the power is gone")
            oracle.until(lambda: not inhabitants(space("west-0")), 5.0, "its processes have ended")
            assert all(self.dark(space, "east-gw", link) for link in ("north", "south"))
