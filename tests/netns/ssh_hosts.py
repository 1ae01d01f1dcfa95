"""Hosts of namespaces, each with a real sshd: own network, mounts (an overlay of this machine's), pids, hostname, IPC.

A host goes with its first process. Hosts and the client are joined by a bridge in a namespace of its own, and reach
nothing else. No testbed code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from builders import ROOT
from builders.commands import run_line

_INIT = """set -e
mount --make-rprivate /
mount -t tmpfs -o size=2g {name} {folder}/{name}
mkdir {folder}/{name}/up {folder}/{name}/work {folder}/{name}/root
mount -t overlay -o lowerdir=/,upperdir={folder}/{name}/up,workdir={folder}/{name}/work {name} {folder}/{name}/root
cd {folder}/{name}/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=1777 tmpfs var/tmp
mkdir -p tmp/keys run/sshd run/netns
for path in {hidden}; do mkdir -p ./$path; mount --bind $path ./$path; done
rm -rf var/lib/testbed root/.ssh root/.local/share/testbed root/.bashrc
mkdir -p -m 700 root/.ssh
cp {folder}/{name}.key {folder}/{name}.key.pub tmp/keys
chmod 600 tmp/keys/{name}.key
cp {folder}/client.pub root/.ssh/authorized_keys
chmod 600 root/.ssh/authorized_keys
chown -R 0:0 root/.ssh
hostname {name}
echo "127.0.1.1 {name}" >> etc/hosts
for program in testbed testbed-leash; do
  module=$([ $program = testbed ] && echo testbed || echo testbed.host.remote.leash)
  echo '#!/bin/sh' > usr/local/bin/$program
  echo 'PYTHONPATH={root}:{root}/agents exec {python} -m '$module' "$@"' >> usr/local/bin/$program
  chmod 755 usr/local/bin/$program
done
mkdir oldroot
pivot_root . oldroot
cd /
umount -l /oldroot
rmdir /oldroot
/usr/sbin/sshd -h /tmp/keys/{name}.key -o PidFile=none -o UsePAM=no -o StrictModes=no {options} \
  -o PermitRootLogin=prohibit-password -o SetEnv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
echo up
exec {python} -c 'import os, time
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        time.sleep(0.1)'
"""


def _hidden() -> list[str]:
    """What tests need of this machine's /tmp and /var/tmp, which a host has for itself."""
    return [str(it) for it in (ROOT, Path(sys.prefix)) if str(it).startswith(("/tmp/", "/var/tmp/"))]


class Host:
    """A host ``name`` at ``address``; ``process`` is the one that holds it."""

    def __init__(self, name: str, address: str, process: subprocess.Popen[bytes], key: str) -> None:
        self.name, self.address, self.process, self.key = name, address, process, key

    def pids(self) -> dict[int, str]:
        """All processes there, but its first one and sshd's, with their command lines."""
        namespace = Path(f"/proc/{self.first()}/ns/pid").readlink()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == namespace:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line and int(entry.name) != self.first() and not line.startswith(("sshd", "/usr/sbin/sshd")):
                        found[int(entry.name)] = line
        return found

    def path(self, path: str) -> Path:
        """A path of that host, as this one sees it."""
        return Path(f"/proc/{self.first()}/root") / path.lstrip("/")

    def inside(self, *words: str) -> str:
        """Run a program among the files and in the network of that host; return its stdout."""
        return run_line(f"nsenter --target={self.first()} --mount --pid --net", *words, timeout_s=60)

    def first(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])


class Hosts:
    """Hosts and the client's ssh configuration, ``config``; commands of the client run in its network by ``client``."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.hosts: list[Host] = []
        self.config, self.known_hosts = folder / "config", folder / "known_hosts"
        run_line("ssh-keygen -q -t ed25519 -N", "", "-f", folder / "client")
        for each in (f"{prefix}net", f"{prefix}cli"):
            run_line(f"ip netns add {each}")
        run_line(f"ip -n {prefix}net link add br0 type bridge forward_delay 0")
        run_line(f"ip -n {prefix}net link set br0 up")
        self._cable("client", f"{prefix}cli", "192.0.2.1")
        self.known_hosts.touch()

    def _cable(self, port: str, namespace: str, address: str) -> None:
        bridge = f"{self.prefix}net"
        run_line(f"ip -n {bridge} link add {port} type veth peer name eth0 netns {namespace}")
        run_line(f"ip -n {bridge} link set {port} master br0 up")
        for interface in ("lo", "eth0"):
            run_line(f"ip -n {namespace} link set {interface} up")
        run_line(f"ip -n {namespace} addr add {address}/24 dev eth0")

    def add(self, name: str, options: str = "") -> Host:
        address = f"192.0.2.{11 + len(self.hosts)}"
        namespace = f"{self.prefix}{name}"
        run_line(f"ip netns add {namespace}")
        self._cable(name, namespace, address)
        (self.folder / name).mkdir()
        key = self.folder / f"{name}.key"
        run_line("ssh-keygen -q -t ed25519 -N", "", "-f", key)
        script = self.folder / f"init-{name}.sh"
        script.write_text(
            _INIT.format(
                name=name,
                folder=self.folder,
                root=ROOT,
                python=sys.executable,
                options=options,
                hidden=" ".join(_hidden()),
            )
        )
        unshare = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "bash", str(script)]
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{namespace}", *unshare],
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{name}.log").open("wb"),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", (self.folder / f"{name}.log").read_text()
        host = Host(name, address, process, (self.folder / f"{name}.key.pub").read_text().rsplit(" ", 1)[0])
        self.hosts.append(host)
        with self.known_hosts.open("a") as stream:
            stream.write(f"{address} {host.key}\n")
        with self.config.open("a") as stream:
            stream.write(
                f"Host {name}\n HostName {address}\n User root\n"
                f" IdentityFile {self.folder}/client\n IdentitiesOnly yes\n"
                f" UserKnownHostsFile {self.known_hosts}\n GlobalKnownHostsFile none\n"
            )
        return host

    def client(self, *words: str) -> list[str]:
        """Return the words of a command of the client."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}cli", *words]

    def cable(self, host: Host, up: bool) -> None:
        run_line(f"ip -n {self.prefix}net link set {host.name}", "up" if up else "down")

    def open_cable(self) -> tuple[str, str, str]:
        """Lead the client's cable through a namespace of its own, where an emulator may join its two ends; return the
        namespace and them."""
        bridge, client, between = (f"{self.prefix}{it}" for it in ("net", "cli", "mid"))
        run_line(f"ip netns add {between}")
        run_line(f"ip -n {bridge} link del client")
        for name, namespace, end, index in (("eth0", client, "near", "1001"), ("client", bridge, "far", "1002")):
            # Equal ifindex on both ends would delay carrier events.
            run_line(f"ip link add {name} netns {namespace} type veth peer name {end} netns {between} index {index}")
            run_line(f"ip -n {between} link set {end} arp off up")
            run_line(f"ip -n {namespace} link set {name} up")
        run_line(f"ip -n {bridge} link set client master br0")
        run_line(f"ip -n {client} addr add 192.0.2.1/24 dev eth0")
        return between, "near", "far"

    def join_cable(self) -> None:
        """Have the client's cable lead straight to the others again."""
        run_line(f"ip netns del {self.prefix}mid")
        self._cable("client", f"{self.prefix}cli", "192.0.2.1")

    def remove(self) -> None:
        for host in self.hosts:
            with contextlib.suppress(OSError, IndexError):
                os.kill(host.first(), signal.SIGKILL)
            host.process.kill()
            host.process.wait()
        for name in ("net", "cli", "mid", *(host.name for host in self.hosts)):
            run_line(f"ip netns del {self.prefix}{name}", check=False)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    folder = Path(tempfile.mkdtemp(prefix="testbed-hosts-", dir="/var/tmp"))
    made = Hosts(folder, f"h{os.getpid() % 100000}")
    try:
        for name in names:
            made.add(name)
        yield made
    finally:
        made.remove()
        time.sleep(0)
        shutil.rmtree(folder, ignore_errors=True)
