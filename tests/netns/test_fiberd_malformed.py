"""Malformed frames through a real fiberd under ASan and UBSan.

The oracle is the kernel: the same frames pass the same veth pairs with a tc redirect in place of the emulator, and must
arrive identically, byte for byte. Well-formed frames must also arrive as they were sent.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from builders import ROOT
from builders.conditions import LABS
from fiberd_lab import Lab, lab_up, run, until
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, Jumbo
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.host.emulators import fiberd as client
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.emulators.fiberd import Fiberd

pytestmark = LABS

SEED = 4
NOTHING = Impairment()
EACH: Final = 150
"""Frames of each kind."""
MTU: Final = 65535  # of every interface, so that giants get as far as fiberd
SOL_PACKET, PACKET_AUXDATA, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 8, 15, 23, 3
SO_RCVBUFFORCE, TP_STATUS_VLAN_VALID = 33, 1 << 4
NEEDS_CSUM, GSO_TCPV4, GSO_UFO, GSO_TCPV6, GSO_UDP_L4, GSO_ECN = 1, 1, 3, 4, 5, 0x80
VNET = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
PLAIN = VNET.pack(0, 0, 0, 0, 0, 0)
SOURCE = bytes.fromhex("02fa11ed0001")  # tells these frames from what the hosts themselves say
TARGET = bytes.fromhex("02fa11ed0002")  # nobody's: no host answers
SENTINEL = PLAIN + TARGET + SOURCE + b"\x88\xb6" + b"the end of a batch".ljust(46, b".")
ETHER = Ether(src=SOURCE, dst=TARGET)

V4: dict[str, Any] = {"src": "192.0.2.1", "dst": "192.0.2.2"}
V6: dict[str, Any] = {"src": "2001:db8::1", "dst": "2001:db8::2"}
PORTS: dict[str, Any] = {"sport": 1, "dport": 2}

Maker = Callable[[random.Random], bytes]
"""A packet: virtio header and frame."""


# ---- the frames ------------------------------------------------------------------------------------------------------


def body(chance: random.Random, most: int = 1200) -> Raw:
    return Raw(chance.randbytes(chance.randrange(1, most)))


def ethernet(ethertype: int, data: bytes) -> bytes:
    return PLAIN + TARGET + SOURCE + struct.pack("!H", ethertype) + data


def inner(chance: random.Random) -> Packet:
    l3 = chance.choice([IP(**V4), IPv6(**V6)])
    l4 = chance.choice([TCP(**PORTS, seq=chance.getrandbits(32), flags="A"), UDP(**PORTS)])
    return l3 / l4 / body(chance)


def damaged(data: bytes, chance: random.Random, first: int, last: int, count: int = 3) -> bytes:
    """``count`` bytes of [first, last) replaced."""
    out = bytearray(data)
    for _ in range(count):
        out[chance.randrange(first, min(last, len(out)))] = chance.choice([0, 1, 255, chance.randrange(256)])
    return bytes(out)


def plain(chance: random.Random) -> bytes:
    return PLAIN + bytes(ETHER / inner(chance))


def runt(chance: random.Random) -> bytes:
    return ethernet(chance.choice([0x0800, 0x86DD, 0x0806, 0x88B5]), chance.randbytes(chance.randrange(46)))


def giant(chance: random.Random) -> bytes:
    return (
        ethernet(0x88B5, chance.randbytes(chance.choice([MTU, MTU - 1, 40000, 9001])))
        if chance.random() < 0.1
        else plain(chance)
    )


def unknown_ethertype(chance: random.Random) -> bytes:
    return ethernet(chance.choice([0x1234, 0x88B5, 0x8847, 0x8863, 0xFFFF]), chance.randbytes(chance.randrange(1500)))


def length_field(chance: random.Random) -> bytes:
    """802.3: a length instead of an ethertype, true or not."""
    return ethernet(chance.randrange(1536), chance.randbytes(chance.randrange(1500)))


def ip_header(chance: random.Random) -> bytes:
    """Version, header length, total length, offset, protocol: whatever comes."""
    return damaged(PLAIN + bytes(ETHER / inner(chance)), chance, 24, 24 + 40)


def fragment(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        head = IP(**V4, flags=chance.randrange(8), frag=chance.randrange(8192))
        return PLAIN + bytes(ETHER / head / UDP() / body(chance))
    part = IPv6ExtHdrFragment(offset=chance.randrange(8192), m=chance.randrange(2), id=chance.getrandbits(32))
    return PLAIN + bytes(ETHER / IPv6(**V6) / part / UDP() / body(chance))


def extension_headers(chance: random.Random) -> bytes:
    kinds = [IPv6ExtHdrHopByHop, IPv6ExtHdrDestOpt, IPv6ExtHdrRouting, IPv6ExtHdrFragment]
    chain: Packet = IPv6(**V6)
    for _ in range(chance.randrange(1, 9)):
        chain /= chance.choice(kinds)()
    data = PLAIN + bytes(ETHER / chain / TCP() / body(chance))
    return damaged(data, chance, 24 + 40, 24 + 80) if chance.random() < 0.5 else data


def jumbogram(chance: random.Random) -> bytes:
    option = IPv6ExtHdrHopByHop(options=[Jumbo(jumboplen=chance.choice([0, 100, 65536, 2**32 - 1]))])
    head = IPv6(**V6, plen=chance.choice([0, 8]))
    return PLAIN + bytes(ETHER / head / option / UDP(len=0) / body(chance))


def vlan_stack(chance: random.Random) -> bytes:
    tags = b"".join(
        chance.choice([b"\x81\x00", b"\x88\xa8", b"\x91\x00"]) + chance.randbytes(2)
        for _ in range(chance.choice([1, 1, 2, 3, 20]))
    )
    rest = bytes(ETHER / inner(chance))[12:]
    data = PLAIN + TARGET + SOURCE + tags + rest
    return data if chance.random() < 0.7 else data[: 24 + chance.randrange(len(tags) + 3)]


def l4_header(chance: random.Random) -> bytes:
    return damaged(PLAIN + bytes(ETHER / IP(**V4) / TCP() / body(chance)), chance, 44, 64)


def super_packet(chance: random.Random) -> bytes:
    """A consistent one."""
    v4, udp = chance.random() < 0.5, chance.random() < 0.3
    l3 = IP(**V4) if v4 else IPv6(**V6)
    l4 = UDP(**PORTS) if udp else TCP(**PORTS, flags="PA")
    size = chance.choice([100, 536, 1400])
    # At most 64 datagrams in one (UDP_MAX_SEGMENTS of older kernels).
    data = chance.randbytes(chance.randrange(size + 1, min(40 * size, 60000)))
    frame = bytes(ETHER / l3 / l4 / Raw(data))
    start = 14 + (20 if v4 else 40)
    kind = GSO_UDP_L4 if udp else GSO_TCPV4 if v4 else GSO_TCPV6
    vnet = VNET.pack(NEEDS_CSUM, kind, start + (8 if udp else 20), size, start, 6 if udp else 16)
    return vnet + frame


def bad_super_packet(chance: random.Random) -> bytes:
    """Its virtio header lies, or its headers do; the kernel refuses to send some of them."""
    data = super_packet(chance)
    if chance.random() < 0.5:
        return damaged(data, chance, 24, 24 + 64, 2)
    flags, kind, header, size, start, offset = VNET.unpack(data[: VNET.size])
    lies = {
        "kind": chance.choice([GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_UFO, kind | GSO_ECN]),
        "header": chance.choice([0, 1, 14, header + 4, 65535]),
        "size": chance.choice([1, 7, 3000, 65535]),
        "start": chance.choice([0, 14, start + 2, start + 20]),
        "offset": chance.choice([0, 2, 6, 16]),
    }
    fields = {"kind": kind, "header": header, "size": size, "start": start, "offset": offset}
    for name in chance.sample(sorted(lies), chance.choice([1, 1, 2])):
        fields[name] = lies[name]
    return VNET.pack(flags, *(fields[name] for name in ("kind", "header", "size", "start", "offset"))) + data[10:]


def partial_checksum(chance: random.Random) -> bytes:
    """NEEDS_CSUM somewhere in a plain frame."""
    frame = bytes(ETHER / inner(chance))
    return VNET.pack(NEEDS_CSUM, 0, 0, 0, chance.randrange(14, len(frame)), chance.choice([0, 6, 16])) + frame


def garbage(chance: random.Random) -> bytes:
    vnet = VNET.pack(*(chance.choice([0, 1, 3, 4, 5]) for _ in range(2)), *(chance.randrange(200) for _ in range(4)))
    return vnet + TARGET + SOURCE + chance.randbytes(chance.randrange(2, 1500))


LEGAL: dict[str, Maker] = {
    "plain": plain,
    "runt": runt,
    "giant": giant,
    "unknown ethertype": unknown_ethertype,
    "length field": length_field,
    "fragment": fragment,
}
"""Nothing in these concerns a wire: each arrives, and as it was sent."""

KINDS: dict[str, Maker] = LEGAL | {
    "IP header": ip_header,
    "extension headers": extension_headers,
    "jumbogram": jumbogram,
    "VLAN stack": vlan_stack,
    "L4 header": l4_header,
    "super-packet": super_packet,
    "bad super-packet": bad_super_packet,
    "partial checksum": partial_checksum,
    "garbage": garbage,
}


def batch(kind: str) -> list[bytes]:
    chance = random.Random(f"{SEED} {kind}")
    return [KINDS[kind](chance) for _ in range(EACH)]


# ---- the wire --------------------------------------------------------------------------------------------------------


@contextmanager
def one_cpu() -> Iterator[None]:
    """The kernel keeps packets in order as long as their sender does not move."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


class Wire:
    """Raw frames from a to b."""

    def __init__(self, lab: Lab) -> None:
        self.sender = lab.socket(lab.a, socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.receiver = lab.socket(lab.b, socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.sender.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.sender.bind(("fib0", 0))
        self.receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        for option in (PACKET_VNET_HDR, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING):
            self.receiver.setsockopt(SOL_PACKET, option, 1)
        self.receiver.bind(("fib0", ETH_P_ALL))
        self.receiver.settimeout(10)

    def send(self, packets: list[bytes]) -> tuple[int, list[bytes]]:
        """How many the kernel agreed to send, and what arrived of them (virtio header without its hint, frame)."""
        with one_cpu():
            sent = self.send_blindly(packets)
            self.sender.send(SENTINEL)
        arrived: list[bytes] = []
        while (packet := self._receive()) != hint_removed(SENTINEL):
            if packet[VNET.size + 6 : VNET.size + 12] == SOURCE:
                arrived.append(packet)
        return sent, arrived

    def send_blindly(self, packets: list[bytes]) -> int:
        """How many the kernel agreed to send; what arrives is not looked at."""
        sent = 0
        for packet in packets:
            with suppress(OSError):  # EINVAL, EMSGSIZE: the sender's kernel has looked through it
                self.sender.send(packet)
                sent += 1
        return sent

    def _receive(self) -> bytes:
        data, control, _, _ = self.receiver.recvmsg(MTU + 1000, 64)
        ((_, _, auxiliary),) = control
        status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", auxiliary)
        if status & TP_STATUS_VLAN_VALID:
            end = VNET.size + 12
            data = data[:end] + struct.pack("!HH", tpid, tci) + data[end:]
        return hint_removed(data)


def hint_removed(packet: bytes) -> bytes:
    """hdr_len says how the kernel laid a packet out in its memory, not what is in it."""
    flags, kind, _, size, start, offset = VNET.unpack(packet[: VNET.size])
    return VNET.pack(flags, kind, 0, size, start, offset) + packet[VNET.size :]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_up("mal") as lab:
        for namespace, name in ((lab.a, "fib0"), (lab.b, "fib0"), *((lab.plant, end) for end in lab.ends())):
            run(f"ip -n {namespace} link set {name} mtu", str(MTU))
        yield lab


@pytest.fixture(scope="module")
def wire(lab: Lab) -> Iterator[Wire]:
    wire = Wire(lab)
    with wire.sender, wire.receiver:
        yield wire


@pytest.fixture(scope="module")
def without_emulator(lab: Lab, wire: Wire) -> dict[str, tuple[int, list[bytes]]]:
    """What the kernel alone makes of each batch."""
    with lab.redirect():
        return {kind: wire.send(batch(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fiberd with sanitizers, or as it is where the compiler has none."""
    source, folder = ROOT / "testbed" / "fiberd", tmp_path_factory.mktemp("fiberd")
    copy = folder / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "fiberd"))
    if (
        shutil.which("make")
        and subprocess.run(["make", "-s", "-C", copy, "sanitize"], capture_output=True).returncode == 0
    ):
        return copy / "build" / "fiberd-sanitized"
    return client.find_binary()


@pytest.fixture(params=[False, True], ids=["whole", "sliced"])
def sliced(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def emulator(
    sliced: bool, lab: Lab, sanitized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fiberd]:
    monkeypatch.setattr(client, "find_binary", lambda: sanitized)
    # Without CAP_SYS_PTRACE the search for leaks at the end cannot work.
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    rate_bps = 2e9 if sliced else 0.0  # below 2.5 Gb/s super-packets are sliced
    one = Impairment(delay_s=200e-6, rate_bps=rate_bps)
    near, far = lab.ends()
    log = tmp_path / "fiberd.log"
    running = Fiberd.start(
        lab.plant, [EmulatedDirection("l0:b", near, far, one), EmulatedDirection("l0:a", far, near, one)], SEED, log
    )
    yield running
    running.stop()
    assert log.read_text() == ""  # no word of a sanitizer
    for end in lab.ends():
        lab.set_end(end, "up")


def is_plain(packet: bytes) -> bool:
    kind: int = VNET.unpack(packet[: VNET.size])[1]
    return kind == 0


def test_lies_cross_as_they_would_without_it(
    emulator: Fiberd, lab: Lab, wire: Wire, without_emulator: dict[str, tuple[int, list[bytes]]], sliced: bool
) -> None:
    sent_in_all = 0
    for kind in KINDS:
        packets = batch(kind)
        sent, arrived = wire.send(packets)
        sent_before, expected = without_emulator[kind]
        assert sent == sent_before
        sent_in_all += sent
        as_sent, as_arrived, reference = (Counter(map(hint_removed, each)) for each in (packets, arrived, expected))
        if kind in LEGAL:
            assert as_arrived == as_sent, kind
            continue
        if sliced:  # pieces of super-packets are for unit tests; what was plain before must still be there
            reference = Counter(filter(is_plain, reference.elements()))
            as_arrived &= reference
        # The redirect's u32 classifier loses frames with less than 4 bytes behind their Ethernet header.
        strange = (reference - as_arrived) + (as_arrived - reference - as_sent)
        assert not strange, f"{kind}: {[packet[:100].hex() for packet in list(strange)[:5]]}"
    assert sent_in_all > EACH * len(KINDS) / 2
    assert len(lab.rtts_s(3)) == 3
    until(lambda: not any(each.in_flight_packets for each in emulator.stats()), 5, "nothing is in flight")
    assert emulator.wait(0) is None


EVERYTHING: Final = Impairment(
    delay_s=2e-3,
    rate_bps=2e9,
    queue_bytes=10_000_000,
    jitter_s=500e-6,
    jitter_reorders=True,
    loss=0.05,
    burst=3,
    corrupt=0.2,
    corrupt_survives=True,
    duplicate=0.1,
    reorder=0.1,
    reorder_by_s=1e-3,
)


def test_it_lives_through_lies_under_every_impairment(emulator: Fiberd, lab: Lab, wire: Wire) -> None:
    """Slicing, completing checksums, flipping and doubling what makes no sense; each segment is still accounted for."""
    emulator.set({"l0:b": EVERYTHING})
    packets = [packet for kind in KINDS for packet in batch(kind)]
    before = emulator.stats()[0]
    sent = wire.send_blindly(packets)
    assert sent > len(packets) / 2
    until(lambda: not any(each.in_flight_packets for each in emulator.stats()), 5, "nothing is in flight")
    after = until(lambda: caught_up(emulator, before, sent), 5, "every segment is accounted for")
    assert after.corrupted > 0 and after.duplicated > 0 and after.held_back > 0 and after.drops["loss"] > 0
    emulator.set({"l0:b": NOTHING})
    wire.send([])  # reads what has arrived
    # The lies are told to real hosts, whose kernels may look for a neighbour anew: the first ping may be lost.
    until(lambda: len(lab.rtts_s(3)) == 3, 10, "three of three pings cross")
    assert emulator.wait(0) is None


def caught_up(emulator: Fiberd, before: DirectionStats, sent: int) -> DirectionStats | None:
    """The statistics, once as many segments have left or been dropped as packets were sent, each at least one."""
    now = emulator.stats()[0]
    seen = now.segments + sum(now.drops.values()) - now.duplicated
    return now if seen - before.segments - sum(before.drops.values()) >= sent else None
