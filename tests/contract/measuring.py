"""Oracles of emulator tests: numbered, timed datagrams through a fiber, and intervals of random impairments."""

from __future__ import annotations

import itertools
import math
import os
import random
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import host_stalls
from netns.fiberd_lab import Lab

from testbed.host.emulators.emulator import Emulator

Start = Callable[..., Emulator]
"""``start(lab, there, back)``: an emulator over the link of a lab."""

SO_RCVBUFFORCE, SO_NO_CHECK, SO_TIMESTAMPNS, SOL_UDP, UDP_SEGMENT = 33, 11, 35, 17, 103
HEADERS_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP
NUMBER = struct.Struct("!I")
QUIET_S = 2.0 if os.environ.get("TESTBED_NETEM_VM") == "qemu" else 0.5
"""Time without an arrival after which no more are expected; longer under QEMU, which stalls."""
Z = statistics.NormalDist().inv_cdf(1 - 0.5e-6)  # a two-sided interval that fails once in a million


@dataclass(frozen=True)
class Arrival:
    """A received datagram: number, one-way delay, wall-clock time of arrival, and flipped bits."""

    number: int
    delay_s: float
    at_s: float
    wrong_bits: tuple[int, ...]


def datagram(number: int, size: int) -> bytes:
    """Return a datagram: its number, then bytes that differ in every datagram."""
    return NUMBER.pack(number) + random.Random(number).randbytes(size - NUMBER.size)


def probe(
    lab: Lab,
    count: int,
    *,
    size: int = 64,
    at_once: int = 1,
    pause_s: float = 0.0005,
    backwards: bool = False,
    unchecked: bool = False,
) -> list[Arrival]:
    """Send ``count`` datagrams of ``size`` bytes from a to b, ``at_once`` between pauses; return the arrivals in order,
    until none arrives for :data:`QUIET_S`.

    ``unchecked`` sends them without a UDP checksum, so that flipped bits can be seen.
    """
    source, target, address = (lab.b, lab.a, "10.77.0.1") if backwards else (lab.a, lab.b, "10.77.0.2")
    there = lab.socket(target, socket.AF_INET, socket.SOCK_DGRAM)
    here = lab.socket(source, socket.AF_INET, socket.SOCK_DGRAM)
    with there, here:
        there.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        there.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        there.bind((address, 0))
        here.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, int(unchecked))
        here.connect(there.getsockname())
        datagrams = [datagram(number, size) for number in range(count)]
        sent_ns = []
        for number, data in enumerate(datagrams):
            sent_ns.append(time.time_ns())
            here.send(data)
            if (number + 1) % at_once == 0:
                time.sleep(pause_s)
        there.settimeout(QUIET_S)
        arrived = []
        while received := _receive(there):
            data, arrived_ns = received
            number, wrong = _recognized(data, datagrams)
            arrived.append(Arrival(number, (arrived_ns - sent_ns[number]) / 1e9, arrived_ns / 1e9, wrong))
    return arrived


def undelayed(arrived: Sequence[Arrival]) -> list[Arrival]:
    """Return the arrivals that the host did not delay: it stalled neither when they were sent nor when they arrived."""
    wall_s = time.time() - time.monotonic()
    came = [arrival.at_s - wall_s for arrival in arrived]
    sent = [at_s - arrival.delay_s for at_s, arrival in zip(came, arrived, strict=True)]
    on_time = host_stalls.undelayed([(at_s, at_s) for at_s in (*sent, *came)])
    both = zip(arrived, on_time[: len(arrived)], on_time[len(arrived) :], strict=True)
    return [arrival for arrival, when_sent, when_it_came in both if when_sent and when_it_came]


def _receive(there: socket.socket) -> tuple[bytes, int] | None:
    """Return a datagram and its kernel timestamp in nanoseconds; None after the socket's timeout."""
    try:
        data, ancillary, _, _ = there.recvmsg(2048, 128)
    except TimeoutError:
        return None
    ((_, _, stamp),) = ancillary
    seconds, nanoseconds = struct.unpack("=qq", stamp)
    return data, seconds * 10**9 + nanoseconds


def _recognized(data: bytes, datagrams: Sequence[bytes]) -> tuple[int, tuple[int, ...]]:
    """Return a datagram's number and its flipped bits. The number itself may have a flipped bit."""
    (number,) = NUMBER.unpack_from(data)
    if number < len(datagrams) and data == datagrams[number]:
        return number, ()
    candidates = [it for it in (number, *(number ^ 1 << bit for bit in range(32))) if it < len(datagrams)]
    assert candidates, f"unknown datagram: {data[:16].hex()}..."
    differences = {it: _difference(data, datagrams[it]) for it in candidates}
    number = min(differences, key=lambda it: differences[it].bit_count())
    bits = f"{differences[number]:b}"[::-1]
    return number, tuple(place for place, bit in enumerate(bits) if bit == "1")


def _difference(one: bytes, other: bytes) -> int:
    size = max(len(one), len(other))
    return int.from_bytes(one.ljust(size, b"\0"), "little") ^ int.from_bytes(other.ljust(size, b"\0"), "little")


def send(
    lab: Lab,
    count: int,
    *,
    segments: int = 1,
    size: int = 1400,
    pause_s: float = 0.0002,
    between: Callable[[int], None] = lambda number: None,
) -> list[int]:
    """Send ``count`` x ``segments`` datagrams, with ``between(n)`` before each send n; return arrived numbers in order.

    With ``segments`` above 1 each send is one super-packet of that many segments of ``size`` bytes.
    """
    there = lab.socket(lab.b, socket.AF_INET, socket.SOCK_DGRAM)
    here = lab.socket(lab.a, socket.AF_INET, socket.SOCK_DGRAM)
    with there, here:
        there.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        there.bind(("10.77.0.2", 0))
        here.connect(there.getsockname())
        if segments > 1:
            here.setsockopt(SOL_UDP, UDP_SEGMENT, size)
        for number in range(count):
            between(number)
            first = number * segments
            here.send(b"".join(struct.pack("!I", first + it).ljust(size, b"x") for it in range(segments)))
            time.sleep(pause_s)
        there.settimeout(QUIET_S)
        arrived = []
        try:
            while True:
                arrived.append(struct.unpack_from("!I", there.recv(2048))[0])
        except TimeoutError:
            return arrived


def counter(lab: Lab, namespace: str, protocol: str, name: str) -> int:
    """Return a counter of a host's /proc/net/snmp."""
    lines = [line.split() for line in lab.inside(namespace, "cat", "/proc/net/snmp").splitlines()]
    names, values = (words for words in lines if words[0] == f"{protocol}:")
    return int(values[names.index(name)])


def within_chance(lost: float, sent: int, probability: float, spread: float = 1.0) -> bool:
    """Return whether ``lost`` of ``sent`` is plausible; ``spread`` is the variance relative to independent losses."""
    variance = sent * probability * (1 - probability) * spread
    return abs(lost - sent * probability) <= Z * math.sqrt(variance) + 1


def runs_of_missing(arrived: Sequence[Arrival], count: int) -> list[int]:
    """Return the lengths of runs of missing numbers below ``count``."""
    came = {arrival.number for arrival in arrived}
    runs, length = [], 0
    for number in range(count + 1):
        if number < count and number not in came:
            length += 1
        elif length:
            runs.append(length)
            length = 0
    return runs


def drawn(distribution: str, count: int) -> list[float]:
    """Return ``count`` sorted values of a jitter distribution as documented by Impairment, in units of the jitter."""
    chance = random.Random(20261121)

    def normal() -> float:
        return max(-4.0, min(4.0, chance.gauss(0.0, 1.0)))

    def pareto() -> float:  # of shape 3: mean 3/2, variance 3/4
        return min(4.0, (chance.paretovariate(3.0) - 1.5) / math.sqrt(0.75))

    draw = {
        "uniform": lambda: chance.uniform(-1.0, 1.0),
        "normal": normal,
        "pareto": pareto,
        "paretonormal": lambda: 0.25 * normal() + 0.75 * pareto(),
    }[distribution]
    return sorted(draw() for _ in range(count))


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the Kolmogorov-Smirnov distance of two sorted samples: the greatest difference of their distributions."""
    at = [0, 0]
    greatest = 0.0
    while at[0] < len(one) and at[1] < len(other):
        value = min(one[at[0]], other[at[1]])
        for which, values in enumerate((one, other)):
            while at[which] < len(values) and values[at[which]] <= value:
                at[which] += 1
        greatest = max(greatest, abs(at[0] / len(one) - at[1] / len(other)))
    return greatest


def autocorrelation(values: Sequence[float]) -> float:
    """Return the autocorrelation at lag 1."""
    mean = statistics.fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    return sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values)) / total
