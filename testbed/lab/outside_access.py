"""How a lab is reached from outside: its Prometheus by a local port, its nodes by ssh for tools that insist on it.

ssh has keys made per lab and user, and nothing listens. Each connection is one ``sshd -i`` in the node, as the user of
programs, without privileges. ssh reaches it by the launcher proxy (``host/remote_starts.py``) on its stdin and stdout,
so over no fiber and no network. Keys and configuration lie in the lab's scratch folder, where that user can read them,
and are gone with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from testbed.core.plan.addressing import FABRIC, MANAGEMENT, Addressing
from testbed.core.topology.model import Topology
from testbed.errors import HostError, LabError, MissingTool, StorageError, UserError
from testbed.host import installation, lab_nodes, lab_owner, remote_starts
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation
from testbed.host.linux.program_user import ProgramUser
from testbed.host.metrics.port_forward import Forwarder, into_namespace
from testbed.keeper import client

__all__ = ["forward_prometheus", "ssh_config"]

_BOUND_S: Final = 60.0
"""Time limit of ssh-keygen: a fresh machine may wait for randomness."""

_KEY, _HOST_KEY, _KNOWN, _ALLOWED, _SERVER, _SERVER_CONFIG = (
    "id_ed25519", "host_ed25519", "known_hosts", "authorized_keys", "sshd", "sshd_config",
)  # fmt: skip

_SERVER_SETTINGS: Final = """HostKey {folder}/host_ed25519
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {name}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PidFile none
PrintMotd no
PrintLastLog no
LogLevel ERROR
AcceptEnv *
Subsystem sftp internal-sftp
"""
"""Of sshd_config(5). StrictModes would refuse keys below /tmp, which others can write; the folder itself is root's."""

_SERVER_SCRIPT: Final = """#!/bin/sh
exec {sshd} -i -e -f {folder}/sshd_config -o "SetEnv=TESTBED_NODE=$TESTBED_NODE TESTBED_SITE=$TESTBED_SITE \
TESTBED_RSH=$TESTBED_RSH GLOO_SOCKET_IFNAME=$GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME"
"""

_CLIENT_SETTINGS: Final = """# ssh to the nodes of lab {lab} as {user}; it works until the lab is taken down.
# Each connection runs one `sshd -i` in the node, through a Unix socket: nothing listens, no byte crosses a fiber.
Host {hosts}
    ProxyCommand {program} -l {uid} %h {folder}/sshd
    User {name}
    IdentityFile {folder}/id_ed25519
    IdentitiesOnly yes
    IdentityAgent none
    PreferredAuthentications publickey
    HostKeyAlias testbed-{lab}
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    LogLevel ERROR
"""
"""Of ssh_config(5)."""


def forward_prometheus(lab: LabFolder, port: int) -> Forwarder:
    """Forward ``port`` of 127.0.0.1 to the lab's Prometheus until the forwarder is closed.

    Raises UserError, LabError.
    """
    hello = client.keeper(lab).hello()
    if hello["prometheus_ended"]:
        logs = invocation.command("logs", "-l", lab.name)
        raise LabError(f"Prometheus of lab {lab.name} {hello['prometheus_ended']}; see: {logs}")
    if not hello["prometheus"]:
        raise UserError(
            f"lab {lab.name} runs no Prometheus; only a lab brought up with"
            f" `{invocation.command('up', '--observe', 'metro-40km')}` has one"
        )
    address, _, there = hello["prometheus"].rpartition(":")
    return Forwarder(into_namespace(lab_nodes.netns(lab, MANAGEMENT), (address, int(there))), port)


def ssh_config(lab: LabFolder, topology: Topology) -> str:
    """Return an ssh_config(5) for the nodes, with keys of the user of programs, which are made if there are none.

    Raises MissingTool, UserError in containers, HostError, StorageError, LabError.
    """
    user = lab_nodes.driver(lab).own_user()
    if user is None:
        enter = invocation.command("exec", *lab_owner.flag(lab.name), topology.node_names[0], "bash")
        raise UserError(f"ssh is for labs of namespaces; these nodes are containers. Enter them with: {enter}")
    sshd = _tool("sshd", "openssh-server")
    keygen = _tool("ssh-keygen", "openssh-client")
    program = client.keeper(lab).allow_remote_starts()
    try:
        folder = remote_starts.keys(lab, user.uid)
        if not folder.is_dir():
            _make_keys(folder, lab, user, sshd, keygen)
    except OSError as error:
        raise StorageError(f"cannot write the ssh keys of lab {lab.name}: {error.strerror or error}") from error
    return _CLIENT_SETTINGS.format(
        lab=lab.name, user=user, uid=user.uid, name=user.name, folder=folder, program=program, hosts=_hosts(topology)
    )


def _tool(name: str, package: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise MissingTool(name, installation.apt(package))
    return path


def _hosts(topology: Topology) -> str:
    """Return every name and address of the nodes: some tools turn one into the other."""
    net = Addressing(topology)
    names: list[str] = []
    for node in topology.node_names:
        names += [node, f"{node}.{FABRIC}", f"{node}.{MANAGEMENT}", *map(str, net.node(node))]
        names.append(str(net.management[node]))
    return " ".join(names)


def _make_keys(folder: Path, lab: LabFolder, user: ProgramUser, sshd: str, keygen: str) -> None:
    """Make the folder, whose existence is what lets the user in from the host: so it comes last, and whole."""
    part = Path(tempfile.mkdtemp(prefix="ssh-", dir=folder.parent))
    try:
        public = {name: _make_key(part / name, user, keygen) for name in (_KEY, _HOST_KEY)}
        settings = _SERVER_SETTINGS.format(folder=folder, name=user.name)
        for name, content, mode in (
            (_KNOWN, f"testbed-{lab.name} {public[_HOST_KEY]}\n", 0o644),
            (_ALLOWED, f"{public[_KEY]}\n", 0o644),
            (_SERVER_CONFIG, settings, 0o644),
            (_SERVER, _SERVER_SCRIPT.format(sshd=sshd, folder=folder), 0o755),
        ):
            (part / name).write_text(content)
            (part / name).chmod(mode)
        part.chmod(0o711)
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not folder.is_dir():  # otherwise another command made it at the same time
            raise
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _make_key(path: Path, user: ProgramUser, keygen: str) -> str:
    """Make a key that only ``user`` can read; return its public part. Raises HostError, OSError."""
    argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BOUND_S)
    except subprocess.TimeoutExpired as error:
        raise HostError(f"ssh-keygen did not end within {_BOUND_S:g} s") from error
    if done.returncode != 0:
        raise HostError(f"ssh-keygen failed: {(done.stderr or done.stdout).strip()}")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, user.uid, user.gid, follow_symlinks=False)
    return path.with_name(f"{path.name}.pub").read_text().strip()
