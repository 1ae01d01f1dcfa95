"""The actual state of a lab, observed without the testbed: `ip -j`, `tc`, `ping`, `iperf3`, /proc and plain sockets.

Imports nothing from ``testbed``: an oracle that shares code with the tested program shares its mistakes. Namespaces are
found by their name ``tb.<lab>.<node>``. Times are seconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import host_stalls

T = TypeVar("T")
Command = Callable[..., subprocess.CompletedProcess[str]]

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40
SO_SNDBUFFORCE, SO_RCVBUFFORCE, UDP_SEGMENT = 32, 33, 103

_libc = ctypes.CDLL(None, use_errno=True)


_numbers = itertools.count(1)


def unused_name() -> str:
    """Return a lab name that is unique across tests and concurrent pytest runs."""
    return f"t{os.getpid()}-{next(_numbers)}"


# ---- programs


def run(*argv: str | Path, timeout_s: float = 30.0, check: bool = True) -> str:
    """Run a program and return its stdout; a failure includes its output."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=timeout_s)
    assert not check or done.returncode == 0, f"{argv}: status {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout


def until_none(found: Callable[[], Sequence[str]], bound_s: float, what: str) -> None:
    """Wait until nothing is found, at most ``bound_s`` seconds and the stalls of the host meanwhile."""
    began = time.monotonic()
    while there := found():
        assert _within(began, bound_s), f"after {bound_s:g} s {what}: {there}"
        time.sleep(0.05)


def until(condition: Callable[[], object], bound_s: float, what: str) -> None:
    """Wait for a condition, at most ``bound_s`` seconds and the stalls of the host meanwhile."""
    began = time.monotonic()
    while not condition():
        assert _within(began, bound_s), f"not within {bound_s:g} s: {what}"
        time.sleep(0.005)


def _within(began: float, bound_s: float) -> bool:
    now = time.monotonic()
    return now < began + bound_s or now < began + bound_s + host_stalls.stalled_s(began, now)


# ---- namespaces and interfaces


def netns(lab: str, node: str) -> str:
    return f"tb.{lab}.{node}"


def namespaces(lab: str) -> set[str]:
    """Return the nodes of a lab that have a network namespace."""
    folder, prefix = Path("/run/netns"), f"tb.{lab}."
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return {name.removeprefix(prefix) for name in there if name.startswith(prefix)}


def ip(name: str, *words: str) -> list[dict[str, Any]]:
    """Return the output of `ip -j` in the network namespace ``name``."""
    return json.loads(run("ip", "-n", name, "-j", *words) or "[]")


def addresses(name: str, interface: str) -> dict[str, str]:
    """Return {"inet": …, "inet6": …} of an interface, without link-local addresses."""
    (link,) = ip(name, "addr", "show", "dev", interface)
    return {it["family"]: it["local"] for it in link["addr_info"] if it["scope"] == "global"}


def no_carrier(name: str, interface: str) -> bool:
    (link,) = ip(name, "link", "show", "dev", interface)
    return "NO-CARRIER" in link["flags"]


def inside(name: str, work: Callable[[], T]) -> T:
    """Run ``work`` in a separate thread inside the network namespace ``name``; return its result."""
    found: list[T] = []
    trouble: list[BaseException] = []

    def body() -> None:
        try:
            handle = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            if _libc.setns(handle, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {name}")
            os.close(handle)
            found.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return found[0]


class CarrierWatch:
    """Poll IFF_RUNNING (netdevice(7)) of interfaces every millisecond; :attr:`changes` has the times of changes.

    IFF_RUNNING follows the kernel's link watch, as routes and programs do; the driver's own bit would hide that its
    events can be late by a second.
    """

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        """``places``: {label: (network namespace, interface)}."""
        self._sockets = {
            label: inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for label, (name, _) in places.items()
        }
        self._interfaces = {label: interface for label, (_, interface) in places.items()}
        self._stop = threading.Event()
        self._seen: list[tuple[float, str, bool]] = []
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> CarrierWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for one in self._sockets.values():
            one.close()

    def carrier(self, label: str) -> bool:
        request = struct.pack("16sH14x", self._interfaces[label].encode(), 0)
        answer = fcntl.ioctl(self._sockets[label], SIOCGIFFLAGS, request)
        return bool(struct.unpack_from("H", answer, 16)[0] & IFF_RUNNING)

    def wait(self, up: bool, bound_s: float) -> dict[str, float]:
        """Wait until every carrier is ``up`` (or down); return the time of each carrier's last change."""
        until(lambda: set(self._latest(up)) == set(self._sockets), bound_s, f"all carriers {up}")
        return self._latest(up)

    @property
    def changes(self) -> list[tuple[float, str, bool]]:
        """Return (time, label, up) of every change, including the initial states."""
        return list(self._seen)

    def _latest(self, up: bool) -> dict[str, float]:
        """Return the carriers whose last change was to ``up``, with its time."""
        last = {label: (t, state) for t, label, state in list(self._seen)}
        return {label: t for label, (t, state) in last.items() if state is up}

    def _poll(self) -> None:
        known = dict.fromkeys(self._sockets)
        while not self._stop.wait(0.001):
            for label in self._sockets:
                state = self.carrier(label)
                if known[label] is not state:
                    known[label] = state
                    self._seen.append((time.monotonic(), label, state))


# ---- paths


def used_cpu(pid: int, over_s: float) -> float:
    """Return the CPUs used by a process over an interval, from proc_pid_stat(5)."""

    def ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    began, before = time.monotonic(), ticks()
    time.sleep(over_s)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def ping(name: str, address: str, *, count: int = 1, interval_s: float = 0.01, wait_s: float = 1.0) -> list[float]:
    """Return the round-trip times of answered pings in seconds."""
    return [rtt_s for _, rtt_s in _answered(name, address, count, interval_s, wait_s)]


def undelayed_pings(
    name: str, address: str, *, count: int, interval_s: float = 0.01, wait_s: float = 1.0
) -> list[float]:
    """Return the round-trip times of answered pings during which the host did not stall, in seconds."""
    answered = _answered(name, address, count, interval_s, wait_s)
    undelayed = host_stalls.undelayed([(received - rtt_s, received) for received, rtt_s in answered])
    return [rtt_s for (_, rtt_s), counts in zip(answered, undelayed, strict=True) if counts]


def _answered(name: str, address: str, count: int, interval_s: float, wait_s: float) -> list[tuple[float, float]]:
    """Return (time of the answer, round trip) of each answered ping."""
    argv = ["ip", "netns", "exec", name, "ping", "-n", "-D", "-c", str(count), "-i", str(interval_s), "-W", str(wait_s)]
    output = run(*argv, address, check=False, timeout_s=30 + count * (interval_s + wait_s))
    offset_s = time.time() - time.monotonic()
    lines = re.findall(r"^\[([\d.]+)\] .* time=([\d.]+) ms", output, re.MULTILINE)
    return [(float(at) - offset_s, float(ms) / 1000) for at, ms in lines]


def pings(wanted: Mapping[str, tuple[str, str]], *, count: int, interval_s: float) -> dict[str, list[float]]:
    """Run :func:`ping` for several (network namespace, address) pairs in parallel."""
    found: dict[str, list[float]] = {}

    def one(label: str, name: str, address: str) -> None:
        found[label] = ping(name, address, count=count, interval_s=interval_s)

    threads = [threading.Thread(target=one, args=(label, *place)) for label, place in wanted.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@contextlib.contextmanager
def zero_delay_path(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (network namespace, address of the other end) of two namespaces joined over a third by a `tc` redirect."""
    a, middle, b = (f"{prefix}-{part}" for part in ("a", "mid", "b"))
    try:
        for name in (a, middle, b):
            run("ip", "netns", "add", name)
        for name, end, address in ((a, "enda", "10.77.0.0/31"), (b, "endb", "10.77.0.1/31")):
            run("ip", "-n", middle, "link", "add", end, "type", "veth", "peer", "name", "port0", "netns", name)
            run("ip", "-n", middle, "link", "set", end, "up")
            run("ip", "-n", name, "addr", "add", address, "dev", "port0")
            run("ip", "-n", name, "link", "set", "port0", "up")
        for here, there in (("enda", "endb"), ("endb", "enda")):
            run("tc", "-n", middle, "qdisc", "add", "dev", here, "clsact")
            redirect = ["action", "mirred", "egress", "redirect", "dev", there]
            matching = ["protocol", "all", "u32", "match", "u32", "0", "0"]
            run("tc", "-n", middle, "filter", "add", "dev", here, "ingress", *matching, *redirect)
        until(lambda: ping(a, "10.77.0.1"), 5.0, "the bare path passes")
        yield a, "10.77.0.1"
    finally:
        for name in (a, middle, b):
            run("ip", "netns", "del", name, check=False)


def iperf3(client: str, server: str, address: str, *, seconds: float = 1.0) -> dict[str, Any]:
    """Return the `end` section of iperf3's JSON report of one TCP flow from ``client`` to ``server``."""
    enter = ("ip", "netns", "exec")
    listening = subprocess.Popen(
        [*enter, server, "iperf3", "-s", "-1", "--forceflush"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert listening.stdout is not None
        for line in listening.stdout:
            if "listening" in line:
                break
        output = run(*enter, client, "iperf3", "-c", address, "-t", str(seconds), "-J", timeout_s=30 + seconds)
        return json.loads(output)["end"]
    finally:
        listening.kill()
        listening.communicate()


class Stream:
    """A TCP connection between two namespaces that sends a message every millisecond inside the ``with`` block.

    ``arrivals`` has the times at which the receiver got data.
    """

    def __init__(self, sender: str, receiver: str, address: str, interval_s: float = 0.001) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._interval_s = interval_s
        self.arrivals: list[float] = []
        self.received = 0
        self.sent = 0
        self.broken = ""
        self._stop = threading.Event()

        def listen() -> socket.socket:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((address, 0))
            listener.listen(1)
            return listener

        listener = inside(receiver, listen)
        self._sender = inside(sender, lambda: socket.create_connection(listener.getsockname()[:2], timeout=5.0))
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._receiver, _ = listener.accept()
        self._receiver.settimeout(0.5)
        listener.close()
        self._threads = [threading.Thread(target=it) for it in (self._send, self._receive)]

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.arrivals) > 50, 5.0, "the stream flows")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._receiver.close()

    def gap_s(self, begin: float, end: float) -> float:
        """Return the longest gap between arrivals from ``begin`` to ``end``, each less the stalls of the host in it."""
        return host_stalls.longest_gap_s([begin, *(t for t in list(self.arrivals) if begin <= t <= end), end])

    def flows_after(self, t: float) -> bool:
        return bool(self.arrivals) and self.arrivals[-1] > t

    def _send(self) -> None:
        due = time.monotonic()
        try:
            while not self._stop.is_set():
                self._sender.sendall(struct.pack("=Q", self.sent))
                self.sent += 1
                due = max(due + self._interval_s, time.monotonic() - 0.01)
                time.sleep(max(0.0, due - time.monotonic()))
        except OSError as error:
            self.broken = f"sender: {error}"
        with contextlib.suppress(OSError):
            self._sender.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        whole = b""
        while True:
            try:
                data = self._receiver.recv(65536)
            except TimeoutError:
                if self._stop.is_set():
                    return
                continue
            except OSError as error:
                self.broken = f"receiver: {error}"
                return
            if not data:
                return
            self.arrivals.append(time.monotonic())
            whole += data
            while len(whole) >= 8:
                if struct.unpack_from("=Q", whole)[0] != self.received:
                    self.broken = f"expected message {self.received}, got {whole[:8]!r}"
                    return
                self.received += 1
                whole = whole[8:]


def udp_super_packets(
    sender: str, receiver: str, address: str, *, packets: int, segments: int, size: int, pause_s: float
) -> list[int]:
    """Send ``packets`` super-packets of ``segments`` UDP datagrams each; return the numbers of arrived datagrams.

    One send with UDP_SEGMENT is one packet to the stack and to forwarders, and ``segments`` packets on a real wire.
    """

    def bound(where: str) -> socket.socket:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((where, 0))
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            one.setsockopt(socket.SOL_SOCKET, option, 32 << 20)
        return one

    there = inside(receiver, lambda: bound(address))
    here = inside(sender, lambda: bound("0.0.0.0"))
    here.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    there.settimeout(0.3)
    arrived: list[int] = []
    with here, there:
        due = time.monotonic()
        for number in range(packets):
            first = number * segments
            data = b"".join(struct.pack("=Q", first + it).ljust(size, b"x") for it in range(segments))
            here.sendto(data, there.getsockname())
            due += pause_s
            time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            while True:
                arrived.append(struct.unpack_from("=Q", there.recv(65536))[0])
    return arrived


# ---- processes and leftovers


def processes() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Yield (pid, command line, environment) of every process except this one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), words, dict(it.split("=", 1) for it in pairs if "=" in it)


def working_in(folder: Path) -> list[int]:
    """Return processes whose working directory is at or below a folder, even a deleted one, as a lab's Prometheus."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str((entry / "cwd").readlink()).startswith(str(folder.resolve())):
                    found.append(int(entry.name))
    return found


def keeper_pids(lab: str, state: Path) -> list[int]:
    folder = str(state / "labs" / lab)
    return [pid for pid, words, _ in processes() if "testbed.keeper.main" in words and folder in words]


def emulator_pids(lab: str) -> list[int]:
    plant = f"/run/netns/{netns(lab, 'plant')}"
    return [pid for pid, words, _ in processes() if words and words[0].endswith("/fiberd") and plant in words]


def agent_pids(state: Path) -> list[int]:
    """Return the fork servers and ranks of all labs below ``state``."""
    return [pid for pid, words, environment in processes() if "testbed_agents.fork_server" in words
            and environment.get("TESTBED_STATE") == str(state)]  # fmt: skip


def kill(pids: Sequence[int]) -> None:
    """Send SIGKILL to processes that a test started."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def inside_pids(name: str) -> list[int]:
    """Return the processes in a named network namespace."""
    return [int(pid) for pid in run("ip", "netns", "pids", name).split()]


def started_under(state: Path) -> list[str]:
    """Return all processes started with this $TESTBED_STATE."""
    return [
        f"process {pid}: {' '.join(words)}"
        for pid, words, environment in processes()
        if environment.get("TESTBED_STATE") == str(state)
    ]


def left_behind(lab: str, state: Path) -> list[str]:
    """Return everything that carries the name of a lab: namespaces, mounts, processes, its folder."""
    mark, folder = f"tb.{lab}.", str(state / "labs" / lab)
    found = [f"namespace {mark}{node}" for node in sorted(namespaces(lab))]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if mark in place or place.startswith(folder + "/"):
            found.append(f"mount {place}")
    for pid, words, _ in processes():
        if any(mark in word or word == folder for word in words):
            found.append(f"process {pid}: {' '.join(words)}")
    if Path(folder).exists():
        found.append(f"folder {folder}")
    short = lab if len(lab) <= 15 else lab[:9].rstrip("-")  # a longer one goes on with a hash
    found += [f"scratch {path}" for top in ("/tmp", "/var/tmp") for path in Path(top).glob(f"testbed-{short}-*")]
    return found


def left_of_labs(state: Path) -> list[str]:
    """Return the leftovers of all labs whose state was below ``state``."""
    labs = state / "labs"
    names = sorted(path.name for path in labs.iterdir()) if labs.is_dir() else []
    return [it for name in names for it in left_behind(name, state)]
