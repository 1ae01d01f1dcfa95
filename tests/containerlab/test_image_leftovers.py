"""What builds of the image leave in docker: nothing of ours, and all that is somebody else's.

The Dockerfile is the testbed's own, with steps that take no time in place of those that install packages.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import captured
from containerlab.test_containers import docker

from testbed.errors import HostError
from testbed.host.drivers import image_leftovers, images
from testbed.host.linux import process

pytestmark = pytest.mark.alone

QUICK = (
    "RUN mkdir -p /opt/testbed/bin && printf '#!/bin/sh\\necho 0\\n' > /opt/testbed/bin/python"
    " && chmod 755 /opt/testbed/bin/python\n"
)
"""Instead of the step that installs torch: a Python that is content with everything."""


class Builder:
    """Builds the image as `testbed image build` does, from changed Dockerfiles."""

    def __init__(self, folder: Path, base: str) -> None:
        self.tag, self._folder, self.base, self.said = f"leftovers-{os.getpid()}:1", folder, base, list[str]()
        self._real = images._dockerfile().read_text()
        self.version = 0

    def __call__(self, broken: bool = False) -> None:
        """Build anew: each image differs from the one before."""
        self.version += 1
        quick, found = re.subn(r"RUN python3 -m venv(.*\\\n)+.*\n", lambda _: QUICK, self._real)
        assert found == 1
        before, mark, after = quick.partition("COPY testbed_agents/")
        assert mark
        step = "RUN echo what a pity; exit 7\n" if broken else f"RUN echo {self.version} > /version\n"
        (self._folder / "Dockerfile").write_text(before + step + mark + after)
        self.said.clear()
        images.build(self.base, tag=self.tag, say=self.said.append)


@pytest.fixture
def build(containers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    """On the base image of the testbed, or, if docker lacks it, on the image itself."""
    made = Builder(tmp_path, images._default_base() if images._default_base() != images.SLIM else containers)
    monkeypatch.setattr(images, "_dockerfile", lambda: tmp_path / "Dockerfile")
    monkeypatch.setattr(images, "download_packages", lambda folder, *rest: folder.mkdir())
    yield made
    subprocess.run(["docker", "rmi", "--force", made.tag], capture_output=True)


def nameless() -> set[str]:
    return set(docker("images --quiet --no-trunc --filter dangling=true").split())


def somebodys(text: str) -> str:
    """Id of an image that somebody else builds, without a name."""
    done = captured(
        ["docker", "build", "--quiet", "-"],
        input=text,
        check=True,
        timeout=60,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    return done.stdout.strip()


@pytest.mark.thorough
def test_no_build_leaves_a_nameless_image(build: Builder) -> None:
    before = nameless()
    build()
    assert nameless() == before
    assert re.search(r"takes one to three minutes", build.said[0])
    assert re.search(r"built in \d+ s$", build.said[-1])
    build()  # the image that had the name until now goes
    assert nameless() == before
    with pytest.raises(HostError, match="what a pity"):
        build(broken=True)
    assert nameless() == before
    assert docker("image inspect", build.tag), "the last good one stays"


@pytest.mark.thorough
def test_what_somebody_built_on_the_image_stays(build: Builder) -> None:
    """It has all labels of the image that it is built on."""
    build()
    theirs = somebodys(f"FROM {build.tag}\nRUN echo mine > /mine\n")
    try:
        build()
        assert theirs in nameless()
    finally:
        docker("rmi", theirs)


def test_what_a_killed_build_left_goes_with_the_next_one_and_that_of_a_living_one_stays(build: Builder) -> None:
    dead = f"{process.boot_id()}:{os.getpid()}:1"
    living = f"{process.boot_id()}:1:{process.started(1)}"
    left = somebodys(f"FROM {build.base}\nLABEL {image_leftovers.BUILDER}={dead}\n")
    busy = somebodys(f"FROM {build.base}\nLABEL {image_leftovers.BUILDER}={living}\n")
    try:
        assert {left, busy} <= nameless()
        build()
        assert left not in nameless()
        assert busy in nameless()
    finally:
        docker("rmi", busy)


@pytest.mark.thorough
def test_an_image_that_containers_use_goes_once_they_are_gone(build: Builder) -> None:
    before = nameless()
    build()
    container = docker("run --detach --network none", build.tag, "sleep", "999").strip()
    try:
        build()
        (used,) = nameless() - before
        assert any(f"{used.removeprefix('sha256:')[:12]}, an earlier image, stays" in line for line in build.said)
    finally:
        docker("rm --force", container)
    build()
    assert nameless() == before
