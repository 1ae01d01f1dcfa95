"""A docker daemon of the tests' own, and the image of this version in it, made once and kept below ``build/``.

The daemon has no bridge and touches no firewall: a lab's containers have no other network than their links. A machine
that cannot run it skips the suite, with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.host import containerlab, docker_client, images

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "docker"
START_BOUND_S, BUILD_BOUND_S = 30.0, 900


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a docker daemon that answers, for DOCKER_HOST."""
    if os.geteuid() != 0:
        pytest.skip("not root: containers are made by root")
    tool = shutil.which("dockerd")
    if tool is None:
        pytest.skip(f"docker is not installed; install it with: {docker_client.INSTALL}")
    if why := containerlab.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("docker")
    address = f"unix://{folder}/docker.sock"
    options = [f"--host={address}", f"--data-root={CACHE}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    options += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    with (folder / "log").open("wb") as log:
        # It serves all modules: it must not look like something that one of them started and left behind.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
        child = subprocess.Popen([tool, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        until = time.monotonic() + START_BOUND_S
        while subprocess.run(["docker", "--host", address, "version"], capture_output=True).returncode != 0:
            if child.poll() is not None or time.monotonic() > until:
                words = (folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
                pytest.skip("docker cannot run here: " + " ".join(words))
            time.sleep(0.1)
        left = subprocess.run(["docker", "--host", address, "ps", "-aq"], capture_output=True, text=True).stdout.split()
        if left:  # by a test run that was killed; nobody else uses this daemon
            subprocess.run(["docker", "--host", address, "rm", "--force", *left], capture_output=True, check=True)
        yield address
    finally:
        child.terminate()
        child.wait(60)
        # It leaves the handle of its own network namespace mounted.
        subprocess.run(["umount", f"{folder}/exec/netns/default"], capture_output=True)


@pytest.fixture(scope="session")
def containers(daemon: str) -> Iterator[str]:
    """The driver containerlab can be used: DOCKER_HOST is set, the image of this version is there; its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon)
        docker_client.client.cache_clear()
        if images.missing():
            _build()
        assert images.missing() == ""
        yield images.reference()
        docker_client.client().close()
    docker_client.client.cache_clear()


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
        [sys.executable, "-m", "testbed.cli.main", *words],
        env=environment, capture_output=True, text=True, timeout=BUILD_BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
