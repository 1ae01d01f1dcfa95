"""Probing paths between network namespaces: one-way delay and rate, by UDP with kernel receive timestamps.

Both ends are on one host and read one clock, so a direction is measured by itself: a round trip would hide swapped
directions.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import HostError
from testbed.host import namespace

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32
UDP_SEGMENT = 103
WIRE_OVERHEAD = 24
"""Preamble, frame check sequence and inter-frame gap of Ethernet, in bytes (IEEE 802.3)."""
CONNECT_S = 2.0
HEADERS = 14 + 20 + 8


@dataclass(frozen=True)
class ProbePath:
    """One direction to be probed: from an address in one namespace to an address in another."""

    name: str
    sender: Path
    source: str
    receiver: Path
    destination: str


class Probe:
    """A pair of UDP sockets over one path. Close it."""

    def __init__(self, path: ProbePath) -> None:
        self.path = path
        try:
            self.receiver = namespace.inside(path.receiver, lambda: _socket(path.destination))
            self.sender = namespace.inside(path.sender, lambda: _socket(path.source))
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

    def send(self, number: int) -> bool:
        """One small probe; False if the path refused it (no carrier)."""
        try:
            self.sender.sendto(struct.pack("=Qq", number, time.time_ns()), self.to)
        except OSError:
            return False
        return True

    def receive(self) -> list[tuple[int, float]]:
        """(number, one-way delay in seconds) of all probes that lie there."""
        found = []
        for data, arrived_ns in self._drain():
            if len(data) == 16:
                number, sent_ns = struct.unpack("=Qq", data)
                found.append((number, (arrived_ns - sent_ns) * 1e-9))
        return found

    def _drain(self) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        while True:
            try:
                data, ancillary, _, _ = self.receiver.recvmsg(2048, 64)
            except OSError:
                return found
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("=qq", content[:16])
                    found.append((data, seconds * 1_000_000_000 + nanoseconds))

    def rate(self, mtu: int, wire_bytes: int, rate_bps: float, delay_s: float) -> float | None:
        """Rate of a train of full frames as it leaves the path, in bit/s on the wire; None if too little arrived.

        The train enters far faster than it leaves (UDP segmentation offload); its dispersion at the far end is
        the rate of the narrowest place (Dovrolis et al., "What do packet dispersion techniques measure?",
        INFOCOM 2001, section III: a long train).
        """
        payload = mtu - 28
        frame = payload + HEADERS + WIRE_OVERHEAD
        count = max(32, wire_bytes // frame)
        per_send = min(40, 65000 // payload)
        self.sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, payload)
        try:
            sent = 0
            while sent < count:
                number = min(per_send, count - sent)
                self.sender.sendto(bytes(payload) * number, self.to)
                sent += number
        except OSError:
            return None
        finally:
            self.sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        until = time.monotonic() + delay_s + 3 * count * frame * 8 / rate_bps + 0.2
        arrived: dict[int, int] = defaultdict(int)
        got = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.receiver, selectors.EVENT_READ)
            while got < count and time.monotonic() < until:
                selector.select(max(0.0, until - time.monotonic()))
                for data, at_ns in self._drain():
                    if len(data) == payload:
                        arrived[at_ns] += 1
                        got += 1
        times = sorted(arrived)
        if len(times) < 3:
            return None
        # What arrives in one instant left as one piece, stamped when its last bit was out. The head of the train is
        # left out: it alone shows how long whoever forwards it took to wake up.
        head = len(times) // 10
        passed = sum(arrived[at] for at in times[head + 1 :])
        return passed * frame * 8 / ((times[-1] - times[head]) * 1e-9)


def _socket(address: str) -> socket.socket:
    found = socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    )
    found.bind((address, 0))
    return found


def one_way(probes: Sequence[Probe], count: int, interval_s: float, patience_s: float) -> dict[str, list[float]]:
    """One-way delays in seconds of ``count`` probes on each path, all paths interleaved, by path name.

    Sends are spread over the interval: two probes never share an instant, so paths do not disturb one another.
    """
    samples: dict[str, list[float]] = {probe.path.name: [] for probe in probes}
    start = time.monotonic()
    slot = interval_s / max(1, len(probes))
    for number in range(count):
        for place, probe in enumerate(probes):
            due = start + number * interval_s + place * slot
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            probe.send(number)
        for probe in probes:
            samples[probe.path.name] += [delay for _, delay in probe.receive()]
    until = time.monotonic() + patience_s
    while time.monotonic() < until and any(len(samples[probe.path.name]) < count for probe in probes):
        time.sleep(0.002)
        for probe in probes:
            samples[probe.path.name] += [delay for _, delay in probe.receive()]
    return samples


def congestion_control(client: Path, server: Path, address: str) -> str:
    """TCP congestion control of a connection from one namespace to ``address`` in another. Raises OSError."""

    def listen() -> socket.socket:
        found = socket.create_server((address, 0))
        found.settimeout(CONNECT_S)
        return found

    with namespace.inside(server, listen) as listener:
        port = listener.getsockname()[1]
        with namespace.inside(client, lambda: socket.create_connection((address, port), CONNECT_S)) as connection:
            raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return raw.partition(b"\0")[0].decode()
