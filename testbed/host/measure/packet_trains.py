"""Send streams of full-sized packets through paths between namespaces, to measure loss, order, duplicates, corruption.

A stream stays below the rate and the queue of its path, so that its losses are random losses and not overflows; the
streams of all paths share one budget of the machine. Packets are sent as super-packets (UDP segmentation offload),
which every path splits into segments. ``rate_trains.py`` has the packet trains that measure a rate.
"""

from __future__ import annotations

import heapq
import socket
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.core.certification.counts import MOST_AT_ONCE
from testbed.core.physics.impairment import WIRE_OVERHEAD_BYTES
from testbed.host.measure.probing import Probe, received, waits

__all__ = ["CAPACITY_BPS", "HEADERS", "MOST_AT_ONCE", "SOL_UDP", "UDP_GRO", "UDP_SEGMENT", "Result", "Want", "stream"]

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
SO_NO_CHECK, SO_RXQ_OVFL = 11, 40
HEADERS: Final = 14 + 20 + 8

CAPACITY_BPS: Final = 2e9
"""Total rate of all streams, bounded for the machine's sake: about 160 000 packets per second."""
SHARE_OF_RATE: Final = 0.5
SHARE_OF_QUEUE: Final = 0.25
BURST_S: Final = 0.002
"""Maximum transmission time of one super-packet."""

_NUMBER = struct.Struct("=II")
"""The packet's number twice: if a bit of it was flipped, the two differ."""


@dataclass(frozen=True)
class Want:
    """A stream of ``count`` full-sized packets; ``unchecked``: without UDP checksums, so that flipped bits arrive."""

    probe: Probe
    count: int
    mtu: int
    rate_bps: float = 0.0
    queue_bytes: int = 0
    unchecked: bool = False

    @property
    def payload(self) -> int:
        return self.mtu - 28

    @property
    def frame_bits(self) -> int:
        return 8 * (self.payload + HEADERS + WIRE_OVERHEAD_BYTES)

    @property
    def frame_s(self) -> float:
        """Transmission time of one packet; 0 without a rate."""
        return self.frame_bits / self.rate_bps if self.rate_bps else 0.0

    @property
    def at_once(self) -> int:
        """Packets per send, few enough not to overflow the queue."""
        most = MOST_AT_ONCE if not self.frame_s else int(BURST_S / self.frame_s)
        if self.queue_bytes:
            most = min(most, int(SHARE_OF_QUEUE * 8 * self.queue_bytes / self.frame_bits))
        return max(1, min(MOST_AT_ONCE, most, 65000 // self.payload))

    @property
    def takes_s(self) -> float:
        """Duration of the stream at its share of the rate."""
        return self.count * self.frame_s / SHARE_OF_RATE


@dataclass
class Result:
    """Outcome of a stream.

    Attributes:
        sent: number of packets sent.
        arrived: packet numbers in order of arrival, including duplicates.
        sent_s: time of sending of each packet (monotonic).
        wrong: packets that arrived with changed content.
        missed: packets dropped because the receiver's buffer was full.
    """

    sent: int = 0
    arrived: array[int] = field(default_factory=lambda: array("L"))
    sent_s: array[float] = field(default_factory=lambda: array("d"))
    wrong: int = 0
    missed: int = 0


def stream(wants: Sequence[Want], patience_s: float, tell: Callable[[float], None] | None = None) -> list[Result]:
    """Send all streams concurrently, each evenly paced, and collect until all arrived or ``patience_s`` has passed.

    ``tell`` is called with the share sent (0..1), a few times per second.
    """
    results = [Result() for _ in wants]
    bodies = [bytes(index * 7 & 0xFF for index in range(want.payload - _NUMBER.size)) for want in wants]
    for want in wants:
        received(want.probe.receiver)
        _options(want, on=True)
    try:
        _send_all(wants, results, bodies, tell)
        for _ in waits(patience_s):
            _take_all(wants, results, bodies)
            if all(len(result.arrived) >= result.sent for result in results):
                break
    finally:
        for want in wants:
            _options(want, on=False)
    return results


def _options(want: Want, *, on: bool) -> None:
    receiver = want.probe.receiver
    receiver.setsockopt(SOL_UDP, UDP_GRO, int(on))
    receiver.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, int(on))
    # The kernel does not segment packets without checksums, so each of those is sent individually.
    want.probe.sender.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, int(on and want.unchecked))
    want.probe.sender.setsockopt(SOL_UDP, UDP_SEGMENT, want.payload if on and not want.unchecked else 0)


def _send_all(
    wants: Sequence[Want],
    results: Sequence[Result],
    bodies: Sequence[bytes],
    tell: Callable[[float], None] | None,
) -> None:
    total = max(1, sum(want.count for want in wants))
    start = time.monotonic()
    due = [(start, index) for index in range(len(wants))]
    free, reported_at = start, start
    while due:
        at, index = heapq.heappop(due)
        want, result = wants[index], results[index]
        while (left := max(at, free) - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
            if left > 0.0002:
                _take_all(wants, results, bodies)
        number = min(want.at_once, want.count - result.sent)
        now = time.monotonic()
        if number > 0 and not _send(want, result.sent, number, bodies[index]):
            continue  # refused: the path has no carrier
        result.sent_s.extend([now] * number)
        result.sent += number
        bits = number * want.frame_bits
        free = max(free, now - 0.005) + bits / CAPACITY_BPS
        if result.sent < want.count:
            heapq.heappush(due, (now + number * want.frame_s / SHARE_OF_RATE, index))
        if now - reported_at > 0.25:
            reported_at = now
            _take_all(wants, results, bodies)
            if tell:
                tell(sum(result.sent for result in results) / total)


def _send(want: Want, first: int, number: int, body: bytes) -> bool:
    packets = [_NUMBER.pack(count, count) + body for count in range(first, first + number)]
    try:
        for content in packets if want.unchecked else [b"".join(packets)]:
            want.probe.sender.sendto(content, want.probe.to)
    except OSError:
        return False
    return True


def _take_all(wants: Sequence[Want], results: Sequence[Result], bodies: Sequence[bytes]) -> None:
    for want, result, body in zip(wants, results, bodies, strict=True):
        _take(want, result, body)


def _take(want: Want, result: Result, body: bytes) -> None:
    while True:
        try:
            data, ancillary, _, _ = want.probe.receiver.recvmsg(65536, 128)
        except OSError:
            return
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                result.missed = struct.unpack("=I", content[:4])[0]
        for place in range(0, len(data), want.payload):
            if len(data) - place < want.payload:
                break  # a small packet of an earlier measurement
            one, two = _NUMBER.unpack_from(data, place)
            whole = not want.unchecked or data[place + _NUMBER.size : place + want.payload] == body
            if one == two and one < want.count:
                result.arrived.append(one)
                result.wrong += not whole
            elif want.unchecked:
                # One copy of the number was corrupted: take the one closer to the previous packet's.
                last = result.arrived[-1] if result.arrived else 0
                result.arrived.append(one if abs(one - last) <= abs(two - last) else two)
                result.wrong += 1
