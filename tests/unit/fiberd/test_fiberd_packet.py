"""packet.c under ASan and UBSan: slices of super-packets against scapy, and garbage."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.programs import FIBERD, compile_c
from builders.tables import table
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_ECN = 1, 1, 4, 5, 0x80
VNET = struct.Struct("=BBHHHH")
FIELDS = ("flags", "gso_type", "hdr_len", "gso_size", "csum_start", "csum_offset")


@dataclass(frozen=True)
class Answer:
    described: bool
    segments: int
    header_bytes: int
    l2_bytes: int
    packet: bytes


class Harness:
    def __init__(self, program: Path) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process: Any = subprocess.Popen([program], **pipes)  # type: ignore[call-overload]

    def ask(self, operation: int, first: int, last: int, packet: bytes) -> Answer:
        self.process.stdin.write(struct.pack("=4I", operation, first, last, len(packet)) + packet)
        self.process.stdin.flush()
        head = self.process.stdout.read(20)
        if len(head) < 20:
            pytest.fail(f"harness died on {packet[:80].hex()}:\n{self.process.stderr.read().decode()}")
        described, segments, header_bytes, l2_bytes, length = struct.unpack("=5I", head)
        return Answer(bool(described), segments, header_bytes, l2_bytes, self.process.stdout.read(length))

    def slice(self, packet: bytes, first: int, last: int) -> Answer:
        return self.ask(0, first, last, packet)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    sources = [Path(__file__).with_name("fiberd_packet_harness.c"), FIBERD / "packet.c"]
    program = compile_c(
        tmp_path_factory.mktemp("harness") / "harness",
        sources,
        *("-Wall", "-Wextra", "-Werror", "-g"),
        sanitized=("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    )
    harness = Harness(program)
    yield harness
    harness.process.stdin.close()
    assert harness.process.wait(10) == 0


def ones_sum(data: bytes) -> int:
    """The Internet checksum's sum (RFC 1071), not complemented."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def super_packet(packet: Packet, mss: int, ecn: bool = False) -> bytes:
    """``packet`` as the kernel would hand it over: virtio header, checksum field = sum of the pseudo header."""
    udp = UDP in packet
    l4 = packet[UDP] if udp else packet[TCP]
    frame = bytearray(bytes(packet))
    l4_bytes = len(bytes(l4))
    start = len(frame) - l4_bytes
    if IPv6 in packet:
        pseudo = frame[start - 32 : start] + struct.pack("!II", l4_bytes, 17 if udp else 6)
        kind = GSO_TCPV6
    else:
        at = len(bytes(packet)) - len(bytes(packet[IP]))
        pseudo = frame[at + 12 : at + 20] + struct.pack("!HH", 17 if udp else 6, l4_bytes)
        kind = GSO_TCPV4
    kind = (GSO_UDP_L4 if udp else kind) | (GSO_ECN if ecn else 0)
    offset = 6 if udp else 16
    frame[start + offset : start + offset + 2] = struct.pack("!H", ones_sum(bytes(pseudo)))
    return VNET.pack(NEEDS_CSUM, kind, 40, mss, start, offset) + bytes(frame)


def completed(packet: bytes) -> bytes:
    """The frame with its checksum completed as a network card does: over everything from csum_start on."""
    flags, _, _, _, start, offset = VNET.unpack_from(packet)
    frame = bytearray(packet[VNET.size :])
    assert flags & NEEDS_CSUM
    frame[start + offset : start + offset + 2] = struct.pack("!H", ~ones_sum(bytes(frame[start:])) & 0xFFFF)
    return bytes(frame)


def payload(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
OPTIONS = [("Timestamp", (123, 456)), ("NOP", None), ("NOP", None)]
V4 = IP(src="10.1.2.3", dst="10.9.8.7", id=65530, tos=2)  # the identification wraps within the super-packet
V6 = IPv6(src="fd00::1", dst="fd00::2", fl=77)
TCP_FLAGS = "FPAC"  # FIN, PSH, ACK, CWR

SEGMENT, DATAGRAM = TCP(sport=1, dport=2, flags=TCP_FLAGS), UDP(sport=1, dport=2)

CASES = {
    "tcp4": (ETHER / V4 / TCP(sport=1, dport=2, seq=0xFFFFF000, flags=TCP_FLAGS, options=OPTIONS), 1448),
    "tcp6": (ETHER / V6 / TCP(sport=1, dport=2, seq=5, flags=TCP_FLAGS), 1440),
    "udp4": (ETHER / V4 / DATAGRAM, 1200),
    "udp6": (ETHER / V6 / DATAGRAM, 999),
    "vlan": (ETHER / Dot1Q(vlan=7) / V4 / SEGMENT, 1460),
    "qinq": (ETHER / Dot1Q(vlan=7, type=0x8100) / Dot1Q(vlan=8) / V6 / SEGMENT, 1436),
    "ip-options": (ETHER / IP(src="10.0.0.1", dst="10.0.0.2", options=b"\x94\x04\0\0") / TCP(flags="A"), 500),
}


def expected(headers: Packet, data: bytes, mss: int, first: int, last: int, segments: int) -> bytes:
    """Segments [first, last) built from scratch by scapy."""
    packet = headers.copy()
    if IP in packet:
        packet[IP].id = (packet[IP].id + first) & 0xFFFF
    if TCP in packet:
        packet[TCP].seq = (packet[TCP].seq + first * mss) & 0xFFFFFFFF
        flags = set(str(packet[TCP].flags))
        if last < segments:
            flags -= {"F", "P"}
        if first > 0:
            flags -= {"C"}
        packet[TCP].flags = "".join(flags)
    return bytes(packet / Raw(data[first * mss : last * mss]))


@table("headers, mss", CASES)
@pytest.mark.parametrize("count", [2.0, 5.3, 40.5])
def test_slices_are_what_scapy_builds(harness: Harness, headers: Packet, mss: int, count: float) -> None:
    data = payload(int(count * mss))
    whole = super_packet(headers / Raw(data), mss)
    segments = -(-len(data) // mss)
    header_bytes = len(bytes(headers))
    cuts = [(a, a + 1) for a in range(segments)]
    cuts += [(0, segments), (0, segments - 1), (1, segments), (segments // 3, segments // 2 + 1)]
    for first, last in cuts:
        answer = harness.slice(whole, first, last)
        assert (answer.segments, answer.header_bytes) == (segments, header_bytes)
        sliced = data[first * mss : last * mss]
        assert answer.l2_bytes == len(sliced) + (last - first) * header_bytes
        assert completed(answer.packet) == expected(headers, data, mss, first, last, segments), (first, last)
        _, gso_type, _, gso_size, *_ = VNET.unpack_from(answer.packet)
        assert (gso_type, gso_size) == ((0, 0) if last - first == 1 else (whole[1], mss))


def test_a_slice_of_a_slice_is_a_slice(harness: Harness) -> None:
    headers, mss = CASES["tcp4"]
    data = payload(20 * mss + 5)
    whole = super_packet(headers / Raw(data), mss)
    part = harness.slice(whole, 3, 12).packet
    assert harness.slice(part, 2, 5).packet == harness.slice(whole, 5, 8).packet


@table(
    "packet",
    {
        "arp": ETHER / ARP(),
        "udp": ETHER / V4 / UDP() / Raw(b"x" * 100),
        "802.3": ETHER / Raw(b"\x01" * 46),
        "lldp": Ether(type=0x88CC) / Raw(b"lldp"),
    },
)
def test_plain_frames_are_one_segment(harness: Harness, packet: Packet) -> None:
    frame = bytes(packet)
    answer = harness.slice(VNET.pack(0, 0, 0, 0, 0, 0) + frame, 0, 1)
    assert answer == Answer(True, 1, 0, len(frame), b"")


def impossible() -> dict[str, bytes]:
    headers, mss = CASES["tcp4"]
    good = super_packet(headers / Raw(payload(4 * mss)), mss)
    fields = dict(zip(FIELDS, VNET.unpack_from(good), strict=True))

    def but(**changes: int) -> bytes:
        return VNET.pack(*(fields | changes).values()) + good[VNET.size :]

    def poke(position: int, value: int) -> bytes:
        spoiled = bytearray(good)
        spoiled[VNET.size + position] = value
        return bytes(spoiled)

    tunnel = IP(src="1.1.1.1", dst="2.2.2.2") / UDP(dport=4789) / Raw(b"\x08" + b"\0" * 7)
    inner = ETHER / V4 / TCP(flags="A") / Raw(payload(4000))
    tunnelled = bytes(ETHER / tunnel / inner)
    start = len(tunnelled) - len(bytes(inner[TCP]))
    hops = ETHER / IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrHopByHop() / TCP(flags="A") / Raw(payload(4000))
    return {
        "no segment size": but(gso_size=0),
        "no partial checksum": but(flags=0),
        "unknown kind": but(gso_type=3),
        "IPv6 kind on IPv4": but(gso_type=GSO_TCPV6),
        "checksum starts past the end": but(csum_start=65535),
        "checksum starts in the IP header": but(csum_start=20),
        "checksum elsewhere": but(csum_offset=6),
        "TCP header too short": poke(14 + 20 + 12, 0x10),
        "not an IPv4 header": poke(14, 0x65),
        "IPv4 header too short": poke(14, 0x41),
        "not TCP": poke(14 + 9, 17),
        "tunnel": VNET.pack(NEEDS_CSUM, GSO_TCPV4, 90, 1000, start, 16) + tunnelled,
        "extension header": super_packet(hops, 1000),
        "headers only": good[: VNET.size + len(bytes(headers))],
        "cut within the TCP header": good[: VNET.size + 14 + 20 + 10],
        "cut within the IP header": good[: VNET.size + 14 + 7],
        "endless VLAN tags": VNET.pack(NEEDS_CSUM, GSO_TCPV4, 40, 9, 34, 16) + b"\0" * 12 + b"\x81\0" * 200,
    }


@table("packet", impossible())
def test_impossible_super_packets_are_never_split(harness: Harness, packet: bytes) -> None:
    answer = harness.slice(packet, 0, 1)
    assert (answer.described, answer.segments, answer.l2_bytes) == (True, 1, len(packet) - VNET.size)


@pytest.mark.parametrize("length", range(0, 24))
def test_too_short_to_be_a_frame(harness: Harness, length: int) -> None:
    assert not harness.slice(b"\xff" * length, 0, 1).described


@pytest.mark.thorough
def test_garbage(harness: Harness) -> None:
    """Headers with random bytes in random places, cut anywhere: no read out of bounds, and lengths that add up."""
    rng = random.Random(20)
    split = 0
    for _ in range(6000):
        headers, mss = rng.choice(list(CASES.values()))
        packet = bytearray(super_packet(headers / Raw(payload(rng.randrange(1, 4000))), rng.choice([1, 7, mss])))
        for _ in range(rng.choice([0, 0, 1, 2, 8])):
            packet[rng.randrange(min(len(packet), 90))] = rng.choice([0, 1, 0x45, 0x60, 0xFF, rng.randrange(256)])
        if rng.random() < 0.5:
            del packet[rng.randrange(len(packet)) :]
        segments = harness.slice(bytes(packet), 0, 0).segments
        if segments > 1:
            split += 1
            first = rng.randrange(segments)
            last = rng.randrange(first + 1, segments + 1)
            answer = harness.slice(bytes(packet), first, last)
            one_header = (last - first - 1) * answer.header_bytes
            assert len(answer.packet) == VNET.size + answer.l2_bytes - one_header
    assert split > 1000  # the corruption did not make everything trivially bad


def test_vlan_tag_is_put_back(harness: Harness) -> None:
    headers, mss = CASES["tcp4"]
    data = payload(3000)
    bare = super_packet(headers / Raw(data), mss)
    tagged = harness.ask(1, 0x8100, (5 << 13) | 100, bare).packet
    whole = ETHER / Dot1Q(vlan=100, prio=5) / headers[IP]
    assert tagged[VNET.size :] == super_packet(whole / Raw(data), mss)[VNET.size :]
    assert VNET.unpack_from(tagged)[4] == VNET.unpack_from(bare)[4] + 4
    first = harness.slice(tagged, 0, 1)
    assert first.segments == 3
    assert completed(first.packet) == expected(whole, data, mss, 0, 1, first.segments)


@pytest.mark.parametrize("length", [0, 5, 21])
def test_vlan_tag_needs_a_frame(harness: Harness, length: int) -> None:
    assert harness.ask(1, 0x8100, 1, b"\x01" * length).packet == b"\x01" * length
