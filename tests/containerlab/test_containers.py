"""Labs of real containers: what docker, ip and ping say of them, through the verbs that users have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle
import pytest
from contract.casualties_contract import CasualtiesContract, Space
from contract.lab_contract import FILE, Inside, LabContract

import testbed
from testbed.lab.lab import Lab

pytestmark = pytest.mark.netns

def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=60).stdout


def inspected(container: str) -> dict[str, Any]:
    return json.loads(docker("inspect", container))[0]


@pytest.fixture(scope="module")
def lab(containers: str, tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Lab]:
    """Two sites of one node each, two fibers, agents ready."""
    path = tmp_path_factory.mktemp("t") / "two.yaml"
    path.write_text(FILE)
    with testbed.up(testbed.load(str(path)), name=oracle.unused_name(), driver="containerlab") as made:
        yield made
    assert docker("ps", "--all", "--quiet") == ""


def test_each_node_gateway_plant_and_management_is_a_container(lab: Lab) -> None:
    names = set(docker("ps", "--format", "{{.Names}}").split())
    nodes = ("east-0", "west-0", "east-gw", "west-gw", "plant", "mgmt")
    assert names == {f"clab-{lab.name}-{node}" for node in nodes}
    for name in names:
        host = inspected(name)["HostConfig"]
        assert host["Privileged"] is False
        assert {it.removeprefix("CAP_") for it in host["CapAdd"]} == {"NET_ADMIN"}
        assert host["NetworkMode"] == "none"
        assert host["RestartPolicy"]["Name"] in ("no", "")
    labels = inspected(f"clab-{lab.name}-east-0")["Config"]["Labels"]
    assert labels["testbed.lab"] == lab.name
    assert labels["testbed.role"] == "node"
    assert labels["testbed.site"] == "east"
    assert labels["testbed.rank"] == "0"


def test_nothing_of_it_is_on_the_hosts_own_network(lab: Lab) -> None:
    links = json.loads(subprocess.run(["ip", "-j", "link"], check=True, capture_output=True, text=True).stdout)
    for link in links:
        assert not link["ifname"].startswith(("north", "south", "east", "west", "plant"))


def test_ranks_have_no_privileges(lab: Lab, tmp_path: Path) -> None:
    said: list[str] = []
    lab.launch(["python", "-c", "import os; print(os.getuid())"], directory=tmp_path, echo=said.append)
    assert said and all(line.split()[2] != "0" for line in said)
    for container in (f"clab-{lab.name}-east-0", f"clab-{lab.name}-west-0"):
        rows = [line.split(None, 2)[1:] for line in docker("top", container, "-o", "pid,uid,args").splitlines()[1:]]
        assert any("testbed_agents.warm" in words for _, words in rows)
        assert all(uid != "0" for uid, words in rows if "testbed_agents" in words)


def test_exec_is_inside(lab: Lab) -> None:
    assert lab.exec("east-gw", ["test", "-e", "/.dockerenv"]) == 0


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return lambda node, *argv: docker("exec", f"clab-{lab.name}-{node}", *argv)


class TestContainers(LabContract):
    driver = "containerlab"


@pytest.fixture(scope="module")
def space(lab: Lab) -> Space:
    return lambda node: f"clab-{lab.name}-{node}"


class TestCasualtiesInContainers(CasualtiesContract):
    pass
