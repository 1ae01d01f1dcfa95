"""Compare what two nodes see with the fiber's delay, by means that share no code with the testbed.

    python benchmarks/node_rtt.py LAB DELAY_US [--count 1000]

LAB is up with sites ``east`` and ``west``; DELAY_US is the one-way delay of the fiber that its traffic takes. Echoes
(ICMP) from ``east-0`` to ``west-0`` and to ``east-1`` alternate, so both see the same machine; UDP packets both ways
show whether any packet is early. Prints one JSON object, times in microseconds. Needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import statistics
import struct
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NANOSECOND_STAMPS = 35  # SO_TIMESTAMPNS, asm-generic/socket.h
NODES = {"east-0": "10.1.1.1", "east-1": "10.1.1.2", "west-0": "10.2.1.1"}


def in_namespace(name: str, kind: int, protocol: int = 0) -> socket.socket:
    """Return a socket made in a network namespace; the process returns to its own."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if LIBC.setns(there, 0x40000000):
            raise OSError(ctypes.get_errno(), f"setns {name}")
        made = socket.socket(socket.AF_INET, kind, protocol)
        LIBC.setns(home, 0x40000000)
    finally:
        os.close(there)
        os.close(home)
    made.setsockopt(socket.SOL_SOCKET, NANOSECOND_STAMPS, 1)
    return made


def stamped(end: socket.socket, patience_s: float) -> tuple[bytes, int] | None:
    """Return the next packet and the kernel's time of its arrival in ns; None after ``patience_s``."""
    end.settimeout(patience_s)
    try:
        data, ancillary, _, _ = end.recvmsg(2048, 128)
    except TimeoutError:
        return None
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == NANOSECOND_STAMPS:
            seconds, nanoseconds = struct.unpack("=qq", content[:16])
            return data, seconds * 10**9 + nanoseconds
    return None


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo_us(raw: socket.socket, to: str, number: int) -> float | None:
    """Return the RTT of one echo to ``to`` in microseconds."""
    header = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, number & 0xFFFF) + bytes(48)
    packet = header[:2] + struct.pack("!H", checksum(header)) + header[4:]
    began = time.time_ns()
    raw.sendto(packet, (to, 0))
    while (came := stamped(raw, 0.2)) is not None:
        data, at = came
        reply = data[4 * (data[0] & 15) :]
        if reply[0] == 0 and reply[4:8] == packet[4:8]:
            return (at - began) / 1e3
    return None


def one_way_us(sender: socket.socket, receiver: socket.socket, number: int) -> float | None:
    began = time.time_ns()
    sender.sendto(struct.pack("=qq", number, began), receiver.getsockname())
    while (came := stamped(receiver, 0.2)) is not None:
        if struct.unpack("=qq", came[0])[0] == number:
            return (came[1] - began) / 1e3
    return None


def idle_share(seconds: float) -> float:
    """Return the share of the cores' time that was idle."""

    def read() -> tuple[int, int]:
        fields = [int(it) for it in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)

    idle, total = read()
    time.sleep(seconds)
    after, all_after = read()
    return (after - idle) / max(1, all_after - total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lab")
    parser.add_argument("delay_us", type=float)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=0.0, help="wait up to a minute for this share of idle cores")
    parser.add_argument("--pause", type=float, default=1.0, help="milliseconds between two packets")
    parser.add_argument("--awake", action="store_true", help="keep idle cores polling (PM QoS, cpu_dma_latency)")
    given = parser.parse_args()
    awake = os.open("/dev/cpu_dma_latency", os.O_WRONLY) if given.awake else None
    if awake is not None:
        os.write(awake, struct.pack("=i", 0))
    for _ in range(60):
        if (idle := idle_share(1.0)) >= given.idle:
            break
    raw = in_namespace(f"tb.{given.lab}.east-0", socket.SOCK_RAW, socket.IPPROTO_ICMP)
    ends = {}
    for node in ("east-0", "west-0"):
        ends[node] = in_namespace(f"tb.{given.lab}.{node}", socket.SOCK_DGRAM)
        ends[node].bind((NODES[node], 0))
    found: dict[str, list[float]] = {"across": [], "inside": [], "to west": [], "to east": []}
    for number in range(given.count):
        for name, value in (
            ("across", echo_us(raw, NODES["west-0"], 2 * number)),
            ("inside", echo_us(raw, NODES["east-1"], 2 * number + 1)),
            ("to west", one_way_us(ends["east-0"], ends["west-0"], number)),
            ("to east", one_way_us(ends["west-0"], ends["east-0"], number)),
        ):
            if value is not None and number >= 10:  # the first ones resolve neighbours
                found[name].append(value)
            time.sleep(given.pause / 1e3)
    medians = {name: statistics.median(values) for name, values in found.items()}
    least = {name: min(values) for name, values in found.items()}
    print(
        json.dumps(
            {
                "idle_before": round(idle, 3),
                "median": {name: round(it, 1) for name, it in medians.items()},
                "least": {name: round(it, 1) for name, it in least.items()},
                "error_median": round(medians["across"] - medians["inside"] - 2 * given.delay_us, 1),
                "error_least": round(least["across"] - least["inside"] - 2 * given.delay_us, 1),
                "early": {name: round(given.delay_us - least[name], 1) for name in ("to west", "to east")},
            }
        )
    )


if __name__ == "__main__":
    main()
