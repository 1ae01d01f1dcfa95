"""Write initial inputs of every kind for the fuzz targets: ``python seeds.py FOLDER`` creates ``FOLDER/<target>/*``.

Random mutation alone rarely finds a consistent super-packet or command.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Final

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_ECN = 1, 0, 1, 4, 5, 0x80

CONTROL: Final = [
    b"ping\n",
    b"add l:b l0-a l0-b\nadd l:a l0-b l0-a\ngo\nstats\n",
    b"add x i0 i1\nset x delay_ns=200000 rate_bps=1e9 queue_bytes=65536 loss=0.01 memory_bytes=1048576\nstats\nping\n",
    b"add x i0 i1\nset x loss=1.5\nset x delay_ns\nset x what=1\nset y\n\nnonsense\ngo\ngo\nadd z i2 i3\n",
    b"add x i0 i0\nadd x i0 i1\nadd x i2 i3\nadd y i0 i2\nadd z missing i9\nadd\n",
    b"set " + b"n" * 1010 + b"\nping\n" + b"x" * 1100 + b"\nping\n",
]


def packet(frame: Packet, *, mss: int = 0, kind: int = GSO_NONE) -> bytes:
    """``frame`` behind its virtio header, its checksum partial where there is an ``mss``."""
    data = bytes(frame)
    l4 = next((frame[layer] for layer in (TCP, UDP) if layer in frame), None)
    if l4 is None or not mss:
        return struct.pack("=BBHHHH", 0, kind, 0, mss, 0, 0) + data
    start = len(data) - len(bytes(l4))
    offset, header = (6, 8) if UDP in frame else (16, (data[start + 12] >> 4) * 4)
    return struct.pack("=BBHHHH", NEEDS_CSUM, kind, start + header, mss, start, offset) + data


def partial(frame: Packet, beyond: int) -> bytes:
    """A checksum to be completed in a field that begins ``beyond`` bytes after the end of the frame."""
    data = bytes(frame)
    return struct.pack("=BBHHHH", NEEDS_CSUM, GSO_NONE, 0, 0, len(data) + beyond - 6, 6) + data


def packets() -> list[bytes]:
    ether = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
    v4, v6 = IP(src="10.0.0.1", dst="10.0.0.2", id=65530), IPv6(src="fd00::1", dst="fd00::2")
    tcp = TCP(sport=1, dport=2, seq=2**32 - 100, flags="FPAC", options=[("Timestamp", (1, 2))])
    udp, body = UDP(sport=1, dport=2), Raw(bytes(range(250)))
    return [
        packet(ether / v4 / tcp / body, mss=100, kind=GSO_TCPV4),
        packet(ether / v4 / tcp / body, mss=1, kind=GSO_TCPV4 | GSO_ECN),
        packet(ether / v6 / tcp / body, mss=100, kind=GSO_TCPV6),
        packet(ether / v4 / udp / body, mss=100, kind=GSO_UDP_L4),
        packet(ether / v6 / udp / body, mss=100, kind=GSO_UDP_L4),
        packet(ether / Dot1AD(vlan=5) / Dot1Q(vlan=6) / v4 / tcp / body, mss=64, kind=GSO_TCPV4),
        packet(ether / v4 / IP(src="10.1.0.1", dst="10.1.0.2") / tcp / body, mss=64, kind=GSO_TCPV4),
        packet(ether / v6 / IPv6ExtHdrHopByHop() / tcp / body, mss=64, kind=GSO_TCPV6),
        packet(ether / v4 / tcp / body, mss=1460, kind=GSO_NONE),
        packet(ether / v4 / udp / body, mss=1460, kind=GSO_NONE),
        packet(ether / IP(src="10.0.0.1", dst="10.0.0.2", flags="MF", frag=100) / udp / body),
        packet(ether / IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrFragment(m=1) / udp / body),
        packet(ether / ARP()),
        packet(Ether(type=0x88B5) / Raw(b"x" * 50)),
        *(partial(ether / v4 / udp / body, beyond) for beyond in (-2, -1, 0, 1)),
        bytes(10) + b"runt",
    ]


def write(folder: Path, inputs: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed-{number:02}").write_bytes(data)


def main(folder: Path) -> None:
    chance = random.Random(4)
    stretches = (0, 3000, 64000)
    write(
        folder / "packet",
        [
            struct.pack("<HHI", stretch, chance.getrandbits(16), chance.getrandbits(32)) + data
            for data in packets()
            for stretch in stretches
        ],
    )
    write(folder / "fiber", [chance.randbytes(1 << size) for size in range(3, 12) for _ in range(3)])
    write(folder / "control", [bytes([mode]) + text for text in CONTROL for mode in (0, 1, 2)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
