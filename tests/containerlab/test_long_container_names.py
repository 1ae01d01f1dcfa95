"""Names of 40 characters on containers: the contract, and the rendered file deployed by containerlab alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.conditions import THOROUGH
from builders.labs import bring_up
from containerlab.test_containers import docker
from containerlab.test_plain import containerlab
from containerlab.test_trouble import residue
from contract.lab_contract import Inside
from contract.long_names_contract import FILE, LINKS, SITES, LongNamesContract, long_name
from oracles import oracle

import testbed
from testbed.lab import containers as lab_containers
from testbed.lab.lab import Lab

pytestmark = THOROUGH


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("t") / "long.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="class")
def lab(containers: str, file: Path, state_folder: Path) -> Iterator[Lab]:
    name = long_name(oracle.unused_name())
    # Whether a loaded machine keeps a fiber within tolerance is not asked here.
    with bring_up(name, testbed.load(str(file)), agents=True, driver="containerlab") as made:
        yield made
    assert docker("ps --all --quiet") == ""
    assert residue(name) == []


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return lambda node, *argv: docker(f"exec clab-{lab.name}-{node}", *argv)


class TestContainers(LongNamesContract):
    pass


def test_plain_containerlab_deploys_the_rendered_file(containers: str, file: Path, tmp_path: Path) -> None:
    name = long_name(oracle.unused_name())
    rendered = tmp_path / "long.clab.yml"
    rendered.write_text(lab_containers.render(testbed.load(str(file)), name=name))
    assert "Topology is valid" in containerlab("validate --topo", rendered, cwd=tmp_path)
    try:
        containerlab("deploy --topo", rendered, cwd=tmp_path)
        nodes, gateways = [f"{site}-0" for site in SITES], [f"{site}-gw" for site in SITES]
        interfaces = {
            gateways[0]: {*LINKS, nodes[0]},
            "plant": {f"{link}-{end}" for link in LINKS for end in "ab"},
            "mgmt": {*nodes, *gateways},
        }
        for place, wanted in interfaces.items():
            node = f"clab-{name}-{place}"
            oracle.until(lambda node=node: "testbed-network" in docker(f"exec {node} ls /run"), 30, "it is set up")  # type: ignore[misc]
            links = json.loads(docker(f"exec {node} ip -j link"))
            assert all(len(it["ifname"]) < 16 for it in links)
            told = {name for it in links for name in it.get("altnames", []) if not name.startswith("clab-")}
            assert told == wanted, place
    finally:
        containerlab("destroy --topo", rendered, "--cleanup", cwd=tmp_path, check=False)
        assert residue(name) == []
