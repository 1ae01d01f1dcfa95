"""Send numbered packets between many namespaces at once, and see which fibers each of them enters.

One pair of UDP sockets per namespace, bound to all its addresses, sends to and receives from all others. One packet
socket in the plant, with a filter for the mark of these packets (cBPF, so that a training job's packets cost next to
nothing), sees each packet as it enters a fiber, on both emulators: packet sockets are served before an ingress qdisc.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["Heard", "Place", "Send", "SiteProbes"]

SO_ATTACH_FILTER, SO_RCVBUFFORCE, IP_PKTINFO = 26, 33, 8
SOL_PACKET, PACKET_STATISTICS = 263, 6
ETH_P_ALL = 3
RECEIVE_BYTES = 256 << 20
"""Room for some hundred thousand captured packets, each of which the kernel accounts as about 1 kB."""

ALL_NODES, BROADCAST = "ff02::1", "255.255.255.255"

_MESSAGE = struct.Struct("!QI12x")
"""Mark, and number: gives a frame of 66 bytes, about Ethernet's minimum."""

CHUNK = 64
"""Packets under way at a time: more would overflow the queues of a small machine, which resolve no neighbour then."""
IDLE_S = 0.003
"""Nothing arrived or crossed for this long: what is still under way is within the fibers, so send on."""

PORTS, PORT_TRIES = range(40_000, 60_000), 20


@dataclass(frozen=True)
class Place:
    """A namespace that takes part; everybody nearby is addressed by all its interfaces but ``lo`` and ``skipped``."""

    name: str
    path: Path
    skipped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Send:
    """A packet to be sent: its number, and what sends it."""

    number: int
    go: Callable[[], None]


@dataclass(frozen=True)
class Heard:
    """What became of the packets sent so far, by their numbers: who received each, and which interfaces of the plant
    it came in by. ``complete``: no captured packet was lost, so that the absence of a crossing means something."""

    receivers: Mapping[int, frozenset[str]]
    entered: Mapping[int, frozenset[str]]
    complete: bool


class SiteProbes:
    """The sockets of all places, and the capture in the plant. Must be closed. Raises HostError."""

    def __init__(self, places: Sequence[Place], plant: Path) -> None:
        self._mark = random.getrandbits(64)
        self._sockets: dict[str, dict[str, socket.socket]] = {}
        self._next = 0
        self._receivers: dict[int, set[str]] = {}
        self._entered: dict[int, set[str]] = {}
        self._ready = select.epoll()
        self._by_descriptor: dict[int, tuple[str, socket.socket]] = {}
        self.interfaces: dict[str, dict[str, int]] = {}
        """Of each place: the interfaces by which everybody nearby is addressed, with their indices."""
        try:
            self._capture = namespace.inside(plant, self._open_capture)
            self._port = self._open(places)
            self._by_descriptor[self._capture.fileno()] = ("", self._capture)
            for name, ends in self._sockets.items():
                self._by_descriptor.update({end.fileno(): (name, end) for end in ends.values()})
            for descriptor in self._by_descriptor:
                self._ready.register(descriptor, select.EPOLLIN)
        except OSError as error:
            self.close()
            raise HostError(f"cannot probe the paths between sites: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SiteProbes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._ready.close()
        for pair in self._sockets.values():
            for end in pair.values():
                end.close()
        if capture := getattr(self, "_capture", None):
            capture.close()

    # ---- sending

    def to_address(self, sender: str, address: str) -> Send:
        """Return a packet to an address of another place."""
        end = self._sockets[sender]["IPv6" if ":" in address else "IPv4"]
        return self._send(lambda packet: _sent(end, packet, (address, self._port)))

    def to_nearby(self, sender: str, interface: str, family: str) -> Send:
        """Return a packet to everybody in reach of an interface without a router: to ff02::1, or the limited broadcast
        of IPv4."""
        index, end = self.interfaces[sender][interface], self._sockets[sender][family]
        if family == "IPv6":
            return self._send(lambda packet: _sent(end, packet, (ALL_NODES, self._port, 0, index)))
        by_interface = [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=i8x", index))]
        return self._send(lambda packet: _sent(end, packet, (BROADCAST, self._port), by_interface))

    def _send(self, send: Callable[[bytes], None]) -> Send:
        self._next += 1
        packet = _MESSAGE.pack(self._mark, self._next)
        return Send(self._next, lambda: send(packet))

    def run(self, expected: Sequence[Send], strays: Sequence[Send], *, patience_s: float, settle_s: float) -> Heard:
        """Send ``expected`` as fast as the machine forwards them, then ``strays``, which should arrive nowhere.

        Returns when all ``expected`` have arrived, else ``patience_s`` after the last was sent; and not before the
        ``strays`` had ``settle_s`` to arrive. Each interface that sends a stray takes an entry in the host's table of
        neighbours, so these come last.
        """
        missing: set[int] = set()
        for start in range(0, len(expected), CHUNK):
            for send in expected[start : start + CHUNK]:
                missing.add(send.number)
                send.go()
            quiet_t = time.monotonic() + IDLE_S
            while len(missing) > CHUNK // 2 and time.monotonic() < quiet_t:
                if self._collect():
                    quiet_t = time.monotonic() + IDLE_S
                    missing -= self._receivers.keys()
        for stray in strays:
            stray.go()
        settled_t = time.monotonic() + (settle_s if strays else 0.0)
        until = time.monotonic() + patience_s
        while True:
            self._collect()
            missing -= self._receivers.keys()
            if not missing or time.monotonic() > until:
                break
            time.sleep(0.001)
        time.sleep(max(0.0, settled_t - time.monotonic()))
        while self._collect():
            pass
        lost = struct.unpack("=II", self._capture.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        return Heard(
            {number: frozenset(names) for number, names in self._receivers.items()},
            {number: frozenset(names) for number, names in self._entered.items()},
            complete=not lost,
        )

    # ---- receiving

    def _collect(self) -> bool:
        """Read everything that has arrived; return whether there was anything."""
        ready = self._ready.poll(0)
        for descriptor, _ in ready:
            place, end = self._by_descriptor[descriptor]
            for content, sender in _received(end):
                if end is self._capture:
                    # The filter has checked the mark; the message is at the end of a frame without padding.
                    number = _MESSAGE.unpack(content[-_MESSAGE.size :])[1]
                    self._entered.setdefault(number, set()).add(sender[0])
                elif len(content) == _MESSAGE.size:
                    mark, number = _MESSAGE.unpack(content)
                    if mark == self._mark:
                        self._receivers.setdefault(number, set()).add(place)
        return bool(ready)

    # ---- opening

    def _open(self, places: Sequence[Place]) -> int:
        """Bind two sockets in each place, all to one port that is free in all of them; return it."""
        for port in random.sample(PORTS, PORT_TRIES):
            try:
                for place in places:
                    self._sockets[place.name], self.interfaces[place.name] = namespace.inside(
                        place.path,
                        lambda place=place, port=port: _bound(place, port),  # type: ignore[misc]
                    )
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                for pair in self._sockets.values():
                    for end in pair.values():
                        end.close()
                self._sockets.clear()
        raise HostError("cannot probe the paths between sites: no UDP port is free in all nodes")

    def _open_capture(self) -> socket.socket:
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(ETH_P_ALL))
        try:
            capture.setblocking(False)
            _attach(capture, _filter(self._mark))
            for _ in _received(capture):  # what came before the filter
                pass
            capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
            capture.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)  # begins to count at 0
        except BaseException:
            capture.close()
            raise
        return capture


def _bound(place: Place, port: int) -> tuple[dict[str, socket.socket], dict[str, int]]:
    ends: dict[str, socket.socket] = {}
    try:
        for name, family in (("IPv4", socket.AF_INET), ("IPv6", socket.AF_INET6)):
            end = ends[name] = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES // 16)
            if name == "IPv6":
                end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
                end.bind(("::", port))
            else:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                end.bind(("0.0.0.0", port))
        nearby = {name: index for index, name in socket.if_nameindex() if name != "lo" and name not in place.skipped}
    except BaseException:
        for end in ends.values():
            end.close()
        raise
    return ends, nearby


def _sent(
    end: socket.socket, packet: bytes, to: tuple[object, ...], ancillary: Sequence[tuple[int, int, bytes]] = ()
) -> None:
    """Send a packet; one that the kernel refuses (no route, interface down) did not go around anything."""
    with contextlib.suppress(OSError):
        end.sendmsg([packet], ancillary, 0, to)


def _received(end: socket.socket) -> Iterator[tuple[bytes, Any]]:
    while True:
        try:
            yield end.recvfrom(128)
        except OSError:
            return


# ---- the filter, in classic BPF (Linux, Documentation/networking/filter.rst)

_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30  # absolute
_LOAD_WORD_AT_X, _LOAD_IP_LENGTH = 0x40, 0xB1  # relative to X; X = 4 * (byte & 15)
_JUMP_IF_EQUAL, _JUMP_IF_BITS, _RETURN = 0x15, 0x45, 0x06
_PACKET_TYPE = 0xFFFFF000 + 4
"""SKF_AD_OFF + SKF_AD_PKTTYPE."""
_OUTGOING, _UDP = 4, 17
_ETHERNET, _UDP_HEADER, _IPV6_HEADER = 14, 8, 40
_ACCEPT, _REJECT = 0xFFFF, 0


def _filter(mark: int) -> list[tuple[int, int, int, int]]:
    """Return the program that accepts incoming UDP packets whose payload begins with ``mark``, of both families."""
    high, low = mark >> 32, mark & 0xFFFFFFFF
    v6 = _ETHERNET + _IPV6_HEADER + _UDP_HEADER
    # (code, jump if true, jump if false, operand); jumps count from the next instruction. Instruction 20 rejects.
    reject = 20

    def test(place: int, code: int, value: int, otherwise: int = reject) -> tuple[int, int, int, int]:
        return (code, 0, otherwise - place - 1, value)

    return [
        (_LOAD_WORD, 0, 0, _PACKET_TYPE),
        (_JUMP_IF_EQUAL, reject - 2, 0, _OUTGOING),
        (_LOAD_HALF, 0, 0, 12),
        test(3, _JUMP_IF_EQUAL, 0x0800, otherwise=13),
        (_LOAD_BYTE, 0, 0, _ETHERNET + 9),
        test(5, _JUMP_IF_EQUAL, _UDP),
        (_LOAD_HALF, 0, 0, _ETHERNET + 6),
        (_JUMP_IF_BITS, reject - 8, 0, 0x1FFF),
        (_LOAD_IP_LENGTH, 0, 0, _ETHERNET),
        (_LOAD_WORD_AT_X, 0, 0, _ETHERNET + _UDP_HEADER),
        test(10, _JUMP_IF_EQUAL, high),
        (_LOAD_WORD_AT_X, 0, 0, _ETHERNET + _UDP_HEADER + 4),
        (_JUMP_IF_EQUAL, 21 - 13, reject - 13, low),
        test(13, _JUMP_IF_EQUAL, 0x86DD),
        (_LOAD_BYTE, 0, 0, _ETHERNET + 6),
        test(15, _JUMP_IF_EQUAL, _UDP),
        (_LOAD_WORD, 0, 0, v6),
        test(17, _JUMP_IF_EQUAL, high),
        (_LOAD_WORD, 0, 0, v6 + 4),
        (_JUMP_IF_EQUAL, 21 - 20, 0, low),
        (_RETURN, 0, 0, _REJECT),
        (_RETURN, 0, 0, _ACCEPT),
    ]


def _attach(end: socket.socket, program: Sequence[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(code)
    end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(held)))
