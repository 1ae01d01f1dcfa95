"""Encode captured packets as pcapng, which tcpdump, tshark and Wireshark read (draft-ietf-opsawg-pcapng).

A file is a section header, one description of each interface, packets, and each interface's counters at its end. Times
are in nanoseconds of the Unix clock. What ends anywhere between two blocks is a valid file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

__all__ = ["INBOUND", "OUTBOUND", "PACKET_OVERHEAD_BYTES", "Interface", "header", "packet", "statistics"]

INBOUND: Final = 1
OUTBOUND: Final = 2
"""Direction of a packet in its flags (section 4.3.1)."""

_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_BYTE_ORDER, _UNKNOWN_LENGTH = 0x1A2B3C4D, -1
_ETHERNET: Final = 1
_END, _COMMENT = 0, 1
_SECTION_APPLICATION, _INTERFACE_NAME, _INTERFACE_DESCRIPTION, _INTERFACE_SPEED, _INTERFACE_RESOLUTION = 4, 2, 3, 8, 9
_START, _UNTIL, _RECEIVED, _DROPPED = 2, 3, 4, 5
_FLAGS = 2

_PACKET_HEAD = struct.Struct("=IIIIIII")
_PACKET_TAIL = struct.Struct("=HHIII")
PACKET_OVERHEAD_BYTES: Final = _PACKET_HEAD.size + _PACKET_TAIL.size
"""What a packet takes in the file beyond its captured bytes, which are padded to a multiple of 4."""

_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


@dataclass(frozen=True)
class Interface:
    """Where packets were captured; ``rate_bps`` 0: unlimited, ``snaplen`` the most bytes that are kept of a packet."""

    name: str
    description: str
    rate_bps: float = 0.0
    snaplen: int = 0


def header(application: str, comment: str, interfaces: tuple[Interface, ...]) -> bytes:
    """Return the beginning of a file: what made it, ``comment`` for people, and its interfaces, numbered from 0."""
    body = struct.pack("=IHHq", _BYTE_ORDER, 1, 0, _UNKNOWN_LENGTH)
    options = [(_COMMENT, comment.encode()), (_SECTION_APPLICATION, application.encode())]
    return _block(_SECTION, body, options) + b"".join(map(_interface, interfaces))


def _interface(interface: Interface) -> bytes:
    options = [
        (_INTERFACE_NAME, interface.name.encode()),
        (_INTERFACE_DESCRIPTION, interface.description.encode()),
        (_INTERFACE_RESOLUTION, b"\x09"),  # 10^-9 s
    ]
    if interface.rate_bps:
        options.append((_INTERFACE_SPEED, struct.pack("=Q", round(interface.rate_bps))))
    return _block(_INTERFACE, struct.pack("=HHI", _ETHERNET, 0, interface.snaplen), options)


def packet(interface: int, at_ns: int, data: bytes, length: int, direction: int) -> bytes:
    """Return the block of one packet.

    Args:
        interface: its number among those of :func:`header`.
        at_ns: nanoseconds of the Unix clock.
        data: the captured bytes, from the Ethernet header on.
        length: how many there were.
        direction: :data:`INBOUND` or :data:`OUTBOUND`.
    """
    captured = len(data)
    padding = _PADDING[captured & 3]
    size = PACKET_OVERHEAD_BYTES + captured + len(padding)
    head = _PACKET_HEAD.pack(_PACKET, size, interface, at_ns >> 32, at_ns & 0xFFFFFFFF, captured, length)
    return b"".join((head, data, padding, _PACKET_TAIL.pack(_FLAGS, 4, direction, _END, size)))


def statistics(interface: int, began_ns: int, ended_ns: int, received: int, dropped: int) -> bytes:
    """Return an interface's counters: packets that the kernel offered and, among those, had no room for."""
    options = [
        (_START, _moment(began_ns)),
        (_UNTIL, _moment(ended_ns)),
        (_RECEIVED, struct.pack("=Q", received)),
        (_DROPPED, struct.pack("=Q", dropped)),
    ]
    return _block(_STATISTICS, struct.pack("=I", interface) + _moment(ended_ns), options)


def _moment(at_ns: int) -> bytes:
    return struct.pack("=II", at_ns >> 32, at_ns & 0xFFFFFFFF)


def _block(kind: int, body: bytes, options: list[tuple[int, bytes]]) -> bytes:
    written = b"".join(
        struct.pack("=HH", code, len(content)) + content + _PADDING[len(content) & 3] for code, content in options
    )
    size = 12 + len(body) + len(written) + 4
    return struct.pack("=II", kind, size) + body + written + struct.pack("=HHI", _END, 0, size)
