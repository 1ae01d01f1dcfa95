"""Two hosts and a plant between them, created with `ip` alone; the only testbed code is the emulator under test."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from builders.commands import words_of
from oracles import oracle

T = TypeVar("T")

CLONE_NEWNET = 0x40000000


def run(line: str | Path, *arguments: str | Path, check: bool = True, timeout_s: float = 60) -> str:
    argv = words_of(str(line), *arguments)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)
    assert not check or done.returncode == 0, f"{argv}: {done.stdout}"
    return done.stdout


def until(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Wait until ``condition()`` is true and return its value."""
    values: list[T] = []

    def is_true() -> T:
        values[:] = [condition()]
        return values[0]

    oracle.until(is_true, timeout_s, what)
    return values[0]


@dataclass
class Lab:
    """Namespaces ``<prefix>a``, ``<prefix>b`` and ``<prefix>p``; for link i, ``fib<i>`` on both hosts is joined in the
    plant by ``l<i>-a`` and ``l<i>-b``. Addresses 10.77.i.1 and .2; IPv6 is off."""

    prefix: str
    links: int = 1
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def a(self) -> str:
        return f"{self.prefix}a"

    @property
    def b(self) -> str:
        return f"{self.prefix}b"

    @property
    def plant(self) -> str:
        return f"{self.prefix}p"

    def ends(self, link: int = 0) -> tuple[str, str]:
        return f"l{link}-a", f"l{link}-b"

    def build(self) -> None:
        for namespace in (self.a, self.b, self.plant):
            run(f"ip netns add {namespace}")
            run(f"ip -n {namespace} link set lo up")
            # IPv6 sends unsolicited packets, which would disturb packet counts.
            run(f"ip netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
        for link in range(self.links):
            for side, (namespace, end) in enumerate(zip((self.a, self.b), self.ends(link), strict=True), 1):
                # Equal ifindex on both ends would delay carrier events, so the plant counts from 1000.
                peer = f"peer name {end} netns {self.plant} index {1000 + 2 * link + side}"
                run(f"ip link add fib{link} netns {namespace} type veth {peer}")
                run(f"ip -n {self.plant} link set {end} arp off up")
                run(f"ip -n {namespace} link set fib{link} up")
                run(f"ip -n {namespace} addr add 10.77.{link}.{side}/24 dev fib{link}")

    def destroy(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for namespace in (self.a, self.b, self.plant):
            run(f"ip netns del {namespace}", check=False)

    def inside(self, namespace: str, *argv: str | Path, timeout_s: float = 60) -> str:
        return run(f"ip netns exec {namespace}", *argv, timeout_s=timeout_s)

    def background(self, namespace: str, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(process)
        return process

    def socket(self, namespace: str, *arguments: Any) -> socket.socket:
        """Return a socket in ``namespace``. setns is per thread, so a separate thread creates it."""
        made: list[socket.socket] = []

        def make() -> None:
            handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(handle)
            made.append(socket.socket(*arguments))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def links_of(self, namespace: str) -> dict[str, dict[str, Any]]:
        return {link["ifname"]: link for link in json.loads(run(f"ip -n {namespace} -j -s link"))}

    def set_end(self, end: str, *change: str) -> None:
        """Change an end of a link in the plant: up, down, its MTU."""
        run(f"ip -n {self.plant} link set {end}", *change)

    def is_up(self, end: str) -> bool:
        return "UP" in self.links_of(self.plant)[end]["flags"]

    def rtts_s(self, count: int, interval_s: float = 0.01, target: str = "10.77.0.2", *options: str) -> list[float]:
        """Return sorted round trips of ``ping`` from a in seconds, without lost ones."""
        text = self.inside(self.a, "ping", "-c", str(count), "-i", str(interval_s), "-W", "2", *options, target)
        return sorted(float(ms) / 1e3 for ms in re.findall(r"time=([\d.]+) ms", text))

    def undelayed_rtts_s(self, count: int, interval_s: float = 0.01) -> list[float]:
        """Return sorted round trips of at least ``count`` pings that no stall of the host delayed."""
        rtts: list[float] = []
        for _ in range(4):
            rtts += oracle.undelayed_pings(self.a, "10.77.0.2", count=count, interval_s=interval_s)
            if len(rtts) >= count:
                break
        assert len(rtts) >= count, f"the host delayed all but {len(rtts)} of {4 * count} pings"
        return sorted(rtts)

    def iperf(self, seconds: int, *options: str, target: str = "10.77.0.2") -> dict[str, Any]:
        """Run iperf3 from a to b; return the ``end`` section of its JSON."""
        server = self.background(self.b, "iperf3", "-s", "-1", "--forceflush")
        assert server.stdout
        until(lambda: "LISTEN" in run(f"ip netns exec {self.b} ss -Hltn 'sport = :5201'"), 5, "iperf3 listens")
        text = self.inside(self.a, "iperf3", "-J", "-c", target, "-t", str(seconds), *options)
        server.communicate(timeout=20)
        end: dict[str, Any] = json.loads(text)["end"]
        return end

    @contextmanager
    def redirect(self) -> Iterator[None]:
        """Join the ends by a kernel redirect without delay: the baseline of RTTs."""
        ends = self.ends(0)
        for end, other in (ends, ends[::-1]):
            run(f"tc -n {self.plant} qdisc add dev {end} clsact")
            action = f"action mirred egress redirect dev {other}"
            run(f"tc -n {self.plant} filter add dev {end} ingress protocol all u32 match u32 0 0 {action}")
        try:
            yield
        finally:
            for end in ends:
                run(f"tc -n {self.plant} qdisc del dev {end} clsact")


@contextmanager
def lab_up(prefix: str, links: int = 1) -> Iterator[Lab]:
    lab = Lab(f"{prefix}{os.getpid()}", links)
    try:
        lab.build()
        yield lab
    finally:
        lab.destroy()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
