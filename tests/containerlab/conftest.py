"""A docker daemon for the tests, and this version's image in it, built once and cached below ``build/``.

The daemon has no bridge and does not touch the firewall: a lab's containers have no network other than their links. It
runs in a network namespace of its own, because a dockerd without a bridge removes docker0, which belongs to the host's
docker. On a machine that cannot run it, the suite is skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ahead
import oracle
import pytest

from testbed.host import installation
from testbed.host.drivers import containerlab, docker_client, images

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "docker"
START_BOUND_S, BUILD_BOUND_S = 30.0, 900


class Dockerd:
    """A docker daemon that can be ended and started again, with its files in ``folder`` and its images in the cache."""

    def __init__(self, tool: str, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._folder = folder
        options = [f"--host={self.address}", f"--data-root={CACHE}", f"--exec-root={folder}/exec"]
        options += [f"--pidfile={folder}/pid", "--bridge=none", "--iptables=false", "--ip6tables=false"]
        self._argv = ["unshare", "--net", tool, *options, "--ip-forward=false", "--ip-masq=false"]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers. Raises RuntimeError with its last words."""
        # It serves all modules: it must not look like something that one of them started and left behind.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
        with (self._folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        until = time.monotonic() + START_BOUND_S
        while subprocess.run(["docker", "--host", self.address, "version"], capture_output=True).returncode != 0:
            if self._child.poll() is not None or time.monotonic() > until:
                words = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
                raise RuntimeError(" ".join(words))
            time.sleep(0.1)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._child is None:
            return
        self._child.send_signal(number)
        self._child.wait(60)
        self._child = None
        # After SIGKILL its containerd goes on, and would keep the next daemon from starting one; so do containers.
        orphan = self._folder / "exec" / "containerd" / "containerd.pid"
        if number == signal.SIGKILL and orphan.exists():
            pid = int(orphan.read_text())
            os.kill(pid, signal.SIGTERM)
            oracle.until(lambda: not Path(f"/proc/{pid}").exists(), START_BOUND_S, "containerd ends")


@pytest.fixture(scope="session")
def dockerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    """The daemon of all these tests. Whoever ends it starts it again."""
    if os.geteuid() != 0:
        pytest.skip("not root: containers are made by root")
    tool = shutil.which("dockerd")
    if tool is None:
        pytest.skip(f"docker is not installed; install it with: {installation.containerlab()}")
    if why := containerlab.missing():
        pytest.skip(why)
    ahead.AHEAD_OF_TESTS.wait("containerlab/test_image.py")  # it has a daemon on the same data
    folder = tmp_path_factory.mktemp("docker")
    made = Dockerd(tool, folder)
    try:
        try:
            made.start()
        except RuntimeError as error:
            pytest.skip(f"docker cannot run here: {error}")
        docker = ["docker", "--host", made.address]
        left = subprocess.run([*docker, "ps", "-aq"], capture_output=True, text=True).stdout.split()
        if left:  # by a test run that was killed; nobody else uses this daemon
            subprocess.run([*docker, "rm", "--force", *left], capture_output=True, check=True)
        yield made
    finally:
        made.end()
        # It leaves the handle of its own network namespace mounted, and after SIGKILL its folder upon itself.
        subprocess.run(["umount", f"{folder}/exec/netns/default"], capture_output=True)
        subprocess.run(["umount", str(CACHE)], capture_output=True)


@pytest.fixture(scope="session")
def daemon(dockerd: Dockerd) -> str:
    """Address of a docker daemon that answers, for DOCKER_HOST."""
    return dockerd.address


@pytest.fixture(scope="session")
def containers(daemon: str) -> Iterator[str]:
    """The driver containerlab can be used: DOCKER_HOST is set, the image of this version is there; its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon)
        if images.missing():
            _build()
        assert images.missing() == ""
        yield images.reference()
        docker_client.client().close()


def _build() -> None:
    """By the commands that users have; with the wheels that the other tests were installed from, if there are such."""
    if not any(images.BASE in it.tags for it in docker_client.client().images.list()):
        if shutil.which("debootstrap") is None:
            pytest.skip("no base image, and debootstrap is not installed to make one: apt-get install debootstrap")
        _testbed("image", "base")
    wheels = next((it for it in _wheel_folders() if any(it.glob("torch-*.whl"))), None)
    _testbed("image", "build", *(["--wheels", str(wheels)] if wheels else []))


def _wheel_folders() -> Iterator[Path]:
    for name in ("TESTBED_WHEELS", "PIP_FIND_LINKS"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    yield ROOT.parent / "shared" / "wheels"


def _testbed(*words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}"}
    done = subprocess.run(
        [sys.executable, "-m", "testbed.cli.app", *words],
        env=environment, capture_output=True, text=True, timeout=BUILD_BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
