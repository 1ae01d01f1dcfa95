"""The driver ``containerlab``: nodes, gateways, plant and management network as containers, by containerlab itself.

containerlab creates and removes; docker reports what exists. If containerlab was killed, what it leaves behind (its
section of /etc/hosts, its ssh configuration, half-created containers) is identified by this lab's marks and removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.core.plan.resources import LABEL, READY_FILE, Containers
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, MissingTool, NameTaken, StorageError
from testbed.host import installation
from testbed.host.drivers.docker_client import NotThere, client, refuse_silence, translated
from testbed.host.drivers.docker_endpoint import ASK_BOUND_S, Endpoint, ask, endpoint
from testbed.host.drivers.driver import Facts
from testbed.host.linux import invocation, namespace, netlink, offload
from testbed.host.linux.container_mount import mount
from testbed.host.linux.process_watch import ProcessWatch

__all__ = [
    "DESTROY_BOUND_S",
    "OLDEST",
    "Containerlab",
    "agent_ids",
    "agent_user",
    "complaint_of",
    "container_name",
    "dead",
    "deploy_bound_s",
    "living_netns",
    "missing",
    "netns_of",
    "paused",
    "refuse_taken",
    "topology_file",
]

OLDEST: Final = (0, 79, 0)
"""The oldest version that the generated files were tested with (tools/containerlab/go.mod pins the one built)."""

IMAGE_USER: Final = "1000:1000"
"""The user ``testbed`` of agents/Dockerfile."""

_DEPLOY_BASE_S, _DEPLOY_EACH_S, DESTROY_BOUND_S, _READY_BOUND_S = 120.0, 5.0, 120.0, 30.0
_HOSTS: Final = Path("/etc/hosts")
_SSH: Final = Path("/etc/ssh/ssh_config.d")


def deploy_bound_s(containers: int) -> float:
    """Return the time limit of a deployment with this number of containers."""
    return _DEPLOY_BASE_S + _DEPLOY_EACH_S * containers


def container_name(lab: str, node: str) -> str:
    """Return the name that containerlab gives a node's container."""
    return f"clab-{lab}-{node}"


def netns_of(lab: str, node: str) -> Path:
    """Return the handle of a container's network namespace, as containerlab names it for ``ip netns``."""
    return namespace.netns_path(container_name(lab, node))


def living_netns(lab: str, node: str) -> Path | None:
    """Return :func:`netns_of`, or None if there is no container of that name. Raises HostError if it has exited.

    The handle is a link to /proc/PID/ns/net. After the container has exited, a recycled pid would make it a
    namespace of the host, hence the comparison.
    """
    handle = netns_of(lab, node)
    if not handle.is_symlink():
        return handle if handle.exists() else None
    if namespace.inode(handle) in (0, namespace.inode("/proc/self/ns/net")):
        raise HostError(dead(lab, node))
    return handle


def dead(lab: str, node: str) -> str:
    """Return the message for a container that has exited unasked."""
    return (
        f"the container of {node} has exited"
        f" (see: {invocation.as_root(f'docker inspect {container_name(lab, node)}')});"
        f" who brought the lab up takes it down with: {invocation.command('down', lab)}"
    )


def paused(lab: str, docker: Endpoint, bound_s: float = ASK_BOUND_S) -> dict[str, str]:
    """Return, by node, the message for each container of a lab that is paused. Raises as :func:`ask`."""
    filters = json.dumps({"label": [f"containerlab={lab}", f"{LABEL}.lab={lab}"], "status": ["paused"]})
    nodes = sorted(
        container["Labels"]["clab-node-name"] for container in ask(docker, "/containers/json", bound_s, filters=filters)
    )
    return {
        node: f"the container of {node} is paused; resume it with:"
        f" {invocation.as_root(f'docker unpause {container_name(lab, node)}')}"
        for node in nodes
    }


def topology_file(folder: Path, lab: str) -> Path:
    return folder / f"{lab}.clab.yml"


def missing() -> str:
    """Return why containerlab cannot be used on this host; empty if it can."""
    tool = shutil.which("containerlab")
    if tool is None:
        return str(MissingTool("containerlab", installation.containerlab()))
    try:
        done = subprocess.run(
            [tool, "version", "--short"],
            capture_output=True,
            text=True,
            timeout=20,
            env=_environment(Path("/"), endpoint()),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"containerlab does not answer: {error}"
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    if match is None:
        return f"expected a version from 'containerlab version', got: {(done.stderr or done.stdout).strip()[:200]}"
    version = tuple(int(group) for group in match.groups())
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        update = installation.containerlab()
        return f"containerlab is version {match[0]}, expected {oldest} or newer; update it with: {update}"
    return ""


def refuse_taken(lab: str, nodes: Iterable[str], docker: Endpoint) -> None:
    """Raise NameTaken if another lab of containerlab has this name, or a container or namespace of another lab has the
    name of one of ``nodes``: only what carries this lab's marks may be replaced or removed."""
    with translated("look for containers of that name"):
        there = client(docker).containers.list(all=True, filters={"label": f"containerlab={lab}"})
        alike = client(docker).api.containers(all=True, filters={"name": f"clab-{lab}-"})
    if there:
        raise NameTaken(
            f"containers of a containerlab lab named {lab} exist, which no lab of this state folder created;"
            " choose another --name"
        )
    taken = {name.removeprefix("/") for container in alike for name in container["Names"]}
    for node in nodes:
        name = container_name(lab, node)
        if name in taken:
            raise NameTaken(f"container {name} exists, which no testbed lab created; choose another --name")
        if netns_of(lab, node).exists():
            raise NameTaken(f"network namespace {name} exists, which no testbed lab created; choose another --name")


def agent_user() -> str:
    """Return the ``uid:gid`` of ranks in containers: the user who called sudo, else the image's own. Never root."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    return f"{uid}:{gid}" if uid.isdecimal() and gid.isdecimal() and uid != "0" else IMAGE_USER


def agent_ids() -> tuple[int, int]:
    """Return :func:`agent_user` as numbers."""
    uid, gid = agent_user().split(":")
    return int(uid), int(gid)


class Containerlab:
    """Handler of the Step :class:`Containers` of one lab: creates and removes them.

    Args:
        lab: name of the lab, here and in containerlab.
        folder: state folder of the lab; holds the topology file and containerlab's own folder.
        docker: the daemon that has the lab's containers; overrides the environment.
        died: called with the node's name, from a thread, when a container created by this object exits unasked.
    """

    kinds = (Containers,)

    def __init__(self, lab: str, folder: Path, docker: Endpoint, died: Callable[[str], None] | None = None) -> None:
        self._lab, self._folder, self.docker, self._died = lab, folder, docker, died
        self._watch: ProcessWatch | None = None
        self._file = topology_file(folder, lab)

    def path(self, node: str) -> Path | None:
        """Return the network namespace of a container; None if there is none. Raises HostError if it has exited."""
        return living_netns(self._lab, node)

    def show(self, folder: Path, nodes: Sequence[str]) -> None:
        """Mount a folder of the host into these containers, at the same path. Raises HostError."""
        self.show_each(dict.fromkeys(nodes, folder))

    def show_each(self, folders: Mapping[str, Path]) -> None:
        """As :meth:`show`, with a folder of its own for each node."""
        pids = self._pids()
        for node, folder in folders.items():
            if not pids.get(node):
                raise HostError(dead(self._lab, node))
            mount(folder, pids[node])

    def own(self, folder: Path) -> None:
        """Make the ranks' user the owner of a folder. Raises StorageError."""
        uid, gid = agent_ids()
        try:
            os.chown(folder, uid, gid, follow_symlinks=False)
        except OSError as error:
            raise StorageError(f"cannot change the owner of {folder} to {uid}:{gid}: {error.strerror}") from error

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Containers)
        refuse_taken(self._lab, step.names, self.docker)
        try:
            self._file.write_text(step.topology)
        except OSError as error:
            raise StorageError(f"cannot write {self._file}: {error.strerror}") from error
        bound = deploy_bound_s(len(step.names))
        try:
            output = self._containerlab(["deploy", "--topo", str(self._file)], bound)
        except HostError as error:
            raise HostError(f"{error}{self._late()}") from error
        for name in step.names:
            if complaint := complaint_of(output, name):
                raise HostError(f"network setup of {name} failed: {complaint}")
        pids = self._pids()
        if lacking := [name for name in step.names if not pids.get(name)]:
            raise HostError(f"containers are not running: {', '.join(lacking)}{self._last_words(lacking[0])}")
        self._await_networks(step.names, pids)
        if self._died is not None:
            self._watch = ProcessWatch(pids, self._died)
        return {"pids": pids}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if self._watch is not None:
            self._watch.stop()
        refuse_silence(self.docker)  # sooner than a connection made earlier, whose calls may take a minute
        failure: HostError | None = None
        if self._file.exists() and self._ours():
            try:
                self._containerlab(["destroy", "--topo", str(self._file), "--cleanup"], DESTROY_BOUND_S)
            except HostError as error:
                failure = error
        for container in self._ours():
            with contextlib.suppress(NotThere), translated(f"remove the container {container.short_id}"):
                container.remove(force=True, v=True)
        self.sweep(step.names if isinstance(step, Containers) else (), facts.get("pids", {}))
        if failure is not None and self._ours():
            raise failure

    def assign(self, settings: Sequence[Property]) -> None:
        return None

    # ---- inside

    def _ours(self, *, whole: bool = False) -> list[Any]:
        """Return the containers that carry both labels: containerlab's for this lab, and the testbed's.

        ``whole`` inspects each of them (50 ms for 42).
        """
        marks: dict[str, str | list[str] | bool] = {"label": [f"containerlab={self._lab}", f"{LABEL}.lab={self._lab}"]}
        with translated("look for this lab's containers"):
            return list(
                client(self.docker).containers.list(all=True, filters=marks, sparse=not whole, ignore_removed=True)
            )

    def _pids(self) -> dict[str, int]:
        return {one.labels["clab-node-name"]: int(one.attrs["State"]["Pid"]) for one in self._ours(whole=True)}

    def _containerlab(self, arguments: Sequence[str], bound_s: float) -> str:
        """Run containerlab and return its output. Raises MissingTool, HostError."""
        tool, setpriv = shutil.which("containerlab"), shutil.which("setpriv")
        if tool is None or setpriv is None:
            raise MissingTool("containerlab" if tool is None else "setpriv", installation.containerlab())
        # If the keeper dies, containerlab must not continue to create containers without an owner.
        argv = [setpriv, "--pdeathsig", "TERM", "--", tool, *arguments]
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=_environment(self._folder, self.docker), cwd="/", start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = child.communicate(timeout=bound_s)
        except BaseException as error:
            if child.returncode is None:  # once it is reaped, another process group may have its number
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise HostError(f"containerlab {arguments[0]} did not finish within {bound_s:.0f} s") from error
            raise
        if child.returncode != 0:
            raise HostError(f"containerlab {arguments[0]} failed: {_essence(output)}")
        return output

    def _await_networks(self, names: Sequence[str], pids: Mapping[str, int]) -> None:
        until = time.monotonic() + _READY_BOUND_S
        waiting = list(names)
        while waiting := [node for node in waiting if not _ready(pids[node])]:
            if time.monotonic() > until:
                late = f"network setup of {', '.join(waiting)} did not finish within {_READY_BOUND_S:.0f} s"
                raise HostError(f"{late}{self._last_words(waiting[0])}")
            time.sleep(0.02)
        for name in names:
            with netlink.Namespace(netns_of(self._lab, name)) as space:
                space.up("lo")
            _checksums_on(netns_of(self._lab, name))

    def _late(self) -> str:
        """Return a clause that names the running containers without a network; empty if docker does not answer."""
        with contextlib.suppress(HostError):
            late = [
                node for node, pid in self._pids().items() if pid and not Path(f"/proc/{pid}/root{READY_FILE}").exists()
            ]
            if late:
                return f"; nodes without a network: {', '.join(sorted(late))}"
        return ""

    def _last_words(self, node: str) -> str:
        try:
            with translated("read a container's log"):
                raw = client(self.docker).containers.get(container_name(self._lab, node)).logs(tail=5)
        except HostError:
            return ""
        log_text = raw.decode(errors="replace").strip()
        return f"; the last lines of {node}: {log_text}" if log_text else ""

    def sweep(self, names: Sequence[str], pids: Mapping[str, int]) -> None:
        """Remove what a killed containerlab leaves on the host."""
        for name in names:
            with contextlib.suppress(OSError):
                handle = netns_of(self._lab, name)
                # A link to the container's first process, even if its pid has been recycled; or a dangling link.
                its_own = handle.is_symlink() and str(handle.readlink()) == f"/proc/{pids.get(name)}/ns/net"
                if its_own or (handle.is_symlink() and not handle.exists()):
                    handle.unlink()
        with contextlib.suppress(FileNotFoundError):
            (_SSH / f"clab-{self._lab}.conf").unlink()
        begin, end = f"###### CLAB-{self._lab}-START ######", f"###### CLAB-{self._lab}-END ######"
        with contextlib.suppress(OSError):
            text = _HOSTS.read_bytes()  # its encoding is unknown
            ours = re.escape(begin.encode()) + rb".*?" + re.escape(end.encode()) + rb"\n?"
            if (kept := re.sub(ours, b"", text, flags=re.DOTALL)) != text:
                # In place and shorter than before, so a full disk cannot leave the file truncated.
                with _HOSTS.open("r+b") as file:
                    file.write(kept)
                    file.truncate()
        shutil.rmtree(self._folder / f"clab-{self._lab}", ignore_errors=True)
        self._file.unlink(missing_ok=True)


def _ready(pid: int) -> bool:
    """Return whether the container with this first process has its addresses and routes; it then creates a file."""
    return Path(f"/proc/{pid}/root{READY_FILE}").exists()


def _checksums_on(path: Path) -> None:
    """Switch checksum offload on again, which containerlab switches off for network operating systems in containers.

    The nodes here are plain Linux: without checksum offload, Linux before 6.11 sends no UDP super-packets, and the rate
    of a fiber could not be measured. Raises HostError.
    """

    def switch() -> None:
        for _, interface in socket.if_nameindex():
            if interface != "lo":
                offload.set_checksummed(interface, True)

    try:
        namespace.inside(path, switch)
    except OSError as error:
        raise HostError(f"cannot switch checksum offload on in {path.name}: {error.strerror}") from error


def _environment(folder: Path, docker: Endpoint) -> dict[str, str]:
    return {
        **os.environ,
        "DOCKER_HOST": docker.address,  # containerlab does not support contexts
        "CLAB_LABDIR_BASE": str(folder),
        "CLAB_VERSION_CHECK": "disable",  # else each call waits 3 s for an answer on a host without internet
        "NO_COLOR": "1",
    }


def _essence(output: str) -> str:
    """Return the error lines of containerlab's output, without frames and time stamps."""
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line.strip()) for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("INFO", "│", "╭", "├", "╰"))]
    start = next((index for index, line in enumerate(lines) if line.startswith("ERR")), 0)
    return " ".join(lines[start:])[:600] or "no output"


def complaint_of(output: str, node: str) -> str:
    """Return the last lines of the command that failed in a node, from containerlab's output; empty if none failed.

    containerlab prints ``node=east-0 rc=2 stdout="" stderr=…`` and exits with 0; several lines are framed by │.
    """
    match = re.search(rf'\bnode={re.escape(node)} rc=(\d+)(?s:.*?)\bstderr=("[^"\n]*"|(?:\s*\n\s*│.*)+|\S*)', output)
    if match is None or match[1] == "0":
        return ""
    lines = [line.strip(' │"') for line in match[2].splitlines()]
    return "; ".join([line for line in lines if line][-5:]) or f"its command exited with status {match[1]}"
