"""Programs in nodes that start programs in other nodes: the launcher proxy of a whole lab, and its rules.

Programs are unprivileged and can enter no other node. ``$TESTBED_RSH HOST COMMAND``, which takes the place of ssh, asks
this process, root's on the host. It starts programs only in this lab's nodes, and only as the user who asks. Who that
is tells the kernel: the process must be in one of this lab's network namespaces, where only the lab's programs are. On
the host itself, that user and root may ask too, once :mod:`testbed.lab.outside_access` has made keys for the user.

What is said goes through the Unix socket, and over no fiber. A started program ends with the one that asked, with this
process, and with the keeper, which starts it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.core.plan.addressing import FABRIC, FABRIC_INTERFACE, MANAGEMENT, PLANT, Addressing
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import HostError, TestbedError
from testbed.host import accounts, lab_nodes, launcher_proxy, launcher_shim, runner, scratch
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.lab_folder import LabFolder
from testbed.host.launcher_proxy import Entered, Peer
from testbed.host.launcher_shim import Wanted
from testbed.host.linux import program_user
from testbed.host.linux.inside import is_inside
from testbed.host.linux.program_user import ProgramUser

__all__ = ["VARIABLE", "SameUser", "keys", "program", "start"]

VARIABLE: Final = "TESTBED_RSH"
"""Names the program that takes the place of ssh."""

_FOLDER, _PROGRAM = "rsh", "reach"
"""A folder of its own: containers see all of it, and the scratch of other nodes lies beside it."""

_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ")
"""Variables of this process that started programs in namespaces get."""


def program(lab: LabFolder) -> Path:
    """Return the path of the program that takes the place of ssh in nodes. Raises StorageError, OSError."""
    return scratch.of_lab(lab) / _FOLDER / _PROGRAM


def keys(lab: LabFolder, uid: int) -> Path:
    """Return the folder with the ssh keys of a user, root's own; it exists only once they were asked for."""
    return scratch.of_lab(lab) / f"ssh-{uid}"


def start(lab: LabFolder) -> subprocess.Popen[bytes]:
    """Write the program and start the proxy, which dies with the thread that called this. Raises HostError,
    MissingTool."""
    try:
        folder = program(lab).parent
        folder.mkdir(0o711, exist_ok=True)
        folder.chmod(0o711)  # whatever the umask: programs enter it, and cannot list it
        launcher_shim.client(folder, launcher_proxy.socket_of(folder), sys.executable)
        with launcher_proxy.bind(launcher_proxy.socket_of(folder), 0o666) as listener:
            # -P and /: nothing that lies in a working directory must run as root.
            line = [runner.tool("setpriv"), "--pdeathsig", "KILL", "--", sys.executable, "-P", "-m", __name__]
            with lab.agents_log.open("ab") as log:
                return subprocess.Popen(
                    [*line, str(listener.fileno()), str(lab.path)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener.fileno()],
                    start_new_session=True, cwd="/",
                )  # fmt: skip
    except OSError as error:
        raise HostError(f"cannot start the launcher proxy of lab {lab.name}: {error.strerror or error}") from error


class SameUser:
    """The rules of a lab: its nodes, and the user who asks."""

    def __init__(self, lab: LabFolder, topology: Topology) -> None:
        self._lab, self._topology = lab, topology
        gateways = (site.gateway for site in topology.sites)
        self._places = (*topology.node_names, *gateways, MANAGEMENT, PLANT)
        self._nodes = _names(topology)

    def refusal(self, peer: Peer) -> str:
        if self._is_inside(peer.pid) or (self._is_outside(peer.pid) and (peer.uid == 0 or self._has_keys(peer.uid))):
            return ""
        return f"it is not in lab {self._lab.name}"

    def enter(self, peer: Peer, wanted: Wanted) -> Entered | str:
        node = self._nodes.get(wanted.host)
        if node is None:
            return f"unknown host {wanted.host} (available: {', '.join(self._topology.node_names)})"
        if not wanted.command:
            return "expected a command to run; there is no login shell here"
        user = program_user.of_uid(peer.uid, peer.gid)
        if wanted.login and wanted.login not in (str(peer.uid), user.name if user else "root"):
            # Root of this host could become anybody: it may log in where the user themselves may.
            other = int(wanted.login) if wanted.login.isdecimal() else 0
            if peer.uid != 0 or not self._is_outside(peer.pid) or not self._has_keys(other):
                return f"programs start as the user who asks: expected uid {peer.uid}, got {wanted.login}"
            user = program_user.of_uid(other, other)
        return self._entered(node, user, wanted.command)

    def _entered(self, node: str, user: ProgramUser | None, command: str) -> Entered:
        variables = self._variables(node)
        place = lab_nodes.place(self._lab, node, job=True, user=user)
        argv = ["sh", "-c", command]
        if isinstance(place, ContainerPlace):
            place = place if user else dataclasses.replace(place, user="0:0")
            return Entered(place.enter(argv, None, variables), environment={**os.environ, **variables})
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        home = Path("/root")
        if user is not None:
            place = dataclasses.replace(place, files=(*place.files, *accounts.groups(self._lab)))
            home = user.home or place.scratch
        return Entered(place.enter(argv, home, variables), watched=False, environment={**kept, **variables})

    def _variables(self, node: str) -> dict[str, str]:
        return {
            "GLOO_SOCKET_IFNAME": FABRIC_INTERFACE,
            "NCCL_SOCKET_IFNAME": FABRIC_INTERFACE,
            "TESTBED_NODE": node,
            "TESTBED_SITE": self._topology.site_of(node).name,
            VARIABLE: str(program(self._lab)),
        }

    def _is_inside(self, pid: int) -> bool:
        for place in self._places:
            try:
                if is_inside(lab_nodes.netns(self._lab, place), pid):
                    return True
            except TestbedError:
                continue  # a container that has exited
        return False

    @staticmethod
    def _is_outside(pid: int) -> bool:
        """Whether a process is in the network namespace of this one, the host's."""
        return is_inside(Path("/proc/self/ns/net"), pid)

    def _has_keys(self, uid: int) -> bool:
        """Whether keys were made for a user, by root: nobody else can make a folder there."""
        return uid != 0 and keys(self._lab, uid).is_dir()


def _names(topology: Topology) -> Mapping[str, str]:
    """Return the nodes by each name and address that they have in nodes."""
    net = Addressing(topology)
    nodes_by_name: dict[str, str] = {}
    for node in topology.node_names:
        addresses = (*net.node(node), net.management[node])
        for name in (node, f"{node}.{FABRIC}", f"{node}.{MANAGEMENT}", *map(str, addresses)):
            nodes_by_name[name] = node
    return nodes_by_name


def _main(descriptor: int, path: Path) -> None:
    lab = LabFolder(path)
    rules = SameUser(lab, topology_from_dict(json.loads(lab.topology.read_text())))
    with socket.socket(fileno=descriptor) as listener:
        launcher_proxy.listen(listener, rules)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
