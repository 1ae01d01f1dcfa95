"""What a lab's nodes are made of: namespaces or containers. Locate nodes on this host, and run programs in them."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from testbed.core.plan.addressing import namespace_name
from testbed.core.user_text import shown
from testbed.errors import LabError, StorageError, UserError
from testbed.host import accounts, runner, scratch
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.containerlab import agent_user, container_name, living_netns, topology_file
from testbed.host.drivers.docker_endpoint import Endpoint
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import container_mount, namespace, program_user
from testbed.host.linux.program_user import ProgramUser

__all__ = ["DRIVERS", "Driver", "Place", "docker", "driver", "keep_docker", "netns", "pin", "place"]

Place: TypeAlias = runner.Place | ContainerPlace
"""Where programs of a node run."""


class Driver(ABC):
    """A kind of nodes.

    Attributes:
        name: ``netns`` or ``containerlab``.
        contained: whether nodes are containers, with files, variables and users of an image.
        python: that runs the testbed's programs in nodes.
        removal_s: how much longer than the keeper the removal of nodes may be silent.
    """

    name: ClassVar[str]
    contained: ClassVar[bool]
    python: ClassVar[str]
    removal_s: ClassVar[float] = 0.0

    @abstractmethod
    def netns(self, lab: LabFolder, node: str) -> Path:
        """Return the handle of the network namespace of a node, a gateway, the plant or the management network.

        Raises HostError if it is a container that has exited.
        """

    @abstractmethod
    def place(self, lab: LabFolder, node: str, *, job: bool, user: ProgramUser | None) -> Place:
        """Return where programs of a node run; see :func:`place`."""

    @abstractmethod
    def pin(self, lab: LabFolder, nodes: Iterable[str], folder: Path) -> None:
        """Keep programs in nodes from renaming a run's folder. Raises HostError."""

    @abstractmethod
    def own_user(self, folder: Path | None = None) -> ProgramUser | None:
        """Return the user of the testbed's programs, and of programs started from ``folder`` (default: the working
        directory); None in containers, which have a user of their own. Raises UserError."""

    @abstractmethod
    def launch_user(self, folder: Path) -> ProgramUser:
        """Return the user of a program launched from ``folder``. Raises UserError."""

    @abstractmethod
    def visits_as_root(self) -> bool:
        """Whether ``exec`` runs programs as root with this host's files."""


class _Namespaces(Driver):
    name, contained, python = "netns", False, sys.executable

    def netns(self, lab: LabFolder, node: str) -> Path:
        return namespace.netns_path(namespace_name(lab.name, node))

    def place(self, lab: LabFolder, node: str, *, job: bool, user: ProgramUser | None) -> runner.Place:
        own = lab.handles / node
        handles = own if own.exists() else None  # in labs of older versions only nodes have more than a netns
        if user is None:
            return runner.Place(self.netns(lab, node), handles)
        folder = scratch.of_node(lab, node, user)
        files = () if user.has_account or handles is None else accounts.files(lab, user, folder)
        return runner.Place(self.netns(lab, node), handles, user, folder, files=files)

    def pin(self, lab: LabFolder, nodes: Iterable[str], folder: Path) -> None:
        for node in nodes:
            container_mount.pin(folder, lab.handles / node / "mnt")

    def own_user(self, folder: Path | None = None) -> ProgramUser:
        return program_user.choose(folder or Path.cwd())

    def launch_user(self, folder: Path) -> ProgramUser:
        return self.own_user(folder)

    def visits_as_root(self) -> bool:
        return os.geteuid() == 0


class _Containers(Driver):
    name, contained, python = "containerlab", True, "python"
    removal_s = containerlab.DESTROY_BOUND_S

    def netns(self, lab: LabFolder, node: str) -> Path:
        return living_netns(lab.name, node) or NAMESPACES.netns(lab, node)

    def place(self, lab: LabFolder, node: str, *, job: bool, user: ProgramUser | None) -> ContainerPlace:
        made_by = docker(lab)
        docker_client.refuse_silence(made_by)
        living_netns(lab.name, node)
        if why := containerlab.paused(lab.name, made_by).get(node):
            raise LabError(why)
        who = f"{user.uid}:{user.gid}" if user else agent_user()
        return ContainerPlace(container_name(lab.name, node), made_by, who if job else "")

    def pin(self, lab: LabFolder, nodes: Iterable[str], folder: Path) -> None:
        return

    def own_user(self, folder: Path | None = None) -> None:
        return None

    def launch_user(self, folder: Path) -> ProgramUser:
        """Return who called sudo, else the folder's owner unless that is root, else the image's own user."""
        uid, gid = map(int, containerlab.IMAGE_USER.split(":"))
        return program_user.choose(folder, ProgramUser(uid, gid, (), "testbed", None, "the image's own"))

    def visits_as_root(self) -> bool:
        return False


NAMESPACES: Final[Driver] = _Namespaces()
CONTAINERS: Final[Driver] = _Containers()
DRIVERS: Final[Mapping[str, Driver]] = {driver.name: driver for driver in (CONTAINERS, NAMESPACES)}


def driver(lab: LabFolder) -> Driver:
    """Return the driver that created this lab."""
    return CONTAINERS if lab.docker.exists() or topology_file(lab.path, lab.name).exists() else NAMESPACES


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
    return driver(lab).netns(lab, node)


def pin(lab: LabFolder, nodes: Iterable[str], folder: Path) -> None:
    """Keep programs in nodes that are namespaces from renaming a run's folder. Raises HostError."""
    driver(lab).pin(lab, nodes, folder)


def place(lab: LabFolder, node: str, *, job: bool = False, user: ProgramUser | None = None) -> Place:
    """Return where programs of ``node`` (or a gateway, ``plant``, ``mgmt``) run.

    In a container, a ``job``'s program runs as ``user``, or without one as ranks do; in a namespace it runs as
    ``user``, or as root without one. Raises HostError if the container or docker is not running, LabError if it is
    paused, StorageError.
    """
    return driver(lab).place(lab, node, job=job, user=user)
