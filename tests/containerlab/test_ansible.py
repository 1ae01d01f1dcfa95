"""The Ansible role on a container as the host, applied twice, and a lab run there by the playbook.

The container lacks some capabilities (modules, sysctls, an init for docker). The role's report of them is tested; the
tasks that need them are not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from builders import ROOT, bare_machine
from builders.commands import Done, captured, words_of
from builders.json_files import read_json

from testbed.host.drivers import docker_client, images

ANSIBLE = ROOT / "ansible"
BOUND_S = 900
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

pytestmark = pytest.mark.alone


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed; install it with: pip install -e '.[ansible]'")
    return found


def environment(folder: Path) -> dict[str, str]:
    # Ansible refuses a locale that is not UTF-8, and looks for its own tools on PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plugins = str(Path(__file__).parent / "connection_plugins")
    return {
        **os.environ, "PATH": path, "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder),
        "ANSIBLE_CONNECTION_PLUGINS": plugins, "ANSIBLE_DEPRECATION_WARNINGS": "0",
    }  # fmt: skip


@dataclass(frozen=True)
class Host:
    """A bare Debian, in a container; ``play`` is what an operator types."""

    name: str
    inventory: Path

    def play(self, line: str, *arguments: object) -> tuple[int, str, dict[str, int]]:
        """Exit status, everything that was said, and the numbers of the recap."""
        done = captured(
            [tool("ansible-playbook"), "--inventory", self.inventory, *words_of(line, *arguments)],
            cwd=ANSIBLE,
            env=environment(self.inventory.parent),
            timeout=BOUND_S,
        )
        said = done.stdout + done.stderr
        recap = re.search(rf"^{self.name} +: (.*)$", said, re.MULTILINE)
        assert recap is not None, said
        return done.returncode, said, {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])}

    def run(self, line: str, *arguments: object) -> Done:
        return captured(words_of(f"docker exec {self.name} {line}", *arguments), timeout=BOUND_S)


@pytest.fixture(scope="module")
def host(containers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """In the network of this machine, so that apt and pip reach what they reach here."""
    tool("ansible-playbook")
    if not any(images.BASE in it.tags for it in docker_client.client().images.list()):
        pytest.skip("no base image to make a host of; make it with: testbed image base")
    name = f"ansible-host-{os.getpid()}"
    words = ["--detach", "--name", name, "--network", "host", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN"]
    # A lab sets sysctls of its own namespaces: /proc/sys must not be read-only.
    words += ["--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined"]
    if CERTIFICATES.exists():
        words += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    folder = tmp_path_factory.mktemp("ansible")
    subprocess.run(["docker", "run", *words, images.BASE, "sleep", "infinity"], check=True, capture_output=True)
    try:
        made = Host(name, folder / "inventory.yml")
        # As prepare.yml does it; a mirror out of reach is no mistake of the role.
        lists = made.run("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
        if lists.returncode != 0:
            pytest.skip("apt reaches no mirror from a container: " + lists.stderr.strip())
        commit = captured(["git", "rev-parse", "HEAD"], cwd=ROOT)
        if commit.returncode != 0:
            pytest.skip("no git checkout to install from: " + commit.stderr.strip())
        settings: dict[str, object] = {
            "testbed_host_commit": commit.stdout.strip(),  # a commit meanwhile would make the second run change
            "ansible_connection": "docker_exec",
            "ansible_become": False,
            "testbed_host_environment": {
                key: value for key, value in os.environ.items() if key in ("PIP_CERT", "PIP_INDEX_URL", "https_proxy")
            },
            "testbed_host_containerlab_binary": shutil.which("containerlab"),
        }
        if wheels := bare_machine.wheels():
            settings["testbed_host_wheels"] = str(wheels)
        made.inventory.write_text(yaml.safe_dump({"all": {"children": {"testbed_hosts": {"hosts": {name: settings}}}}}))
        yield made
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=True)


@pytest.mark.e2e
@pytest.mark.netns
def test_check_mode_changes_nothing(host: Host) -> None:
    status, said, recap = host.play("prepare.yml --check")
    assert status == 0, said
    assert recap["changed"] > 0
    for path in ("/opt/testbed", "/usr/local/bin/containerlab", "/etc/sysctl.d/90-scale-across-testbed.conf"):
        assert host.run("test -e", path).returncode == 1, path


@pytest.mark.e2e
@pytest.mark.netns
@pytest.mark.skipif(
    not os.environ.get("TESTBED_ANSIBLE"),
    reason="takes three minutes, and apt and pip inside a container; make test-ansible runs it",
)
def test_a_bare_host_is_prepared_and_a_lab_run_on_it(host: Host, tmp_path: Path) -> None:
    status, said, recap = host.play("prepare.yml")
    assert status == 0, said
    assert recap["changed"] > 0
    for why in ("kernel modules: this host is a container", "docker is not started: this host is a container"):
        assert why in " ".join(said.split()), said
    for tool_name in ("dockerd", "containerlab", "/opt/testbed/venv/bin/testbed"):
        assert host.run("sh -c", f"command -v {tool_name}").returncode == 0, tool_name

    status, said, recap = host.play("prepare.yml")
    assert status == 0, said
    assert recap["changed"] == 0, said

    # An install that broke off leaves no note, and is done again.
    host.run("rm /opt/testbed/venv/.installed-from")
    status, said, recap = host.play("prepare.yml --tags testbed")
    assert (status, recap["changed"] > 0) == (0, True), said

    words = ["--driver", "netns", "--steps", "20", "--allow-uncertified", "--name", f"ans{os.getpid()}"]
    settings = {"testbed_results": str(tmp_path), "testbed_run_arguments": words}
    status, said, _ = host.play("run.yml --extra-vars", json.dumps({**settings, "testbed_topology": "metro-40km"}))
    reports = list((tmp_path / host.name).glob("*/report.json"))
    assert len(reports) == 1, said
    assert read_json(reports[0])
    assert host.run("sh -c 'ls -d /tmp/testbed-run-*'").stdout == ""
    assert not (tmp_path / host.name / "runs.tar.gz").exists()

    # A file of the controller's goes along; what is wrong in it is said, and fails the play.
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: 3\n")
    status, said, recap = host.play("run.yml --extra-vars", json.dumps({**settings, "testbed_topology": str(wrong)}))
    assert (status, recap["failed"]) == (2, 1), said
    assert "wrong.yaml:1" in said
    assert host.run("sh -c 'ls -d /tmp/testbed-run-*'").stdout == ""
