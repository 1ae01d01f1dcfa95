"""Where the nodes of a lab are on this host, whichever driver made them, and how a program is run in one."""

from __future__ import annotations

from pathlib import Path

from testbed.core.plan.addressing import namespace_name
from testbed.errors import LabError
from testbed.host import containerlab, docker_client, namespace, runner
from testbed.host.container_place import ContainerPlace
from testbed.host.containerlab import agent_user, container_name, living_netns, topology_file
from testbed.lab.state import LabFolder

__all__ = ["driver", "netns", "place"]


def driver(lab: LabFolder) -> str:
    """``netns`` or ``containerlab``: what made this lab."""
    return "containerlab" if topology_file(lab.path, lab.name).exists() else "netns"


def netns(lab: LabFolder, node: str) -> Path:
    """Handle of the network namespace of a node, a gateway, the plant or the management network.

    Raises HostError if it is a container that does not run any more.
    """
    if driver(lab) == "containerlab" and (found := living_netns(lab.name, node)):
        return found
    return namespace.netns_path(namespace_name(lab.name, node))


def place(lab: LabFolder, node: str, *, isolated: bool, job: bool = False) -> runner.Place | ContainerPlace:
    """Where programs of ``node`` run; ``isolated``: it is a node, not a gateway, the plant or the management network.

    A ``job``'s program in a container has no privileges, as ranks have none. Raises HostError if the container does not
    run any more, or docker does not; LabError if it is paused.
    """
    if driver(lab) == "containerlab":
        docker_client.refuse_silence()
        living_netns(lab.name, node)
        if why := containerlab.paused(lab.name).get(node):
            raise LabError(why)
        return ContainerPlace(container_name(lab.name, node), agent_user() if job else "")
    return runner.Place(netns(lab, node), lab.handles / node if isolated else None)
