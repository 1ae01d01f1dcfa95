"""Failures of container labs: reported, cleaned up, and without harm to other programs' containers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from builders.commands import TESTBED, Done, captured, check, run_line
from builders.conditions import ALONE, thorough
from builders.labs import Topology
from containerlab.test_containers import docker
from contract.lab_contract import FILE
from oracles import oracle

import testbed
from testbed.errors import HostError, LabError, NameTaken
from testbed.host import lab_folder
from testbed.host.drivers import images
from testbed.host.linux import process
from testbed.lab import containers as lab_containers
from testbed.lab import teardown
from testbed.lab.lab import Lab

pytestmark = ALONE


def command(*before: str, words: list[str]) -> tuple[int, str]:
    """Exit status and stderr of a command, behind those of ``before``."""
    done = captured([*before, *TESTBED, *words], timeout=60)
    return done.returncode, done.stderr


@pytest.fixture
def topology(containers: str, tmp_path: Path) -> Topology:
    (tmp_path / "two.yaml").write_text(FILE)
    return testbed.load(str(tmp_path / "two.yaml"))


def up(topology: Topology, name: str, agents: bool = False) -> Lab:
    return testbed.up(topology, name=name, driver="containerlab", agents=agents, allow_uncertified=True)


def residue(lab: str) -> list[str]:
    """All that containerlab and docker know or leave of a lab, on the host."""
    found = docker("ps --all --format", "{{.Names}}", "--filter", f"label=containerlab={lab}").split()
    found += [str(path) for path in Path("/run/netns").glob(f"clab-{lab}-*")]
    found += [str(path) for path in Path("/etc/ssh/ssh_config.d").glob(f"clab-{lab}*")]
    found += [line for line in Path("/etc/hosts").read_text().splitlines() if f"CLAB-{lab}-" in line]
    return found


def down(lab: str) -> bool:
    return teardown.down(lab_folder.folder(lab))


def assert_gone(lab: str) -> None:
    assert residue(lab) == []
    assert not lab_folder.folder(lab).path.exists()


def keeper_pids(lab: str) -> list[int]:
    return oracle.keeper_pids(lab, lab_folder.root())


def emulator_pids(lab: str) -> list[int]:
    return [pid for pid, words, _ in oracle.processes() if f"/run/netns/clab-{lab}-plant" in words]


@pytest.fixture
def name() -> Iterator[str]:
    """Provide an unused name for a lab, of which nothing may be left afterwards."""
    made = oracle.unused_name()
    yield made
    assert_gone(made)


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

    def run(*words: str) -> Done:
        return captured(["containerlab", *words, "--topo", path], env=environment, timeout=120)

    try:
        check(run("deploy"))
        yield name
        assert sorted(it.rpartition("-")[2] for it in docker("ps --format", "{{.Names}}").split()) == ["a1", "b1"]
        assert docker(f"exec clab-{name}-a1 ip link show eth1")
    finally:
        run("destroy", "--cleanup")


def test_down_leaves_nothing_and_somebody_elses_lab_alone(topology: Topology, somebody_elses: str) -> None:
    name = oracle.unused_name()
    lab = up(topology, name)
    lab.down()
    assert residue(name) == []


def test_a_name_that_somebody_elses_lab_has_is_refused(topology: Topology, somebody_elses: str) -> None:
    with pytest.raises(NameTaken, match=somebody_elses):
        up(topology, somebody_elses)
    assert not lab_folder.folder(somebody_elses).path.exists()


def test_names_that_somebody_elses_container_or_namespace_has_are_refused(topology: Topology, containers: str) -> None:
    name = oracle.unused_name()
    docker(f"run --detach --name clab-{name}-east-0 --network none", containers, "sleep", "999")
    try:
        with pytest.raises(NameTaken, match=f"container clab-{name}-east-0 exists"):
            up(topology, name)
    finally:
        docker(f"rm --force clab-{name}-east-0")
    run_line(f"ip netns add clab-{name}-plant")
    try:
        with pytest.raises(NameTaken, match=f"network namespace clab-{name}-plant exists"):
            up(topology, name)
    finally:
        run_line(f"ip netns del clab-{name}-plant")
    assert not lab_folder.folder(name).path.exists()


@pytest.mark.parametrize("everything", [thorough(False), True])
def test_down_after_sigkill(topology: Topology, name: str, everything: bool) -> None:
    up(topology, name)
    victims = keeper_pids(name)
    assert victims
    oracle.kill([*victims, *(emulator_pids(name) if everything else [])])
    assert down(name)


@pytest.mark.thorough
def test_a_lab_without_a_keeper_is_its_dockers_whatever_the_environment_says(
    topology: Topology, name: str, tmp_path: Path
) -> None:
    lab = up(topology, name)
    oracle.kill(keeper_pids(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        assert lab.exec("east-0", ["true"]) == 0
        assert not any("docker" in why for why in lab.status().why)
        assert down(name)


def test_down_after_a_reboot(topology: Topology, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a lab is made of docker alone keeps something: the containers, stopped."""
    up(topology, name)
    oracle.kill([*keeper_pids(name), *emulator_pids(name)])
    docker("kill", *docker(f"ps --quiet --filter label=containerlab={name}").split())
    monkeypatch.setattr(process, "boot_id", lambda: "that of the next boot")
    assert down(name)


def test_no_image_is_said_with_the_command_that_makes_it(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "reference", lambda *words, **more: "scale-across-testbed:0.0.1")
    with pytest.raises(HostError, match=r"unknown image scale-across-testbed:0.0.1 .*testbed image build"):
        up(topology, oracle.unused_name())


def test_an_image_of_another_version_is_named(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "__version__", "9.9.9")
    with pytest.raises(HostError, match=r"is for testbed .*, expected 9.9.9"):
        up(topology, oracle.unused_name())


def test_a_docker_that_does_not_run_is_said(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(HostError, match="docker is not running"):
        up(topology, oracle.unused_name())


def test_without_permission_for_dockers_socket(topology: Topology, tmp_path: Path) -> None:
    """As nobody, who may read all files (this interpreter's may lie where only root reads) and write to none."""
    caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *caps]
    done = command(*nobody, "env", "TESTBED_DRIVER=auto", words=["up", "metro-40km", "--driver", "containerlab"])
    status, said = done
    assert status == 2
    assert said.startswith("testbed: no permission for docker's socket; join the group docker, or run as root: ")
    assert "testbed up metro-40km --driver containerlab" in said


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 0.57.1", "containerlab is version 0.57.1, expected 0.79.0 or newer; update it with: tools/"),
        ("exit 3", "expected a version from 'containerlab version', got: ;"),
        (None, "containerlab is missing; install it with: tools/install-containerlab.sh"),
    ],
)
def test_containerlab_is_missing_or_too_old(containers: str, tmp_path: Path, script: str | None, sentence: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("setpriv", "ip", "docker", "env"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    if script is not None:
        (folder / "containerlab").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "containerlab").chmod(0o755)
    status, said = command("env", f"PATH={folder}", words=["up", "metro-40km", "--driver", "containerlab"])
    assert status == 3
    assert sentence in said
    assert "use --driver netns instead" in said


@pytest.mark.parametrize("breaks", ["echo what a pity >&2; exit 7", "ip route add 10.77.0.0/16 via 10.66.0.1"])
def test_a_node_whose_network_cannot_be_set_up_is_named_with_its_last_words(
    topology: Topology, name: str, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    rendered = lab_containers._render

    def broken(*words: Any, **more: Any) -> str:
        before, mark, after = rendered(*words, **more).partition("    west-0:")
        return before + mark + after.replace("sh -ec '\n", f"sh -ec '\n                {breaks}\n", 1)

    monkeypatch.setattr(lab_containers, "_render", broken)
    began = time.monotonic()
    with pytest.raises(HostError, match=r"^network setup of west-0 failed: (what a pity$|Error: |RTNET)"):
        up(topology, name)
    assert host_stalls.elapsed_s(began) < 60


@pytest.mark.thorough
@pytest.mark.parametrize("node", ["west-0", thorough("west-gw")])
def test_a_container_that_dies_in_a_run_fails_the_job_cleanly(topology: Topology, node: str) -> None:
    """A gateway's ranks would wait 30 s for one another."""
    name = oracle.unused_name()
    with up(topology, name, agents=True) as lab:
        job = lab.train(steps=5000)
        job.wait_for(step=3, timeout=60)
        docker(f"kill clab-{name}-{node}")
        killed = time.monotonic()
        with pytest.raises(LabError):  # not the job's failure: somebody else killed the container
            job.wait(60)
        assert host_stalls.elapsed_s(killed) < 10
        assert job.failure() == f"the container of {node} died"
        now = lab.status()
        assert now.state == "degraded"
        assert any(f"the container of {node} has exited" in it for it in now.why)
        with pytest.raises(LabError, match=f"the container of {node} has exited"):
            lab.cut("north")
        report = lab.report()
        assert report.training.steps_committed >= 3
    assert residue(name) == []


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_docker_that_ends_while_a_lab_is_up(topology: Topology, name: str, dockerd: Any, number: int) -> None:
    """SIGTERM takes the containers along, SIGKILL leaves them running until the next daemon finds them."""
    lab = up(topology, name)
    assert keeper_pids(name)
    try:
        dockerd.end(number)
        now = lab.status()
        assert now.state == "degraded"
        assert any(why.startswith("docker is not running; start it: service docker start") for why in now.why)
        with pytest.raises(HostError, match="docker is not running"):
            lab.exec("east-0", ["true"])
        with pytest.raises(
            HostError, match=f"docker is not running; start it: .* remove the rest .* with: testbed down {name}"
        ):
            lab.down()
        oracle.until(lambda: not keeper_pids(name), 10, "the keeper ends")
        assert lab_folder.folder(name).journal.exists()
    finally:
        dockerd.start()
        gone = down(name)
    assert gone


@pytest.mark.thorough
def test_of_a_lab_whose_docker_is_gone_each_verb_says_so_in_a_sentence(
    topology: Topology, name: str, dockerd: Any
) -> None:
    """Its containers live on: what needs no docker still works."""
    gone = "docker is not running; start it: service docker start, or where that fails: tools/install-containerlab"

    def said(*words: str) -> tuple[int, str, str]:
        done = captured([*TESTBED, *words], timeout=60)
        assert len(done.stderr.splitlines()) <= 2, done.stderr  # `launch` notes the scale of the lab
        assert "Traceback" not in done.stderr and "bug" not in done.stderr
        return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""

    lab = up(topology, name)
    ours = ["-l", name]
    try:
        before = json.loads(said("ls", "labs", "--json")[1])
        assert [(it["name"], it["state"], it["why"]) for it in before] == [(name, "up", [])]
        dockerd.end(signal.SIGKILL)
        (line,) = json.loads(said("ls", "labs", "--json")[1])
        now = json.loads(said("status", *ours, "--json")[1])
        assert (line["state"], now["state"]) == ("degraded", "degraded")
        assert line["why"] == now["why"] and line["why"][0].startswith(gone)
        status, table, reason = said("ls")
        assert status == 0 and "degraded" in table and reason.startswith(f"{name}: {gone}")
        for verb in (["exec", *ours, "east-0", "--", "true"], ["launch", *ours, "--allow-uncertified", "--", "true"]):
            status, _, reason = said(*verb)
            assert status == 125 and reason.startswith(f"testbed: {gone}")
        assert said("inject", *ours, "cut", "north")[0] == 0
        assert {it.carrier["east"] for it in lab.status().links} == {True, False}
        assert said("heal", *ours)[0] == 0
        status, _, reason = said("down", name)
        assert status == 3 and f": {gone}" in reason and reason.endswith(f" testbed down {name}")
        oracle.until(lambda: not keeper_pids(name), 10, "the keeper ends")
        assert emulator_pids(name) == []
    finally:
        dockerd.end()  # a check before that may have failed
        dockerd.start()
        down(name)


@pytest.mark.parametrize("seed", [0, *map(thorough, range(1, 12))])
def test_an_up_that_is_killed_at_some_moment_leaves_what_down_removes(
    topology: Topology, name: str, tmp_path: Path, seed: int
) -> None:
    words = ["up", str(tmp_path / "two.yaml"), "--name", name, "--driver", "containerlab", "--allow-uncertified"]
    child = subprocess.Popen(TESTBED + words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(random.Random(seed).uniform(0.5, 5.0))
    finally:
        child.kill()
        child.wait()
        oracle.kill(keeper_pids(name))
    down(name)
    # A containerlab that lost its keeper ends with what it was about to make.
    oracle.until(lambda: down(name) or not residue(name), 20, f"{name} goes")
