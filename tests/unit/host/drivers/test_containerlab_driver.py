"""What is said where docker or containerlab cannot be used: which of them, and what mends it.."""

from __future__ import annotations

import re
from pathlib import Path

import docker.errors
import pytest
import requests

from testbed.errors import HostError, MissingTool, NotAllowed, TestbedError
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.drivers.container_place import ContainerPlace


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds only what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}'\n")
    path.chmod(0o755)


def test_no_containerlab(tools: Path) -> None:
    assert "containerlab is missing" in containerlab.missing()
    assert "tools/install-containerlab.sh" in containerlab.missing()


@pytest.mark.parametrize(
    ("says", "wrong"),
    [
        ("0.79.0", ""), ("0.80.1", ""), ("1.0.0", ""),
        ("0.78.0", "containerlab is version 0.78.0, expected 0.79.0"), ("0.9.99", "containerlab is version 0.9.99"),
        ("no version at all", "expected a version"),
    ],
)  # fmt: skip
def test_versions_of_containerlab(tools: Path, says: str, wrong: str) -> None:
    program(tools, "containerlab", says)
    said = containerlab.missing()
    assert said == "" if not wrong else wrong in said


def test_what_the_installer_builds_is_new_enough() -> None:
    """tools/containerlab/go.mod is where its version is pinned."""
    folder = Path(__file__).resolve().parents[4] / "tools/containerlab"
    (pinned,) = re.findall(r"^require github.com/srl-labs/containerlab v(\S+)$", (folder / "go.mod").read_text(), re.M)
    assert tuple(map(int, pinned.split("."))) >= containerlab.OLDEST
    assert f"github.com/srl-labs/containerlab v{pinned} h1:" in (folder / "go.sum").read_text()


def test_every_module_that_is_built_has_its_checksum() -> None:
    folder = Path(__file__).resolve().parents[4] / "tools/containerlab"
    required = re.findall(r"^(?:require |\t)(\S+ v\S+)", (folder / "go.mod").read_text(), re.M)
    sums = {" ".join(line.split()[:2]) for line in (folder / "go.sum").read_text().splitlines()}
    assert len(required) > 100
    assert [it for it in required if it not in sums and f"{it}/go.mod" not in sums] == []


@pytest.mark.parametrize(
    ("foreign", "ours", "words"),
    [
        (
            docker.errors.DockerException("PermissionError(13, 'Permission denied')"),
            NotAllowed,
            "join the group docker, or run as root",
        ),
        (docker.errors.DockerException("FileNotFoundError(2, 'No such file')"), HostError, "docker is not running"),
        (requests.exceptions.ConnectionError("Connection refused"), HostError, "docker is not running"),
        (docker.errors.APIError("x", explanation="no space left on device"), HostError, "no space left on device"),
        (docker.errors.ImageNotFound("x", explanation="no such image"), docker_client.NotThere, "not found"),
        (requests.exceptions.ReadTimeout("read timed out"), HostError, "did not answer within 60 s"),
        (docker.errors.DockerException("Pool(port=None): Read timed out."), HostError, "did not answer within 60 s$"),
    ],
)
def test_dockers_exceptions_become_ours(foreign: Exception, ours: type[TestbedError], words: str) -> None:
    with pytest.raises(ours, match=words) as caught, docker_client.translated("do it"):
        raise foreign
    assert str(caught.value).startswith("could not do it")
    assert caught.value.__cause__ is foreign


def test_what_is_not_dockers_passes_through() -> None:
    with pytest.raises(KeyError), docker_client.translated("do it"):
        raise KeyError("mine")


def test_without_a_socket_docker_is_missing_or_does_not_run(monkeypatch: pytest.MonkeyPatch, tools: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tools))
    monkeypatch.setattr(docker_endpoint, "USUAL", tools / "none.sock")
    with pytest.raises(MissingTool, match=r"^docker is missing; install it with: .*tools/install-containerlab.sh"):
        docker_client.client()
    program(tools, "dockerd", "")
    with pytest.raises(HostError, match=r"^docker is not running; start it"):
        docker_client.client()


def test_a_program_of_a_job_is_on_a_leash_and_has_only_the_environment_that_it_is_given(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tools, "docker", "")
    monkeypatch.setenv("DOCKER_HOST", "unix:///another.sock")
    docker = docker_endpoint.Endpoint(Path("/x.sock"))
    line = ContainerPlace("clab-x-east-0", docker, "1000:1000").enter(
        ["python", "a b.py"], Path("/work"), {"RANK": "0"}
    )
    assert line[:4] == [str(tools / "docker"), "--host", "unix:///x.sock", "exec"]
    assert line[4:] == [
        "--interactive", "--env=RANK", "--workdir", "/work", "--user", "1000:1000", "clab-x-east-0",
        "python", "-m", "testbed_agents.watchdog", "--", "python", "a b.py",
    ]  # fmt: skip
    with pytest.raises(MissingTool, match="docker"):
        (tools / "docker").unlink()
        ContainerPlace("x", docker).visit(["true"])


@pytest.mark.parametrize(
    ("uid", "gid", "user"),
    [("1001", "1002", "1001:1002"), ("0", "0", "1000:1000"), ("", "", "1000:1000"), ("x", "1", "1000:1000")],
)
def test_ranks_are_never_root(monkeypatch: pytest.MonkeyPatch, uid: str, gid: str, user: str) -> None:
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", gid)
    assert containerlab.agent_user() == user


def test_of_etc_hosts_only_the_labs_own_section_goes(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an encoding that is not ours, and beside the section of another lab whose name begins alike."""
    before, other = (
        b"127.0.0.1 localhost # B\xfcro\n",
        b"###### CLAB-metro-2-START ######\n###### CLAB-metro-2-END ######\n",
    )
    mine = b"###### CLAB-metro-START ######\n10.1.1.1\tclab-metro-east-0\n###### CLAB-metro-END ######\n"
    hosts = tools / "hosts"
    hosts.write_bytes(before + mine + other)
    monkeypatch.setattr(containerlab, "_HOSTS", hosts)
    monkeypatch.setattr(containerlab, "_SSH", tools)
    containerlab.Containerlab("metro", tools, docker_endpoint.Endpoint(tools / "none.sock"))._sweep((), {})
    assert hosts.read_bytes() == before + other


SAID = """12:32:25 INFO Created link: west-gw:west-0 ▪┄┄▪ west-0:fabric0
12:32:25 ERRO Failed to execute command
  command=
  │ sh -ec
  │ ip route add 10.0.0.0/8 via 10.2.0.1
 node=west-0 rc=2 stdout=""
  stderr=
  │ RTNETLINK answers: Network is unreachable
  │ and more

12:32:26 INFO Executed command node=east-0 rc=0 command="true" stdout=""
12:32:26 ERRO Failed to execute command command="sh" node=east-1 rc=7 stdout="" stderr="a pity"
12:32:27 ERRO Failed to execute command command="sh" node=east-2 rc=9 stdout="" stderr=""
"""


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ("west-0", "RTNETLINK answers: Network is unreachable; and more"),
        ("east-0", ""),
        ("east-1", "a pity"),
        ("east-2", "its command exited with status 9"),
        ("west-gw", ""),
    ],
)
def test_what_a_nodes_command_complained_of_is_found(node: str, complaint: str) -> None:
    assert containerlab._complaint(SAID, node) == complaint
