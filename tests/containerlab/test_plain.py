"""The output of `testbed render`, deployed by containerlab itself, without the testbed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from builders import ROOT
from builders.commands import words_of
from builders.conditions import ALONE
from builders.json_files import read_json
from containerlab.test_containers import docker
from containerlab.test_trouble import residue
from contract.lab_contract import FILE
from oracles import oracle
from ruamel.yaml import YAML

import testbed
from testbed.lab import containers as lab_containers

pytestmark = ALONE

NODES = ["east-0", "east-gw", "mgmt", "plant", "west-0", "west-gw"]


@pytest.fixture(scope="module")
def name() -> str:
    return oracle.unused_name()


@pytest.fixture(scope="module")
def file(containers: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "two.yaml").write_text(FILE)
    path = folder / "two.clab.yml"
    path.write_text(lab_containers.render(testbed.load(str(folder / "two.yaml")), name=name))
    return path


def containerlab(line: str, *arguments: object, cwd: Path, check: bool = True) -> str:
    done = subprocess.run(
        words_of(f"containerlab {line}", *arguments), cwd=cwd, env={**os.environ, "CLAB_VERSION_CHECK": "disable"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if check else subprocess.DEVNULL, text=True, timeout=180,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def deployed(file: Path, name: str) -> Iterator[Path]:
    try:
        containerlab("deploy --topo", file, cwd=file.parent)
        yield file
    finally:
        containerlab("destroy --topo", file, "--cleanup", cwd=file.parent, check=False)
        assert residue(name) == []


def test_it_is_valid(file: Path) -> None:
    assert "Topology is valid" in containerlab("validate --topo", file, cwd=file.parent)


def test_it_agrees_with_the_schema(file: Path) -> None:
    """That of the version that tools/install-containerlab.sh builds."""
    required = (ROOT / "tools" / "containerlab" / "go.mod").read_text()
    version = required.partition("require github.com/srl-labs/containerlab v")[2].split()[0]
    schema = ROOT / "build" / f"clab-{version}.schema.json"
    if not schema.exists():
        pytest.skip(f"make test keeps containerlab's schema where Go 1.21 or newer is installed: no {schema}")
    content = read_json(schema)
    validator = jsonschema.validators.validator_for(content)(content)
    assert [str(it) for it in validator.iter_errors(YAML(typ="safe").load(file.read_text()))] == []


def test_inspect_tells_every_node_and_its_site(deployed: Path, name: str) -> None:
    said = containerlab("inspect --topo", deployed, "--format", "json", cwd=deployed.parent, check=False)
    found = json.loads(said)[name]
    assert sorted(it["name"] for it in found) == [f"clab-{name}-{node}" for node in NODES]
    assert {it["state"] for it in found} == {"running"}
    groups = {it["name"].removeprefix(f"clab-{name}-"): it.get("group") for it in found}
    assert all(groups[node] == node.partition("-")[0] for node in NODES if "-" in node)


def test_graph_draws_every_cable(deployed: Path, name: str) -> None:
    containerlab("graph --topo", deployed, "--mermaid", cwd=deployed.parent)
    (drawn,) = deployed.parent.rglob("*.mermaid")
    cables = [tuple(sorted(line.strip().split("---"))) for line in drawn.read_text().splitlines() if line[:1] == " "]
    assert sorted(cables) == sorted(
        [("east-0", "east-gw"), ("west-0", "west-gw")]
        + 2 * [("east-gw", "plant"), ("plant", "west-gw")]
        + [tuple(sorted(("mgmt", node))) for node in ("east-0", "east-gw", "west-0", "west-gw")]
    )


def test_nodes_reach_their_gateway_and_the_fibers_are_dark(deployed: Path, name: str) -> None:
    """Both ends: gateways see no carrier."""
    node = f"clab-{name}-east-0"
    oracle.until(lambda: "testbed-network" in docker(f"exec {node} ls /run"), 30, "its network is set up")
    docker(f"exec {node} ping -c 1 -W 5 10.1.0.1")
    for gateway in ("east-gw", "west-gw"):
        links = json.loads(docker(f"exec clab-{name}-{gateway} ip -j link"))
        assert {it["ifname"]: "NO-CARRIER" in it["flags"] for it in links if it["ifname"] in ("north", "south")} == {
            "north": True,
            "south": True,
        }
