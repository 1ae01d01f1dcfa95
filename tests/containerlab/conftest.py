"""A docker daemon for the tests, and this version's image in it, built once and cached below ``build/``.

It runs in a network namespace of its own: a lab's containers have no network other than their links. On a machine that
cannot run it, the suite is skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from builders import ROOT, bare_machine
from builders.docker_daemon import Dockerd

from testbed.host import installation
from testbed.host.drivers import containerlab, docker_client, images

CACHE = ROOT / "build" / "docker"
BUILD_BOUND_S = 1800


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
    folder = tmp_path_factory.mktemp("docker")
    made = Dockerd(tool, folder, CACHE)
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
        made.release()


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
    wheels = bare_machine.wheels()
    _testbed("image", "build", *(["--wheels", str(wheels)] if wheels else []))


def _testbed(*words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}"}
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        env=environment, capture_output=True, text=True, timeout=BUILD_BOUND_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
