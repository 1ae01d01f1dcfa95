"""Test bed of the emulator benchmarks: two hosts, several kinds of paths between them, and measurements on a path.

Built with `ip` and `tc` alone; the only testbed code is the emulator under test. Path k is device ``via<k>`` on both
hosts, with addresses 10.76.k.1 and .2. A *cable* is one veth pair. A *fiber* is two veth pairs with the plant between
them, where an emulator joins ``p<k>-a`` and ``p<k>-b``; for reference, the kernel redirects without delay.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import numbered
from testbed.core.physics.impairment import EmulatedDirection, Impairment

HERE = Path(__file__).resolve().parent
PORT, LOAD_PORT = 7600, 7700
IPERF_PORT = 5201
PAYLOAD_BYTES, WIRE_BYTES = 1472, 1538
"""Payload of a full UDP packet at MTU 1500, and its size on the wire with preamble, FCS and inter-packet gap."""


def run(*argv: str, text: str = "", timeout_s: float = 120) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def address(path: int, side: int = 2) -> str:
    return f"10.76.{path}.{side}"


@dataclass
class Bed:
    """Namespaces ``<prefix>a``, ``<prefix>b`` (the hosts) and ``<prefix>p`` (the plant)."""

    prefix: str
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

    def make(self, hosts: tuple[int, int] | None = None) -> None:
        """Create the namespaces. ``hosts``: pids of processes whose network namespaces become the hosts; None: new."""
        for position, name in enumerate((self.a, self.b, self.plant)):
            if hosts and position < 2:
                run("ip", "netns", "attach", name, str(hosts[position]))
            else:
                run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            # IPv6 sends unsolicited packets, which would disturb packet counts.
            run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def remove(self) -> None:
        for process in self.started:
            process.kill()
            with contextlib.suppress(ValueError):  # already read to the end
                process.communicate()
        for name in (self.a, self.b, self.plant):
            with contextlib.suppress(RuntimeError):
                run("ip", "netns", "del", name)

    def cable(self, path: int) -> None:
        # Equal interface indices on both ends delay carrier events.
        end = f"name via{path} netns {self.b} index {9000 + path}"
        run("ip", "-batch", "-", text=f"link add via{path} netns {self.a} type veth peer {end}\n")
        self._address([path])

    def fibers(self, *paths: int) -> None:
        lines = []
        for path in paths:
            for side, host, end in ((0, self.a, f"p{path}-a"), (1, self.b, f"p{path}-b")):
                peer = f"name {end} netns {self.plant} index {1000 + 2 * path + side}"
                lines.append(f"link add via{path} netns {host} type veth peer {peer}")
        run("ip", "-batch", "-", text="\n".join(lines) + "\n")
        ends = [f"link set p{path}-{side} arp off up" for path in paths for side in "ab"]
        run("ip", "-n", self.plant, "-batch", "-", text="\n".join(ends) + "\n")
        self._address(paths)

    def _address(self, paths: Iterator[int] | tuple[int, ...] | list[int]) -> None:
        wanted = list(paths)
        for side, host in enumerate((self.a, self.b), 1):
            lines = [f"addr add {address(path, side)}/24 dev via{path}\nlink set via{path} up" for path in wanted]
            run("ip", "-n", host, "-batch", "-", text="\n".join(lines) + "\n")

    def directions(self, impairments: dict[int, Impairment]) -> list[EmulatedDirection]:
        """Return both directions of each fiber, toward b first."""
        found = []
        for path, it in impairments.items():
            ends = (f"p{path}-a", f"p{path}-b")
            found += [EmulatedDirection(f"p{path}:b", *ends, it), EmulatedDirection(f"p{path}:a", *ends[::-1], it)]
        return found

    def redirect(self, path: int, rate_bps: float = 0.0) -> None:
        """Join the ends of a fiber by a kernel redirect without delay; with a rate, shape the direction toward b."""
        ends = (f"p{path}-a", f"p{path}-b")
        for end, other in (ends, ends[::-1]):
            run("tc", "-n", self.plant, "qdisc", "add", "dev", end, "clsact")
            match = ("protocol", "all", "u32", "match", "u32", "0", "0")
            act = ("action", "mirred", "egress", "redirect", "dev", other)
            run("tc", "-n", self.plant, "filter", "add", "dev", end, "ingress", *match, *act)
        if rate_bps:
            shape = ("rate", f"{rate_bps:.0f}bit", "burst", "3200", "limit", "1000000", "overhead", "24")
            run("tc", "-n", self.plant, "qdisc", "add", "dev", ends[1], "root", "tbf", *shape)

    # -- measuring

    def round_trips(self, paths: list[int], count: int, gap_s: float) -> dict[int, list[float]]:
        """Return sorted round trips from a, in seconds, interleaved over all paths; omit the first of each (ARP)."""
        targets = [address(path) for path in paths]
        run("ip", "netns", "exec", self.a, sys.executable, str(HERE / "probe.py"), "1", "0.001", *targets)
        words = (str(count), str(gap_s), *targets)
        said = json.loads(run("ip", "netns", "exec", self.a, sys.executable, str(HERE / "probe.py"), *words))
        return {path: sorted(said[address(path)]) for path in paths}

    def losses(self, path: int, count: int, pps: float, loss: float, burst: float = 0.0) -> dict[str, Any]:
        """Send numbered packets from a to b; return the counts and their evaluation."""
        program = (sys.executable, str(HERE / "numbered.py"))
        receiver = self.background(self.b, *program, "receive", str(PORT))
        assert receiver.stdout and receiver.stdout.readline() == "ready\n"
        where = (address(path), str(PORT))
        bound_s = 60 + 3 * count / pps
        run("ip", "netns", "exec", self.a, *program, "send", *where, str(count), str(pps), timeout_s=bound_s)
        said, _ = receiver.communicate(timeout=30)
        self.started.remove(receiver)
        return numbered.judged(json.loads(said), loss, burst)

    def background(self, namespace: str, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def serve(self) -> None:
        """Start iperf3's server and the sink of the load on b."""
        self.background(self.b, sys.executable, str(HERE / "numbered.py"), "sink", str(LOAD_PORT))
        server = ["ip", "netns", "exec", self.b, "iperf3", "-s", "-p", str(IPERF_PORT)]
        self.started.append(subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True))
        until = time.monotonic() + 10
        while "LISTEN" not in run("ip", "netns", "exec", self.b, "ss", "-Hltn", f"sport = :{IPERF_PORT}"):
            if time.monotonic() > until:
                raise RuntimeError("iperf3 server did not listen within 10 s")
            time.sleep(0.02)

    def iperf(self, path: int, seconds: float, *options: str) -> dict[str, Any]:
        """Return the ``end`` section of iperf3's report of a run from a to b."""
        said = run("ip", "netns", "exec", self.a, *self._client(path, seconds), *options)
        end: dict[str, Any] = json.loads(said)["end"]
        return end

    @contextmanager
    def load(self, path: int, rate_bps: float, share: float, seconds: float) -> Iterator[dict[str, float]]:
        """Send full UDP packets from a to b inside the block, at ``share`` of ``rate_bps`` on the wire.

        Yield a dictionary whose ``share`` is the achieved share after the block.
        """
        pps = rate_bps * share / (8 * WIRE_BYTES)
        words = ("load", address(path), str(LOAD_PORT), str(pps), str(seconds), str(PAYLOAD_BYTES))
        sender = self.background(self.a, sys.executable, str(HERE / "numbered.py"), *words)
        achieved: dict[str, float] = {}
        try:
            time.sleep(0.3)  # Python starts; the probes must run while it sends
            yield achieved
        finally:
            said, complaint = sender.communicate(timeout=seconds + 20)
            self.started.remove(sender)
        if sender.returncode:
            raise RuntimeError(f"load: {complaint.strip()[-300:]}")
        achieved["share"] = share * float(said) / pps

    def _client(self, path: int, seconds: float) -> tuple[str, ...]:
        return ("iperf3", "-J", "-c", address(path), "-p", str(IPERF_PORT), "-t", str(math.ceil(seconds)))

    def packets(self, path: int) -> tuple[int, int]:
        """Return the number of packets sent by a on this path, and received by b."""
        counted = []
        for host, side in ((self.a, "tx"), (self.b, "rx")):
            [link] = json.loads(run("ip", "-n", host, "-j", "-s", "link", "show", f"via{path}"))
            counted.append(link["stats64"][side]["packets"])
        return counted[0], counted[1]


@contextmanager
def bed(hosts: tuple[int, int] | None = None) -> Iterator[Bed]:
    made = Bed(f"bn{os.getpid()}")
    try:
        made.make(hosts)
        yield made
    finally:
        made.remove()
