"""Probe paths between network namespaces with small packets: one-way delay by UDP, round-trip time by ICMP echo.

Both ends are on one host and read one clock, so each direction is measured by itself; a round trip would hide swapped
directions. The kernel timestamps arrivals and answers echoes, so the measured times include no wake-up of a process.
``packet_trains.py`` sends full-sized packets.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testbed.errors import HostError
from testbed.host.linux import namespace

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32
SOL_RAW, ICMP_FILTER = 255, 1
ECHO_REQUEST, ECHO_REPLY = 8, 0
CONNECT_S = 2.0
TICK_S = 0.002

NONCE = secrets.randbelow((1 << 24) - 1) + 1
"""Begin of the marks of this process's packets (``testbed/fiberd/record.h``); the emulator records only these."""
MARK_BITS = 40
_NUMBER_BITS = 24

_SMALL = struct.Struct("=Qq6x")
"""Mark and time of sending in ns: gives a frame of 64 bytes with its check sequence, Ethernet's minimum."""
_ECHO_HEAD = struct.Struct("!BBHHH")
"""Type, code, checksum, identifier, sequence number (RFC 792)."""
_ECHO_BODY = struct.Struct("=Qq")
"""Mark and time of sending in ns."""

_IDENTITIES = itertools.count(os.getpid())
"""One per prober: identifies its marks, and its echoes among others between the same addresses (RFC 792)."""


@dataclass(frozen=True)
class ProbePath:
    """One direction to probe: from an address in one namespace to an address in another.

    ``device`` is the sender's interface; without it, packets for a link that is down may take a bypass.
    """

    name: str
    sender: Path
    source: str
    receiver: Path
    destination: str
    device: str = ""


@dataclass(frozen=True)
class Arrival:
    """A received probe: its number, and its delay in seconds."""

    number: int
    delay_s: float


@dataclass(frozen=True)
class Departure:
    """A probe that was sent: ns of the Unix clock before and after the call that sent it."""

    before_ns: int
    after_ns: int


class Prober(Protocol):
    """Sends numbered packets over a path and collects their arrivals.

    ``departures`` has the packets sent so far, by number; numbers are not reused.
    """

    path: ProbePath
    identity: int
    departures: dict[int, Departure]

    def send(self) -> bool:
        """Send one packet; return False if the path refused it (no carrier)."""

    def receive(self) -> list[Arrival]:
        """Return what has arrived so far, in the order of arrival."""

    def close(self) -> None: ...


class Probe:
    """A pair of UDP sockets over one path. Must be closed."""

    def __init__(self, path: ProbePath) -> None:
        self.path = path
        self.identity = next(_IDENTITIES) & 0xFFFF
        self.departures: dict[int, Departure] = {}
        try:
            self.receiver = namespace.inside(path.receiver, lambda: _udp(path.destination))
            self.sender = namespace.inside(path.sender, lambda: _udp(path.source, path.device))
        except OSError as error:
            raise HostError(f"cannot probe {path.name}: {error.strerror}") from error
        for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
            for end in (self.receiver, self.sender):
                end.setsockopt(socket.SOL_SOCKET, option, 16 << 20)
        self.receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.receiver.setblocking(False)
        self.to = self.receiver.getsockname()

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()

    def send(self) -> bool:
        number = len(self.departures)
        before_ns = time.time_ns()
        try:
            self.sender.sendto(_SMALL.pack(mark(self.identity, number, nonce=True), before_ns), self.to)
        except OSError:
            return False
        self.departures[number] = Departure(before_ns, time.time_ns())
        return True

    def receive(self) -> list[Arrival]:
        arrivals = []
        for data, arrived_ns in received(self.receiver):
            if len(data) == _SMALL.size:
                packet, sent_ns = _SMALL.unpack(data)
                if packet >> _NUMBER_BITS == mark(self.identity, 0, nonce=True) >> _NUMBER_BITS:
                    arrivals.append(Arrival(number_of(packet), (arrived_ns - sent_ns) * 1e-9))
        return arrivals


class Echo:
    """ICMP echoes (RFC 792) from the path's sender, answered by the kernel at its destination. Must be closed.

    Raises HostError if raw sockets are not permitted.
    """

    def __init__(self, path: ProbePath) -> None:
        self.path = path
        self.identity = next(_IDENTITIES) & 0xFFFF
        self.departures: dict[int, Departure] = {}
        try:
            self._socket = namespace.inside(path.sender, lambda: _raw(path))
        except OSError as error:
            raise HostError(f"cannot send echoes over {path.name}: {error.strerror}") from error

    def close(self) -> None:
        self._socket.close()

    def send(self) -> bool:
        number = len(self.departures)
        before_ns = time.time_ns()
        body = _ECHO_BODY.pack(mark(self.identity, number, nonce=True), before_ns)
        fields = (self.identity, number & 0xFFFF)
        checksum = _checksum(_ECHO_HEAD.pack(ECHO_REQUEST, 0, 0, *fields) + body)
        try:
            self._socket.send(_ECHO_HEAD.pack(ECHO_REQUEST, 0, checksum, *fields) + body)
        except OSError:
            return False
        self.departures[number] = Departure(before_ns, time.time_ns())
        return True

    def receive(self) -> list[Arrival]:
        arrivals = []
        for packet, arrived_ns in received(self._socket):
            data = packet[4 * (packet[0] & 15) :]  # a raw socket has the IP header before it
            if len(data) == _ECHO_HEAD.size + _ECHO_BODY.size:
                kind, _, _, identifier, _ = _ECHO_HEAD.unpack_from(data)
                packet, sent_ns = _ECHO_BODY.unpack_from(data, _ECHO_HEAD.size)
                if (kind, identifier) == (ECHO_REPLY, self.identity):
                    arrivals.append(Arrival(number_of(packet), (arrived_ns - sent_ns) * 1e-9))
        return arrivals


def mark(identity: int, number: int, nonce: bool = False) -> int:
    """Return the mark of a prober's packet, as the emulator records it; with ``nonce`` as the packet contains it."""
    return (NONCE << MARK_BITS if nonce else 0) | identity << _NUMBER_BITS | number


def number_of(packet_mark: int) -> int:
    """Return the number of the packet with this mark."""
    return packet_mark & ((1 << _NUMBER_BITS) - 1)


def received(end: socket.socket) -> list[tuple[bytes, int]]:
    """Return everything received by a non-blocking socket: (content, the kernel's time of arrival in ns)."""
    datagrams: list[tuple[bytes, int]] = []
    while True:
        try:
            data, ancillary, _, _ = end.recvmsg(2048, 64)
        except OSError:
            return datagrams
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("=qq", content[:16])
                datagrams.append((data, seconds * 1_000_000_000 + nanoseconds))


def _udp(address: str, device: str = "") -> socket.socket:
    udp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    return _bound(udp, address, device)


def _raw(path: ProbePath) -> socket.socket:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP)
    _bound(raw, path.source, path.device)
    raw.setsockopt(SOL_RAW, ICMP_FILTER, struct.pack("=I", ~(1 << ECHO_REPLY) & 0xFFFFFFFF))
    raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    raw.connect((path.destination, 0))  # filters out answers of other hosts
    raw.setblocking(False)
    return raw


def _bound(end: socket.socket, address: str, device: str) -> socket.socket:
    try:
        if device:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        end.bind((address, 0))
    except OSError:
        end.close()
        raise
    return end


def _checksum(data: bytes) -> int:
    """Return the internet checksum (RFC 1071); ``data`` must have an even length."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def rounds(probers: Sequence[Prober], count: int, interval_s: float, patience_s: float) -> dict[str, list[Arrival]]:
    """Send ``count`` packets by each prober, interleaved; return the arrivals by path name, in order of arrival.

    Sends are spread over the interval so that no two coincide, and paths do not disturb each other.
    """
    first = {prober.path.name: len(prober.departures) for prober in probers}
    arrivals: dict[str, list[Arrival]] = {prober.path.name: [] for prober in probers}
    start = time.monotonic()
    slot = interval_s / max(1, len(probers))
    for turn in range(count):
        for place, prober in enumerate(probers):
            due = start + turn * interval_s + place * slot
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            prober.send()
        _collect(probers, first, arrivals)
    for _ in waits(patience_s):
        _collect(probers, first, arrivals)
        if all(len(arrivals[prober.path.name]) >= count for prober in probers):
            break
    return arrivals


def waits(patience_s: float) -> Iterator[None]:
    """Yield after each :data:`TICK_S` of ``patience_s`` seconds.

    Ticks are counted, not the time: a stall of this machine, in which nothing arrives, must not use up the patience.
    """
    for _ in range(math.ceil(patience_s / TICK_S)):
        time.sleep(TICK_S)
        yield


def _collect(probers: Sequence[Prober], first: Mapping[str, int], arrivals: dict[str, list[Arrival]]) -> None:
    """Add the packets that have arrived; those of earlier rounds are too late to count."""
    for prober in probers:
        name = prober.path.name
        arrivals[name] += [arrival for arrival in prober.receive() if arrival.number >= first[name]]


def congestion_control(client: Path, server: Path, address: str) -> str:
    """Return the TCP congestion control of a connection to ``address`` in another namespace. Raises OSError."""

    def listen() -> socket.socket:
        listener = socket.create_server((address, 0))
        listener.settimeout(CONNECT_S)
        return listener

    with namespace.inside(server, listen) as listener:
        port = listener.getsockname()[1]
        with namespace.inside(client, lambda: socket.create_connection((address, port), CONNECT_S)) as connection:
            raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return raw.partition(b"\0")[0].decode()
