"""Locate a lab's nodes on this host, for either driver, and run programs in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testbed.core.plan.addressing import namespace_name
from testbed.core.user_text import shown
from testbed.errors import LabError, StorageError, UserError
from testbed.host import accounts, runner, scratch
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.containerlab import agent_user, container_name, living_netns, topology_file
from testbed.host.drivers.docker_endpoint import Endpoint
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import graft, namespace
from testbed.host.linux.program_user import ProgramUser

__all__ = ["docker", "driver", "keep_docker", "netns", "pin", "place"]


def driver(lab: LabFolder) -> str:
    """Return the driver that created this lab: ``netns`` or ``containerlab``."""
    return "containerlab" if lab.docker.exists() or topology_file(lab.path, lab.name).exists() else "netns"


def keep_docker(lab: LabFolder, made_by: Endpoint) -> None:
    """Record a lab's docker daemon, atomically, before it creates anything. Raises StorageError."""
    part = lab.docker.with_suffix(".part")
    try:
        part.write_text(f"{made_by.address}\n")
        part.replace(lab.docker)
    except OSError as error:
        raise StorageError(f"cannot write {lab.docker}: {error.strerror}") from error


def docker(lab: LabFolder) -> Endpoint:
    """Return the docker daemon that created a lab's containers, whatever the environment names.

    Another daemon does not know these containers and would report them as gone. The environment's is used only for labs
    created before the daemon was recorded. Raises UserError, LabError.
    """
    try:
        address = lab.docker.read_text().strip()
    except FileNotFoundError:
        return docker_endpoint.endpoint()
    except (OSError, ValueError) as error:
        raise _docker_unknown(lab, "cannot be read") from error
    try:
        return docker_endpoint.maker_of(lab.name, address, str(lab.docker))
    except UserError as error:
        raise _docker_unknown(lab, f"has {shown(address)}, expected a Unix socket of this machine") from error


def _docker_unknown(lab: LabFolder, why: str) -> LabError:
    """Return the error; setting DOCKER_HOST alone does not help, because the file takes precedence."""
    return LabError(
        f"{lab.docker} {why}, so the docker that created lab {lab.name} is unknown; write its address into the file, as"
        f" in unix://{docker_endpoint.USUAL}, or remove {lab.docker} and set DOCKER_HOST"
    )


def netns(lab: LabFolder, node: str) -> Path:
    """Return the handle of the network namespace of a node, a gateway, the plant or the management network.

    Raises HostError if it is a container that has exited.
    """
    if driver(lab) == "containerlab" and (living := living_netns(lab.name, node)):
        return living
    return namespace.netns_path(namespace_name(lab.name, node))


def pin(lab: LabFolder, nodes: Iterable[str], folder: Path) -> None:
    """Keep programs in nodes that are namespaces from renaming a run's folder. Raises HostError."""
    if driver(lab) != "containerlab":
        for node in nodes:
            graft.pin(folder, lab.handles / node / "mnt")


def place(
    lab: LabFolder, node: str, *, job: bool = False, user: ProgramUser | None = None
) -> runner.Place | ContainerPlace:
    """Return where programs of ``node`` (or a gateway, ``plant``, ``mgmt``) run.

    In a container, a ``job``'s program runs as ``user``, or without one as ranks do; in a namespace it runs as
    ``user``, or as root without one. Raises HostError if the container or docker is not running, LabError if it is
    paused, StorageError.
    """
    if driver(lab) == "containerlab":
        made_by = docker(lab)
        docker_client.refuse_silence(made_by)
        living_netns(lab.name, node)
        if why := containerlab.paused(lab.name, made_by).get(node):
            raise LabError(why)
        who = f"{user.uid}:{user.gid}" if user else agent_user()
        return ContainerPlace(container_name(lab.name, node), made_by, who if job else "")
    own = lab.handles / node
    handles = own if own.exists() else None  # in labs of older versions only nodes have more than a network namespace
    if user is None:
        return runner.Place(netns(lab, node), handles)
    folder = scratch.of_node(lab, node, user)
    files = () if user.has_account or handles is None else accounts.files(lab, user, folder)
    return runner.Place(netns(lab, node), handles, user, folder, files=files)
