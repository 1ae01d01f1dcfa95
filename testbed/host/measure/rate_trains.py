"""Send packet trains over many paths side by side, and record when the kernel received them at the far gateway.

A train enters the queue of a direction far faster than it leaves it (UDP segmentation offload), so the queue is never
empty until the train is through. Trains of several directions overlap within one budget of the machine, and never two
in one direction. ``core/certification/dispersion.py`` makes a rate of the arrivals.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.core.physics.impairment import WIRE_OVERHEAD_BYTES
from testbed.host.measure.packet_trains import CAPACITY_BPS, HEADERS, MOST_AT_ONCE, SOL_UDP, UDP_GRO, UDP_SEGMENT
from testbed.host.measure.probing import MARK_BITS, SO_TIMESTAMPNS, Probe, mark, received

__all__ = ["SHORTEST", "Passage", "Train", "send_trains"]

SHORTEST: Final = 32
"""Minimum number of packets in a train."""
_MARK: Final = struct.Struct("=Q")
PAUSE_S: Final = 0.001
GRACE_S: Final = 0.2
"""How long the first packets of a train may be overdue; those that follow may be overdue by QUIET_S."""
QUIET_S: Final = 0.02


@dataclass(frozen=True)
class Train:
    """A train of ``count`` full-sized packets for a path with these values.

    ``longest_s`` is the longest delay of a packet, without queueing. A train ``alone`` shares the machine with no
    other: the emulator forwards its packets one by one. Packets are numbered from ``first`` on, above the numbers of
    the probe's small packets.
    """

    probe: Probe
    mtu: int
    count: int
    rate_bps: float
    longest_s: float = 0.0
    overhead_bytes: int = WIRE_OVERHEAD_BYTES
    alone: bool = False
    first: int = 1 << 23

    @property
    def payload(self) -> int:
        return self.mtu - 28

    @property
    def frame_bits(self) -> int:
        return 8 * (self.payload + HEADERS + self.overhead_bytes)

    @property
    def lasts_s(self) -> float:
        """Transmission time of the whole train."""
        return self.count * self.frame_bits / self.rate_bps

    @property
    def load_bps(self) -> float:
        return CAPACITY_BPS if self.alone else min(self.rate_bps, CAPACITY_BPS)


@dataclass
class Passage:
    """The arrival of a train: ``arrivals`` are (seconds since ``epoch_ns`` by the kernel's clock, bits on the wire,
    mark of the first packet).

    ``handed_bps`` is the rate at which the sender handed the train over. ``queued_bytes`` is what ``queued`` of
    :func:`send_trains` returned after the last packet was handed over.
    """

    epoch_ns: int = field(default_factory=time.time_ns)
    arrivals: list[tuple[float, float, int]] = field(default_factory=list)
    packets: int = 0
    handed_bps: float = 0.0
    queued_bytes: float | None = None
    due: float = 0.0
    heard: float = 0.0


def send_trains(trains: Sequence[Train], queued: Callable[[int], float | None] | None = None) -> list[Passage]:
    """Send all trains, as many at once as the machine's budget allows, and return what arrived of each.

    Args:
        trains: several may be of one probe; they follow each other.
        queued: called with the number of a train directly after its last packet was handed over.
    """
    passages = [Passage() for _ in trains]
    waiting = list(range(len(trains)))
    active: list[int] = []
    for train in trains:
        received(train.probe.receiver)
        train.probe.receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
    try:
        while waiting or active:
            now = time.monotonic()
            busy = {id(trains[index].probe) for index in active}
            room = CAPACITY_BPS - sum(trains[index].load_bps for index in active if passages[index].due > now)
            fitting = (
                index for index in waiting if id(trains[index].probe) not in busy and trains[index].load_bps <= room
            )
            if (number := next(fitting, None)) is not None:
                waiting.remove(number)
                _take(trains[number], Passage())  # stragglers of an earlier train
                if (took_s := _send(trains[number])) is not None:
                    passage = passages[number]
                    passage.handed_bps = trains[number].count * trains[number].frame_bits / max(took_s, 1e-9)
                    if queued is not None:
                        passage.queued_bytes = queued(number)
                    passage.heard = time.monotonic()
                    passage.due = passage.heard + trains[number].longest_s + trains[number].lasts_s
                    active.append(number)
                continue
            time.sleep(PAUSE_S)
            for index in active:
                _take(trains[index], passages[index])
            active = [index for index in active if not _is_over(trains[index], passages[index])]
    finally:
        for train in trains:
            train.probe.receiver.setsockopt(SOL_UDP, UDP_GRO, 0)
    return passages


def _send(train: Train) -> float | None:
    """Hand the train over; return how long that took in seconds, or None if the path refuses it (no carrier)."""
    sender, to = train.probe.sender, train.probe.to
    at_once = min(MOST_AT_ONCE, 65000 // train.payload)
    batches = []
    for begin in range(0, train.count, at_once):
        batch = bytearray(train.payload * min(at_once, train.count - begin))
        for place in range(len(batch) // train.payload):
            packet = mark(train.probe.identity, train.first + begin + place, nonce=True)
            _MARK.pack_into(batch, place * train.payload, packet)
        batches.append(batch)
    sender.setsockopt(SOL_UDP, UDP_SEGMENT, train.payload)
    began = time.monotonic()
    try:
        for batch in batches:
            sender.sendto(batch, to)
    except OSError:
        return None
    finally:
        sender.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    return time.monotonic() - began


def _take(train: Train, passage: Passage) -> None:
    while True:
        try:
            data, ancillary, _, _ = train.probe.receiver.recvmsg(65536, 128)
        except OSError:
            return
        packets = len(data) // train.payload  # none: a small packet of an earlier measurement
        for level, kind, content in ancillary:
            if packets and level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("=qq", content[:16])
                at_s = (seconds * 1_000_000_000 + nanoseconds - passage.epoch_ns) * 1e-9
                first = _MARK.unpack_from(data)[0] & ((1 << MARK_BITS) - 1)
                passage.arrivals.append((at_s, float(packets * train.frame_bits), first))
                passage.packets += packets
                passage.heard = time.monotonic()


def _is_over(train: Train, passage: Passage) -> bool:
    if passage.packets >= train.count:
        return True
    now = time.monotonic()
    late_s = now - max(passage.due, passage.heard + train.longest_s)
    # A lower rate than expected goes on arriving; what was lost never does.
    return late_s > (max(QUIET_S, 20 * train.frame_bits / train.rate_bps) if passage.packets else GRACE_S)
