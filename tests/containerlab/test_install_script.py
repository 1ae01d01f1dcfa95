"""tools/install-containerlab.sh on a machine without systemd where root may not raise limits: it starts a real dockerd.

In mount and network namespaces of its own: what it installs and writes is in layers above this machine's folders.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import Done
from oracles import oracle

from testbed.host.drivers import containerlab

SCRIPT = ROOT / "tools" / "install-containerlab.sh"
BOUND_S = 150
POLICY = "/usr/sbin/policy-rc.d"

LAYERS = """\
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs {folder}/layers
for part in /var /usr/sbin; do
    layer={folder}/layers$part
    mkdir -p $layer/upper $layer/work
    mount -t overlay overlay -o lowerdir=$part,upperdir=$layer/upper,workdir=$layer/work $part
done
mkdir -p /run/lock {folder}/layers/docker /var/lib/docker
mount -t tmpfs tmpfs /var/lib/docker
ip link set lo up
"""
"""A machine on which docker has never run. Its data are no overlay, as docker makes overlays itself."""


class Machine:
    """Runs shell scripts in one pair of namespaces, without the right to raise limits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "layers").mkdir()
        (folder / "bin").mkdir()
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "sleep", "infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        home, made = Path("/proc/self/ns/mnt").readlink(), Path(f"/proc/{self._holder.pid}/ns/mnt")
        oracle.until(lambda: made.readlink() != home, 10, "the namespaces are made")

    def __call__(self, script: str) -> str:
        """Output of a script, which must succeed."""
        done = self.ask(script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, script: str) -> Done:
        weak = ["prlimit", "--nofile=8192:8192", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
        argv = ["nsenter", f"--target={self._holder.pid}", "--mount", "--net", "--", *weak, "--", "bash", "-c", script]
        left_out = ("DOCKER_HOST", "DOCKER_CONTEXT", "START_DOCKER", "TESTBED_STATE", "TESTBED_RUNS")
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        environment["PATH"] = f"{self.folder / 'bin'}:{environment['PATH']}"
        log = self.folder / "words"  # a file: dockerd must not keep a pipe of ours open, nor be waited for by it
        with log.open("w+") as words:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT, env=environment,
                timeout=BOUND_S, start_new_session=True,
            )  # fmt: skip
        return subprocess.CompletedProcess(argv, done.returncode, log.read_text(errors="replace"), "")

    def dockerd(self) -> int:
        """Pid of its dockerd; 0 if none runs."""
        said = self.ask("cat /run/docker.pid").stdout.strip()
        return int(said) if said.isdecimal() and Path("/proc", said).exists() else 0

    def end(self) -> None:
        if pid := self.dockerd():
            os.kill(pid, signal.SIGTERM)
            oracle.until(lambda: not Path(f"/proc/{pid}").exists(), 30, "dockerd ends")
        self.ask("umount /run/docker/netns/default")
        self._holder.kill()
        self._holder.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("not root: makes namespaces, and starts dockerd")
    lacking = [it for it in ("dockerd", "start-stop-daemon", "service") if shutil.which(it) is None]
    if lacking or not Path("/etc/init.d/docker").exists():
        pytest.skip(f"not Debian's docker: no {', '.join(lacking) or 'init script'}")
    if why := containerlab.missing():
        pytest.skip(why)
    made = Machine(tmp_path)
    try:
        layered = made.ask(LAYERS.format(folder=tmp_path))
        if layered.returncode != 0:
            pytest.skip(f"this kernel cannot layer folders: {layered.stdout.strip()}")
        yield made
    finally:
        made.end()


def answers(machine: Machine) -> bool:
    return machine.ask("docker version").returncode == 0


def test_dockerd_is_started_where_the_init_script_cannot_and_can_be_ended(machine: Machine) -> None:
    """Debian's package starts docker when it is installed, and would count as broken when that fails."""
    machine(f"cp /usr/sbin/dockerd {machine.folder}/bin/its-dockerd; rm -f /usr/sbin/dockerd {POLICY}")
    apt = machine.folder / "bin" / "apt-get"
    apt.write_text(
        "#!/bin/sh -e\n"
        'case " $* " in *" install "*) ;; *) exit 0 ;; esac\n'
        f"status=0; {POLICY} docker start || status=$?; [ $status = 101 ]\n"  # as invoke-rc.d asks
        f"{POLICY} cron start\n"
        f"cp {machine.folder}/bin/its-dockerd /usr/sbin/dockerd\n"
    )
    apt.chmod(0o755)

    said = machine(str(SCRIPT))

    assert "installing Debian packages: docker.io iptables" in said
    assert machine.ask(f"ls {POLICY}").returncode != 0, "it is removed again"
    pid = machine.dockerd()
    assert pid, said
    assert answers(machine)
    assert f"this script started dockerd itself (pid {pid}), because its init script failed: " in said
    assert "ulimit: " in said
    assert f"log: /var/log/docker.log; end it with: service docker stop, or: kill {pid}" in said
    assert "it does not start with the machine" in said
    assert "it has no network for containers" not in said
    assert "API listen on" in machine("cat /var/log/docker.log")
    assert re.search(r"next: \S*testbed image build \(.*minutes.*testbed image base \(.*minutes", said.splitlines()[-1])

    again = machine(str(SCRIPT))
    assert "answers" in again.splitlines()[0]
    assert machine.dockerd() == pid
    machine("service docker stop")
    oracle.until(lambda: not Path(f"/proc/{pid}").exists(), 30, "dockerd ends")
    assert not answers(machine)


def test_dockerd_is_started_without_networks_where_it_cannot_make_any(machine: Machine) -> None:
    machine("rm /usr/sbin/iptables*")
    said = machine(str(SCRIPT))
    assert answers(machine)
    assert "it has no network for containers" in said
    assert machine("docker network ls --format '{{.Driver}}'").split() == ["host", "null"]
    os.kill(machine.dockerd(), signal.SIGTERM)  # the other way that it names
    oracle.until(lambda: not answers(machine), 30, "dockerd ends")


def test_a_dockerd_that_cannot_start_is_said_with_its_last_words(machine: Machine) -> None:
    machine("echo DOCKER_OPTS=--no-such-option > /run/default")
    machine("mount --bind /run/default /etc/default/docker || exit 1")
    done = machine.ask(str(SCRIPT))
    assert done.returncode == 1
    assert "FAILED: dockerd does not start here; its last words in /var/log/docker.log: " in done.stdout
    assert "unknown flag: --no-such-option" in done.stdout
    assert machine.dockerd() == 0
