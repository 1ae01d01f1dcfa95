"""Render a topology for the containerlab driver, and check whether this host can deploy it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.core.plan import build, clab
from testbed.core.plan.resources import Containers, Sysctls
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology
from testbed.errors import TestbedError
from testbed.host import lab_folder
from testbed.host.drivers import containerlab, docker_client, images
from testbed.host.drivers.docker_endpoint import Elsewhere
from testbed.version import __version__

__all__ = ["plan_of", "render", "why_not"]

_SYSCTLS = Path("/proc/sys")


def render(topology: Topology, *, name: str = "", image: str = "") -> str:
    """Return the ``*.clab.yml`` of a lab, which :func:`testbed.up` deploys with the containerlab driver.

    Omits sysctls that this host's kernel lacks, because docker would refuse the containers. Nodes get a /dev/shm of
    half of this host's memory. Raises UserError for an invalid lab name or image name.
    """
    lab = name or topology.name
    lab_folder.refuse_bad_name(lab)
    images.refuse_bad_name(image)
    return _render(topology, build.build(topology), lab, image)


def plan_of(topology: Topology, plan: Plan, name: str, image: str = "") -> Plan:
    """Convert a plan of the netns driver for containerlab: all containers in one Step, then the remaining Steps."""
    nodes = tuple(held for step in plan for held in step.holds)
    return (Containers(nodes, _render(topology, plan, name, image)), *clab.left_over(plan))


def why_not(image: str = "") -> tuple[str, str]:
    """Return why containers are not available, in a few words and in full with the fix; both empty if they are.

    Any error of docker counts as a reason, so that ``auto`` continues without docker.
    """
    if why := _first_reason((("docker does not answer", docker_client.refuse_silence),)):  # takes milliseconds
        return why
    with ThreadPoolExecutor(1) as executor:  # the process and docker's library take 0.1 s each
        tool_check = executor.submit(containerlab.missing)
        return _first_reason(
            (
                ("docker does not answer", docker_client.why_not),
                ("containerlab is missing", tool_check.result),
                ("no matching image", lambda: images.missing(image)),
            )
        ) or ("", "")


def _first_reason(checks: Iterable[tuple[str, Callable[[], str | None]]]) -> tuple[str, str] | None:
    """Return the reason of the first check that fails, in a few words and in full; None if none fails."""
    for short, check in checks:
        try:
            why = check()
        except Elsewhere as error:
            short, why = "docker runs on another machine", str(error)
        except TestbedError as error:
            why = str(error)
        if why:
            return short, why
    return None


def _render(topology: Topology, plan: Plan, name: str, image: str) -> str:
    keys = {key for step in plan if isinstance(step, Sysctls) for key, _ in step.values}
    absent = frozenset(key for key in keys if not (_SYSCTLS / key).exists())
    return clab.render(
        topology, plan, name=name, image=image or images.reference(), version=__version__, absent_sysctls=absent,
        shm_bytes=_half_of_memory(),
    )  # fmt: skip


def _half_of_memory() -> int:
    """Return half of this host's memory in bytes: the kernel's default for a tmpfs, as in nodes that are namespaces."""
    return os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE")
