"""Round trips to several hosts in one interleaved run, to the nanosecond: `python probe.py COUNT GAP_S ADDRESS…`.

ping(8) prints three digits, a resolution of 100 us at 100 ms, and supports one target. This program sends an ICMP echo
to each address in turn, after random pauses that avoid synchronisation. It takes the arrival time from the kernel
(SO_TIMESTAMPNS), which excludes Python and scheduling of the prober; the other host's kernel sends the reply. Uses the
standard library only, so it runs in any namespace. Prints ``{address: [seconds, …]}`` without lost probes. Needs root.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
PATIENCE_S = 1.0
HEADER = struct.Struct("!BBHHHI")  # ICMP type, code, checksum, identifier, sequence; then the probe's number
CONTENT = bytes(range(40))


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def request(identifier: int, number: int) -> bytes:
    """Return an echo request; ``number`` counts all requests sent."""
    words = (8, 0, 0, identifier, number & 0xFFFF, number)
    total = checksum(HEADER.pack(*words) + CONTENT)
    return HEADER.pack(8, 0, total, *words[3:]) + CONTENT


def round_trips(targets: Sequence[str], count: int, gap_s: float, seed: int = 0) -> dict[str, list[float]]:
    """Measure ``count`` round trips to each target, in seconds; ``gap_s`` is the mean pause between probes."""
    chance = random.Random(seed)
    found: dict[str, list[float]] = {target: [] for target in targets}
    sent: dict[int, tuple[str, int]] = {}
    identifier = os.getpid() & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        raw.setblocking(False)

        def gather(until: float) -> None:
            while (left := until - time.monotonic()) > 0:
                if select.select([raw], [], [], left)[0]:
                    take()

        def take() -> None:
            packet, ancillary, _, _ = raw.recvmsg(512, 128)
            kind, _, _, whose, _, number = HEADER.unpack_from(packet, (packet[0] & 15) * 4)
            if kind == 0 and whose == identifier and number in sent:
                target, left_ns = sent.pop(number)
                seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
                found[target].append((seconds * 1_000_000_000 + nanoseconds - left_ns) / 1e9)

        number = 0
        for _ in range(count):
            for target in chance.sample(targets, len(targets)):
                packet = request(identifier, number)
                sent[number] = (target, time.clock_gettime_ns(time.CLOCK_REALTIME))
                raw.sendto(packet, (target, 0))
                number += 1
                gather(time.monotonic() + chance.uniform(0.5, 1.5) * gap_s)
        gather(time.monotonic() + PATIENCE_S)
    return found


if __name__ == "__main__":
    json.dump(round_trips(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])), sys.stdout)
