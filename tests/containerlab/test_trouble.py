"""What goes wrong with containers: said in a sentence, cleaned up, and never at the cost of somebody else's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import oracle
import pytest
from containerlab.test_containers import docker
from contract.lab_contract import FILE

import testbed
from testbed.errors import HostError, JobFailed, LabError, NameTaken
from testbed.host import docker_client, images
from testbed.lab import recovery, state
from testbed.lab.lab import Lab

pytestmark = pytest.mark.netns


@pytest.fixture
def topology(containers: str, tmp_path: Path) -> testbed.Topology:
    (tmp_path / "two.yaml").write_text(FILE)
    return testbed.load(str(tmp_path / "two.yaml"))


def up(topology: testbed.Topology, name: str, **more: object) -> Lab:
    return testbed.up(topology, name=name, driver="containerlab", **{"agents": False, **more})


def residue(lab: str) -> list[str]:
    """All that containerlab and docker know or leave of a lab, on the host."""
    found = docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label=containerlab={lab}").split()
    found += [str(path) for path in Path("/run/netns").glob(f"clab-{lab}-*")]
    found += [str(path) for path in Path("/etc/ssh/ssh_config.d").glob(f"clab-{lab}*")]
    found += [line for line in Path("/etc/hosts").read_text().splitlines() if f"CLAB-{lab}-" in line]
    return found


def emulator_pids(lab: str) -> list[int]:
    return [pid for pid, words, _ in oracle.processes() if f"/run/netns/clab-{lab}-plant" in words]


@pytest.fixture
def somebody_elses(containers: str, tmp_path: Path) -> Iterator[str]:
    """A containerlab lab that is not ours."""
    name = f"other{os.getpid()}"
    path = tmp_path / "other.clab.yml"
    path.write_text(
        f"name: {name}\nmgmt: {{network: unused, skip-when-unused: true}}\ntopology:\n"
        f"  defaults: {{kind: linux, image: '{containers}', network-mode: none, privileged: false, cmd: sleep 999}}\n"
        "  nodes: {a1: {}, b1: {}}\n  links: [{endpoints: ['a1:eth1', 'b1:eth1']}]\n"
    )
    environment = {**os.environ, "CLAB_VERSION_CHECK": "disable"}
    run = lambda *words: subprocess.run(  # noqa: E731
        ["containerlab", *words, "--topo", str(path)], env=environment, capture_output=True, text=True, timeout=120
    )
    try:
        deployed = run("deploy")
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        yield name
        assert sorted(it.rpartition("-")[2] for it in docker("ps", "--format", "{{.Names}}").split()) == ["a1", "b1"]
        assert docker("exec", f"clab-{name}-a1", "ip", "link", "show", "eth1")
    finally:
        run("destroy", "--cleanup")


def test_down_leaves_nothing_and_somebody_elses_lab_alone(topology: testbed.Topology, somebody_elses: str) -> None:
    name = oracle.unused_name()
    lab = up(topology, name)
    lab.down()
    assert residue(name) == []


def test_a_name_that_somebody_elses_lab_has_is_refused(topology: testbed.Topology, somebody_elses: str) -> None:
    with pytest.raises(NameTaken, match=somebody_elses):
        up(topology, somebody_elses)
    assert not state.folder(somebody_elses).path.exists()


@pytest.mark.parametrize("everything", [False, True])
def test_down_after_sigkill(topology: testbed.Topology, everything: bool) -> None:
    name = oracle.unused_name()
    up(topology, name)
    victims = oracle.keeper_pids(name, state.root())
    assert victims
    oracle.kill([*victims, *(emulator_pids(name) if everything else [])])
    assert recovery.down(state.folder(name))
    assert residue(name) == []
    assert not state.folder(name).path.exists()


def test_no_image_is_said_with_the_command_that_makes_it(
    topology: testbed.Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "reference", lambda *words, **more: "scale-across-testbed:0.0.1")
    with pytest.raises(HostError, match=r"no image scale-across-testbed:0.0.1 .*testbed image build"):
        up(topology, oracle.unused_name())


def test_an_image_of_another_version_is_named(topology: testbed.Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "__version__", "9.9.9")
    with pytest.raises(HostError, match=r"is of testbed .*, this is 9.9.9"):
        up(topology, oracle.unused_name())


def test_a_docker_that_does_not_run_is_said(
    topology: testbed.Topology, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    docker_client.client.cache_clear()
    try:
        with pytest.raises(HostError, match="docker does not run"):
            up(topology, oracle.unused_name())
    finally:
        docker_client.client.cache_clear()


def test_a_container_that_dies_in_a_run_fails_the_job_cleanly(topology: testbed.Topology) -> None:
    name = oracle.unused_name()
    with up(topology, name, agents=True) as lab:
        job = lab.train(steps=5000, restarts=0)
        job.wait_for(step=3, timeout=60)
        docker("kill", f"clab-{name}-west-0")
        with pytest.raises((JobFailed, LabError), match="rank"):
            job.wait(60)
        report = lab.report()
        assert report.training.steps_committed >= 3
    assert residue(name) == []
