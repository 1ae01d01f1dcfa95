"""From a bare Debian with sshd to a run by --on: `testbed host prepare`, twice, and after an update of the checkout.

The host is a machine of builders/bare_machine.py, with sshd, sudo and a user who may do everything by it. It says it is
a container, so that the role changes no sysctl of the kernel that it shares with this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import ROOT, bare_machine
from builders.commands import Done, captured, check, check_refused, words_of

from testbed.version import __version__

pytestmark = [pytest.mark.e2e, pytest.mark.netns, *bare_machine.marks, pytest.mark.alone]

PREPARE_BOUND_S, RUN_BOUND_S, START_BOUND_S = 900, 300, 60.0
SERVE = (
    bare_machine.SSH_HOST
    + r"""
cat /etc/ssh/ssh_host_ed25519_key.pub
exec /usr/sbin/sshd -D -e -p "$PORT" -o ListenAddress=127.0.0.1 -o UsePAM=no
"""
)


@dataclass(frozen=True)
class Client:
    folder: Path

    def run(self, line: str, *arguments: object) -> Done:
        return self.of(ROOT, line, *arguments)

    def of(self, checkout: Path, line: str, *arguments: object, bound_s: float = RUN_BOUND_S) -> Done:
        """Run the testbed of a checkout, as a user does whose ssh knows the host by the name lab1."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
        environment |= {
            "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'agents'}",
            "TESTBED_SSH_CONFIG": str(self.folder / "config"),
            "TESTBED_RUNS": str(self.folder / "runs"),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
        }
        argv = [sys.executable, "-m", "testbed", *words_of(line, *arguments)]
        done = captured(argv, cwd=self.folder, env=environment, timeout=bound_s)
        print(line, *arguments, done.returncode, done.stdout, done.stderr, sep="\n")
        return done

    def prepare(self, checkout: Path, commit: str) -> dict[str, int]:
        """Run `host prepare` for a commit, and return the numbers of Ansible's recap."""
        settings: dict[str, object] = {"testbed_host_commit": commit}
        if folder := bare_machine.wheels():
            settings["testbed_host_wheels"] = str(folder)
        names = ("PIP_CERT", "PIP_INDEX_URL", "https_proxy")
        settings["testbed_host_environment"] = {it: os.environ[it] for it in names if it in os.environ}
        words = ("host", "prepare", "lab1", "--", "-e", json.dumps(settings))
        done = self.of(checkout, *words, bound_s=PREPARE_BOUND_S)
        assert done.returncode == 0, done.stdout + done.stderr
        recap = re.search(r"^lab1 +: (.*)$", done.stdout, re.MULTILINE)
        assert recap is not None
        return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Provide the client of a host that is fresh: nothing of the testbed is on it."""
    if shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("ansible-playbook is not installed; install it with: pip install -e '.[ansible]'")
    folder = tmp_path_factory.mktemp("client")
    folder.chmod(0o755)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    variables = {"CLIENT_KEY": (folder / "key.pub").read_text().strip(), "PORT": str(port)}
    log = folder / "host.log"
    packages = ("python3", "sudo", "openssh-server", "ca-certificates")
    try:
        with bare_machine.started(["bash", "-c", SERVE], log, packages=packages, environment=variables) as child:
            until = time.monotonic() + START_BOUND_S
            while "Server listening" not in log.read_text():
                assert child.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            key = next(it for it in log.read_text().splitlines() if it.startswith("ssh-ed25519 "))
            (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}\n")
            (folder / "config").write_text(
                f"Host lab1\n HostName 127.0.0.1\n Port {port}\n User lab\n IdentityFile {folder}/key\n"
                f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile none\n"
            )
            yield Client(folder)
    except bare_machine.Unavailable as why:
        pytest.skip(str(why))


def head(checkout: Path) -> str:
    done = captured(["git", "rev-parse", "HEAD"], cwd=checkout, check=True)
    return done.stdout.strip()


def test_a_bare_host_is_prepared_used_and_brought_to_another_version(client: Client, tmp_path: Path) -> None:
    before = client.run("status --on lab1")
    check_refused(before, 2, "the testbed is not installed there", "host prepare lab1")

    commit = head(ROOT)  # a commit made meanwhile would make the second run change
    assert client.prepare(ROOT, commit)["changed"] > 0
    assert client.prepare(ROOT, commit)["changed"] == 0
    assert client.run("doctor --on lab1").returncode == 0
    check(client.run("up metro-single --no-agents --allow-uncertified --on lab1"))
    assert json.loads(client.run("status --json --on lab1").stdout)["name"] == "metro-single"
    assert client.run("down metro-single --on lab1").returncode == 0
    ran = client.run("run metro-40km --steps 20 --allow-uncertified --on lab1")
    assert ran.returncode in (0, 1, 3), "1: measured, and bad, as on a busy machine"
    (page,) = (client.folder / "runs").glob("metro-40km-*/index.html")
    assert client.run("report", page.parent.name).returncode == ran.returncode

    newer = bare_machine.checkout(tmp_path / "checkout")
    version = newer / "testbed" / "version.py"
    for path in (version, newer / "pyproject.toml"):
        path.write_text(path.read_text().replace(f'"{__version__}"', '"0.9.9"'))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "newer"]):
        subprocess.run([*git, *words], cwd=newer, check=True, capture_output=True)
    refused = client.of(newer, "status", "--on", "lab1")
    check_refused(refused, 2, f"lab1 has testbed {__version__}, but 0.9.9 is here")
    assert "host prepare lab1" in refused.stderr and refused.stderr.count("\n") == 1
    assert client.prepare(newer, head(newer))["changed"] > 0
    assert client.of(newer, "ls", "labs", "--on", "lab1").returncode == 0
