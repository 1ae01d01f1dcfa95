"""docs/hosts.md, from two fresh machines to a report here: its commands, as written there, on two bare machines.

Machine lab1 is a bare Debian with sshd, sudo and Python, and a user who may do everything by sudo; the client is one
with what the page asks for, and an ordinary user. Both share this machine's network. lab1 says that it is a container,
so that the role changes no sysctl of the kernel that it shares with this machine.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import ROOT, bare_machine

pytestmark = [pytest.mark.e2e, pytest.mark.netns, *bare_machine.marks, pytest.mark.alone]

PAGE = ROOT / "docs" / "hosts.md"
HOST_PACKAGES = ("python3", "sudo", "openssh-server", "ca-certificates")
CLIENT_PACKAGES = ("git", "make", "python3-venv", "openssh-client", "ca-certificates")
ADDRESS = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}.1"
BOUND_S, START_BOUND_S = 1500.0, 60.0
HOST = (
    bare_machine.SSH_HOST
    + r"""
[ -z "$PIP_CERT" ] || printf '[global]\ncert = %s\n' "$PIP_CERT" >/etc/pip.conf
ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub
exec /usr/sbin/sshd -D -e -o ListenAddress="$ADDRESS:22" -o UsePAM=no
"""
)
CLIENT = r"""
set -e
useradd --create-home --shell /bin/bash me
chown -R me: /srv/testbed
chmod 755 /srv
install -d -m 700 -o me -g me /home/me/.ssh
install -m 600 -o me -g me /srv/testbed/.key /home/me/.ssh/id_ed25519
rm /srv/testbed/.key
[ -z "$PIP_CERT" ] || printf '[global]\ncert = %s\n' "$PIP_CERT" >/etc/pip.conf
echo "$ADDRESS lab1" >>/etc/hosts
echo ready
exec sleep infinity
"""


def commands() -> list[str]:
    """Return the commands of the page's first section, without their remarks."""
    section = PAGE.read_text().partition("## From two fresh machines")[2].partition("\n## ")[0]
    block = re.findall(r"```console\n(.*?)```", section, re.DOTALL)[0]
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in block.splitlines() if line.startswith("$ ")]


@dataclass(frozen=True)
class Client:
    """The client's machine; ``pid`` is its first process. Its user's shell is in the checkout once there is one."""

    pid: int

    def types(self, line: str, answer: tuple[str, str] | None = None) -> tuple[int, str, float]:
        """Type a line at a terminal of the client; return its exit status, what the terminal showed, and the time."""
        shell = f"cd; test ! -d testbed || cd testbed; {line}"
        environment = ["PATH=/usr/bin:/bin", "HOME=/home/me", "LANG=C.UTF-8", "TERM=dumb", "TESTBED_WHEELS=/srv/wheels"]
        pid, terminal = pty.fork()
        if pid == 0:
            enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-p", "-r", "-w", "--", "setpriv"]
            user = ["--reuid=me", "--regid=me", "--init-groups", "--reset-env", "env", "-i", *environment]
            os.execvp(enter[0], [*enter, *user, "bash", "-c", shell])
        began, shown = time.monotonic(), b""
        try:
            while True:
                left = began + BOUND_S - time.monotonic()
                ready, _, _ = select.select([terminal], [], [], max(left, 0.0))
                assert ready, f"{line}: no end after {BOUND_S} s:\n{shown.decode()}"
                try:
                    piece = os.read(terminal, 65536)
                except OSError:  # EIO: its last process has ended
                    break
                shown += piece
                if answer is not None and answer[0] in shown.decode(errors="replace"):
                    os.write(terminal, answer[1].encode())
                    answer = None
        finally:
            os.close(terminal)
        _, status = os.waitpid(pid, 0)
        took = time.monotonic() - began
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace")).replace("\r\n", "\n")
        print(f"$ {line}\n{text}\n[exit status {os.waitstatus_to_exitcode(status)}, {took:.1f} s]\n", flush=True)
        return os.waitstatus_to_exitcode(status), text, took


def _first_of(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@contextlib.contextmanager
def machine(
    script: str, log: Path, ready: str, packages: tuple[str, ...], source: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    words = ["bash", "-c", script]
    environment = {"PIP_CERT": "", "ADDRESS": ADDRESS, **more}
    if bare_machine.CERTIFICATES.exists():
        environment["PIP_CERT"] = str(bare_machine.CERTIFICATES)
    with bare_machine.started(words, log, packages=packages, environment=environment, source=source) as child:
        until = time.monotonic() + START_BOUND_S
        while ready not in log.read_text():
            assert child.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield child


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[Client, str]]:
    """Provide the client, and the fingerprint of the host's key."""
    repository, nothing = tmp_path / "repository", tmp_path / "nothing"
    repository.mkdir()
    nothing.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    key = (tmp_path / "key.pub").read_text().strip()
    try:
        bare_machine.checkout(repository)
        git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "as it is now"]):
            subprocess.run([*git, *words], cwd=repository, check=True, capture_output=True)
        (tmp_path / "key").rename(repository / ".key")
        host_log, client_log = tmp_path / "host.log", tmp_path / "client.log"
        with (
            machine(HOST, host_log, "Server listening", HOST_PACKAGES, nothing, CLIENT_KEY=key),
            machine(CLIENT, client_log, "ready", CLIENT_PACKAGES, repository) as made,
        ):
            (fingerprint,) = re.findall(r"SHA256:\S+", host_log.read_text())[:1]
            yield Client(_first_of(made)), fingerprint
    except bare_machine.Unavailable as why:
        pytest.skip(str(why))


def test_the_commands_of_the_page_lead_to_a_report_here(client: tuple[Client, str]) -> None:
    shell, fingerprint = client
    clone, make, login, prepare, run, report = commands()
    assert clone.startswith("git clone URL ")
    for line in (clone.replace("URL", "/srv/testbed"), make):
        assert shell.types(line)[0] == 0
    status, shown, _ = shell.types(login, answer=("(yes/no", "yes\n"))
    assert status == 0
    assert fingerprint in shown, "what the page says to compare"
    assert shell.types(prepare)[0] == 0
    status, shown, _ = shell.types(run)
    assert status in (0, 1, 3), "1: measured, and bad, as on a busy machine; 3: a fiber out of tolerance"
    if status == 3:
        status, shown, _ = shell.types(f"{run} --allow-uncertified")
        assert status in (0, 1)
    assert "Traceback" not in shown
    again, said, _ = shell.types(report)
    assert again == status
    (page,) = re.findall(r"(/home/me/\S+/index\.html)", said)
    assert shell.types(f"test -s {page}")[0] == 0
