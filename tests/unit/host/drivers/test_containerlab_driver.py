"""What is said where docker or containerlab cannot be used: which of them, and what mends it.."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import requests
from builders.processes import call_by_sudo, write_program
from builders.tables import table
from docker.errors import APIError, DockerException, ImageNotFound

from testbed.errors import HostError, MissingTool, NotAllowed, TestbedError
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.drivers.container_place import ContainerPlace


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds only what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, output: str) -> None:
    write_program(folder / name, f"#!/bin/sh\nprintf '%s\\n' '{output}'\n")


def test_no_containerlab(tools: Path) -> None:
    assert "containerlab is missing" in containerlab.missing()
    assert "tools/install-containerlab.sh" in containerlab.missing()


@table(
    "version, wrong",
    {
        "the oldest": ("0.79.0", ""),
        "a newer one": ("0.80.1", ""),
        "a much newer one": ("1.0.0", ""),
        "an older one": ("0.78.0", "containerlab is version 0.78.0, expected 0.79.0"),
        "a much older one": ("0.9.99", "containerlab is version 0.9.99"),
        "none": ("no version at all", "expected a version"),
    },
)
def test_versions_of_containerlab(tools: Path, version: str, wrong: str) -> None:
    program(tools, "containerlab", version)
    missing = containerlab.missing()
    assert wrong in missing and bool(wrong) == bool(missing)


MODULES = Path(__file__).resolve().parents[4] / "tools/containerlab"
GO_MOD, GO_SUM = ((MODULES / name).read_text() for name in ("go.mod", "go.sum"))


def test_what_the_installer_builds_is_new_enough() -> None:
    """tools/containerlab/go.mod is where its version is pinned."""
    (pinned,) = re.findall(r"^require github.com/srl-labs/containerlab v(\S+)$", GO_MOD, re.M)
    assert tuple(map(int, pinned.split("."))) >= containerlab.OLDEST
    assert f"github.com/srl-labs/containerlab v{pinned} h1:" in GO_SUM


def test_every_module_that_is_built_has_its_checksum() -> None:
    required = re.findall(r"^(?:require |\t)(\S+ v\S+)", GO_MOD, re.M)
    sums = {" ".join(line.split()[:2]) for line in GO_SUM.splitlines()}
    assert len(required) > 100
    assert [module for module in required if not {module, f"{module}/go.mod"} & sums] == []


@pytest.mark.parametrize(
    ("foreign", "ours", "text"),
    [
        (
            DockerException("PermissionError(13, 'Permission denied')"),
            NotAllowed,
            "join the group docker, or run as root",
        ),
        (DockerException("FileNotFoundError(2, 'No such file')"), HostError, "docker is not running"),
        (requests.ConnectionError("Connection refused"), HostError, "docker is not running"),
        (APIError("x", explanation="no space left on device"), HostError, "no space left on device"),
        (ImageNotFound("x", explanation="no such image"), docker_client.NotThere, "not found"),
        (requests.ReadTimeout("read timed out"), HostError, "did not answer within 60 s"),
        (DockerException("Pool(port=None): Read timed out."), HostError, "did not answer within 60 s$"),
    ],
)
def test_dockers_exceptions_become_ours(foreign: Exception, ours: type[TestbedError], text: str) -> None:
    with pytest.raises(ours, match=text) as caught, docker_client.translated("do it"):
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


@table(
    "uid, gid, user",
    {
        "the caller of sudo": (1001, 1002, "1001:1002"),
        "root called sudo": (0, 0, "1000:1000"),
        "an empty caller": ("", "", "1000:1000"),
        "no number": ("x", 1, "1000:1000"),
    },
)
def test_ranks_are_never_root(monkeypatch: pytest.MonkeyPatch, uid: object, gid: object, user: str) -> None:
    call_by_sudo(monkeypatch, uid, gid)
    assert containerlab.agent_user() == user


def test_of_etc_hosts_only_the_labs_own_section_goes(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an encoding that is not ours, and beside the section of another lab whose name begins alike."""
    before = b"127.0.0.1 localhost # B\xfcro\n"
    other = b"###### CLAB-metro-2-START ######\n###### CLAB-metro-2-END ######\n"
    mine = b"###### CLAB-metro-START ######\n10.1.1.1\tclab-metro-east-0\n###### CLAB-metro-END ######\n"
    hosts = tools / "hosts"
    hosts.write_bytes(before + mine + other)
    monkeypatch.setattr(containerlab, "_HOSTS", hosts)
    monkeypatch.setattr(containerlab, "_SSH", tools)
    containerlab.Containerlab("metro", tools, docker_endpoint.Endpoint(tools / "none.sock")).sweep((), {})
    assert hosts.read_bytes() == before + other


OUTPUT = """12:32:25 INFO Created link: west-gw:west-0 ▪┄┄▪ west-0:fabric0
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


@table(
    "node, complaint",
    {
        "several lines": ("west-0", "RTNETLINK answers: Network is unreachable; and more"),
        "no failure": ("east-0", ""),
        "one line": ("east-1", "a pity"),
        "a status alone": ("east-2", "its command exited with status 9"),
        "no command": ("west-gw", ""),
    },
)
def test_what_a_nodes_command_complained_of_is_found(node: str, complaint: str) -> None:
    assert containerlab.complaint_of(OUTPUT, node) == complaint
