"""Wrong fibers, planted below the keeper: fiberd applies other values than the lab's, in one direction.

fiberd is controlled over a socketpair (testbed/fiberd/control.h): its stdin and a socket of the keeper. The keeper is
stopped, its end is duplicated with pidfd_getfd(2), fiberd is given other values, and the keeper continues. No journal,
status or target has the change. Imports nothing from ``testbed``.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from oracles import oracle

Values = dict[str, str]
"""Of a direction, by the keys of fiberd's `set`."""

WRONG: Mapping[str, tuple[str, Callable[[Values], Values]]] = {
    "delay + 60 us": ("delay", lambda values: {"delay_ns": str(int(values["delay_ns"]) + 60_000)}),
    "rate x 0.94": ("rate", lambda values: {"rate_bps": str(float(values["rate_bps"]) * 0.94)}),
    "rate x 1.06": ("rate", lambda values: {"rate_bps": str(float(values["rate_bps"]) * 1.06)}),
    "rate unlimited": ("rate", lambda _: {"rate_bps": "0"}),
    "loss 1 % made 2 %": ("loss", lambda _: {"loss": "0.02"}),
}
"""By name: the quantity that is wrong, and what changes the values in force."""

_SYS_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def wrong_fiber(lab: str, state: Path, direction: str, change: Callable[[Values], Values]) -> Iterator[None]:
    """Let fiberd apply ``change`` to a direction, such as ``north:west``, while the block runs."""
    before = _values(_ask(lab, state, f"get {direction}"))
    changed = change(before)
    _set(lab, state, direction, changed)
    try:
        yield
    finally:
        _set(lab, state, direction, {key: before[key] for key in changed})


def _set(lab: str, state: Path, direction: str, values: Values) -> None:
    _ask(lab, state, f"set {direction} " + " ".join(f"{key}={value}" for key, value in values.items()))
    in_force = _values(_ask(lab, state, f"get {direction}"))
    for key, value in values.items():
        assert float(in_force[key]) == float(value), f"{direction}: {key} is {in_force[key]}, expected {value}"


def _values(answer: list[str]) -> Values:
    _, _, *words = answer[0].split()
    return dict(word.split("=", 1) for word in words)


def _ask(lab: str, state: Path, line: str) -> list[str]:
    """Send fiberd a line in the keeper's place; return its answer without the "ok"."""
    (keeper,), (fiberd,) = oracle.keeper_pids(lab, state), oracle.emulator_pids(lab)
    pidfd = os.pidfd_open(keeper)
    try:
        for _ in range(20):
            os.kill(keeper, signal.SIGSTOP)
            try:
                oracle.until(lambda: _is_stopped(keeper), 5.0, "the keeper has stopped")
                control = _socket_of(keeper, pidfd, _peer_of_stdin(fiberd))
                with control:
                    time.sleep(0.01)  # fiberd answers what the keeper has sent
                    if not _has_data(control):
                        control.sendall(f"{line}\n".encode())
                        return _answer(control)
            finally:
                os.kill(keeper, signal.SIGCONT)
            time.sleep(0.05)  # the keeper reads its answer
    finally:
        os.close(pidfd)
    raise AssertionError("the keeper was always waiting for an answer of fiberd")


def _answer(control: socket.socket) -> list[str]:
    received = b""
    control.settimeout(5.0)
    while True:
        chunk = control.recv(65536)
        assert chunk, "fiberd has closed its control socket"
        received += chunk
        *lines, rest = received.decode().split("\n")
        if not rest and lines[-1].startswith(("ok", "error")):
            assert lines[-1].startswith("ok"), lines[-1]
            return lines[:-1]


def _is_stopped(pid: int) -> bool:
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


def _peer_of_stdin(pid: int) -> str:
    """Return the link in /proc/<pid>/fd of the socket that is connected to a process's stdin."""
    inode = _inode(Path(f"/proc/{pid}/fd/0"))
    for line in oracle.run("ss", "-xH").splitlines():
        words = line.split()  # type, state, two queues, "*", inode, "*", inode of the peer
        if words[5] == inode:
            return f"socket:[{words[7]}]"
    raise AssertionError(f"ss -x does not show {inode}")


def _socket_of(pid: int, pidfd: int, link: str) -> socket.socket:
    (number,) = [int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir() if str(fd.readlink()) == link]
    duplicate = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    if duplicate < 0:
        raise OSError(ctypes.get_errno(), f"pidfd_getfd {number} of {pid}")
    return socket.socket(fileno=duplicate)


def _inode(link: Path) -> str:
    return str(link.readlink()).removeprefix("socket:[").removesuffix("]")


def _has_data(control: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


# ---- paths around the fibers


@contextlib.contextmanager
def second_path(lab: str, one: str, other: str, *routes: tuple[str, str, str]) -> Iterator[None]:
    """Plant a cable between two namespaces; ``routes`` are (namespace, destination, next hop) over it."""
    here, there = oracle.netns(lab, one), oracle.netns(lab, other)
    oracle.run("ip", "-n", here, "link", "add", "leak0", "type", "veth", "peer", "name", "leak1", "netns", there)
    try:
        for place, device, number in ((here, "leak0", 1), (there, "leak1", 2)):
            oracle.run("ip", "-n", place, "link", "set", device, "up")
            if routes:
                oracle.run("ip", "-n", place, "addr", "add", f"fd00:bad::{number}/64", "dev", device, "nodad")
                oracle.run("ip", "-n", place, "addr", "add", f"192.168.99.{number}/24", "dev", device)
        for node, destination, hop in routes:
            place, device = oracle.netns(lab, node), "leak0" if node == one else "leak1"
            oracle.run("ip", "-n", place, "route", "replace", destination, "via", hop, "dev", device, "metric", "1")
        yield
    finally:
        oracle.run("ip", "-n", here, "link", "del", "leak0")  # its routes go with it


def site_network(lab: str, site: str, family: str) -> str:
    """Return the network of a site's fabric, from the address of its gateway."""
    (link,) = oracle.ip(oracle.netns(lab, f"{site}-gw"), "addr", "show", "dev", "fabric")
    (own,) = [row for row in link["addr_info"] if row["family"] == family and row["scope"] == "global"]
    return str(ipaddress.ip_interface(f"{own['local']}/{own['prefixlen']}").network)
