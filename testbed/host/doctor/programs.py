"""Checks of programs and packages: util-linux, iproute2, torch, Prometheus, docker, containerlab."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from testbed.errors import TestbedError
from testbed.host import installation
from testbed.host.doctor.check import Check, State
from testbed.host.drivers import containerlab, docker_client, images
from testbed.host.linux import invocation

__all__ = ["containers", "prometheus", "tools", "torch"]

_NO_TRAINING: Final = "not installed: fibers come up, training is not possible"


def tools() -> Iterator[Check]:
    for name, programs, purpose, package, needed in (
        ("nsenter, setpriv", ("nsenter", "setpriv"), "exec and launch start programs with them", "util-linux", True),
        ("iproute2", ("ip", "tc"), "for inspecting a lab by hand, and for the tests", "iproute2", False),
    ):
        lacking = [program for program in programs if shutil.which(program) is None]
        state: State = "ok" if not lacking else "missing"
        detail = f"{purpose}: {', '.join(lacking)} not found" if lacking else purpose
        yield Check(name, state, detail, installation.apt(package) if lacking else "", needed)


def prometheus() -> Check:
    if shutil.which("prometheus") is None:
        return Check(
            "prometheus",
            "missing",
            "not installed; only up --observe needs it",
            installation.apt("prometheus"),
        )
    return Check("prometheus", "ok", "up --observe starts one inside the lab; the host's own service is not used")


def torch() -> Check:
    # The version comes from the package's metadata: importing torch takes two seconds and 220 MB.
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check(
            "torch",
            "missing",
            _NO_TRAINING,
            installation.adding("agents"),
        )
    return Check("torch", "ok", f"version {version} in {sys.prefix}")


def containers() -> Iterator[Check]:
    """Check what the driver containerlab needs; the driver netns works without any of it."""
    install, make_image = installation.containerlab(), images.build_command()
    without = "labs use the driver netns instead"
    if docker_lacks := docker_client.why_not():
        fix = "" if "a lab's links" in docker_lacks else install
        fix = invocation.again() if "no permission" in docker_lacks else fix
        yield Check("docker", "limited", f"{_short(docker_lacks)}; {without}", fix)
    else:
        yield Check("docker", "ok", f"daemon version {docker_client.client().version()['Version']}")
    if containerlab_lacks := containerlab.missing():
        yield Check("containerlab", "limited", f"{_short(containerlab_lacks)}; {without}", install)
    else:
        yield Check("containerlab", "ok", "supported version: it deploys the output of testbed render")
    if docker_lacks:
        return
    try:
        image_lacks = images.missing()
    except TestbedError as error:
        image_lacks = str(error)
    if image_lacks:
        yield Check("container image", "limited", f"{_short(image_lacks)}; {without}", make_image)
    else:
        yield Check("container image", "ok", f"{images.reference()}: --driver containerlab works; auto selects it")


def _short(why: str) -> str:
    """Return the first sentence, without the program's name, which the table shows in its first column."""
    return (
        why.partition("; ")[0].removeprefix("docker is missing: ").replace("containerlab is missing", "not installed")
    )
