"""Capture the packets of one interface, with the kernel's timestamps, through a ring of memory shared with the kernel.

AF_PACKET with TPACKET_V3 (packet(7); Linux, Documentation/networking/packet_mmap.rst): the kernel copies packets into
blocks, and hands over a block when it is full or :data:`RETIRED_MS` old. So a burst costs no wake-up per packet, and
what a busy reader misses is counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from testbed.errors import HostError
from testbed.host.linux import invocation, namespace

__all__ = ["BLOCK_BYTES", "RETIRED_MS", "RING_BYTES", "Packet", "PacketRing"]

BLOCK_BYTES: Final = 1 << 20
RING_BYTES: Final = 32 << 20
"""Memory of a ring: 0.3 s of a fiber at 800 Mb/s, should the reader get no CPU."""
RETIRED_MS: Final = 50
"""How long a packet waits in a block that is not full."""

_SOL_PACKET, _PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _TPACKET_V3 = 263, 5, 6, 10, 2
_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_ETH_P_ALL = 0x0003
_FRAME_BYTES = 2048  # TPACKET_V3 packs packets closely and only checks it

_TO_KERNEL, _TO_READER = 0, 1
_CHECKSUM_NOT_READY, _VLAN_VALID, _VLAN_TPID_VALID = 1 << 3, 1 << 4, 1 << 6
_ETHERTYPE_VLAN, _MAC_BYTES = 0x8100, 12

_BLOCK_STATUS = struct.Struct("=I")
_BLOCK_HEAD = struct.Struct("=II")
"""At 12 of a block: packets, and where the first one is (struct tpacket_hdr_v1 behind eight bytes)."""
_PACKET_HEAD = struct.Struct("=IIIIIIHHIIH")
"""struct tpacket3_hdr: next, seconds, nanoseconds, captured, length, status, mac, net, hash, VLAN's TCI and TPID."""
_STATUS_AT, _HEAD_AT = 8, 12

_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_PACKET_TYPE, _OUTGOING = 0xFFFFF000 + 4, 4
"""SKF_AD_OFF + SKF_AD_PKTTYPE, and PACKET_OUTGOING of if_packet.h."""


class Packet(NamedTuple):
    """A packet: when the interface had it in ns of the Unix clock, its bytes as far as captured, how many there were,
    and whether its checksum was left to the interface, as is usual between hosts on one machine."""

    at_ns: int
    data: bytes
    length: int
    unchecked: bool


class PacketRing:
    """The packets that arrive at an interface, or that leave by it. Must be closed.

    ``snaplen``: how many bytes of each are kept. ``received`` and ``dropped`` count packets so far, as of the last
    :meth:`count`; ``dropped`` ones found the ring full, and are among the received.
    """

    def __init__(self, netns: Path, interface: str, *, outgoing: bool, snaplen: int) -> None:
        """Raises HostError: no such interface or namespace, or packet sockets are not permitted."""
        self.received = self.dropped = 0
        self._next = 0
        try:
            # Protocol 0 until it is bound: else packets of other interfaces would come in meanwhile.
            self._socket = namespace.inside(
                netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            )
        except PermissionError as error:
            raise HostError(f"capturing is not permitted: {invocation.again('CAP_NET_RAW')}") from error
        except OSError as error:
            raise HostError(f"cannot capture on {interface}: {error.strerror}") from error
        try:
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
            # A packet is stamped where it enters the stack, rather than where it is copied into the ring.
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            _attach(self._socket, _one_way(outgoing, snaplen))
            blocks, frames = RING_BYTES // BLOCK_BYTES, RING_BYTES // _FRAME_BYTES
            ring = struct.pack("=7I", BLOCK_BYTES, blocks, _FRAME_BYTES, frames, RETIRED_MS, 0, 0)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
            self._memory = mmap.mmap(self._socket.fileno(), RING_BYTES, mmap.MAP_SHARED)
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError as error:
            self._socket.close()
            raise HostError(f"cannot capture on {interface}: {error.strerror}") from error

    def fileno(self) -> int:
        """The descriptor that poll(2) reports readable when a block is there."""
        return self._socket.fileno()

    def stop(self) -> None:
        """Take no more packets; those in the ring can still be read, the last ones :data:`RETIRED_MS` later."""
        with contextlib.suppress(OSError):
            _attach(self._socket, [(_RETURN, 0, 0, 0)])

    def read(self) -> Iterator[Packet]:
        """Yield the packets of all blocks that are there, in the order of arrival; a block goes back afterwards."""
        memory = self._memory
        while True:
            at = self._next * BLOCK_BYTES
            if not _BLOCK_STATUS.unpack_from(memory, at + _STATUS_AT)[0] & _TO_READER:
                return
            count, first = _BLOCK_HEAD.unpack_from(memory, at + _HEAD_AT)
            offset = at + first
            for _ in range(count):
                following, s, ns, captured, length, status, mac, _, _, tci, tpid = _PACKET_HEAD.unpack_from(
                    memory, offset
                )
                begin = offset + mac
                data = memory[begin : begin + captured]
                if status & _VLAN_VALID:  # the kernel has taken the tag out
                    kind = tpid if status & _VLAN_TPID_VALID else _ETHERTYPE_VLAN
                    data = data[:_MAC_BYTES] + struct.pack("!HH", kind, tci) + data[_MAC_BYTES:]
                    length += 4
                yield Packet(s * 1_000_000_000 + ns, data, length, bool(status & _CHECKSUM_NOT_READY))
                offset += following
            _BLOCK_STATUS.pack_into(memory, at + _STATUS_AT, _TO_KERNEL)
            self._next = (self._next + 1) % (RING_BYTES // BLOCK_BYTES)

    def count(self) -> None:
        """Bring :attr:`received` and :attr:`dropped` up to date; the kernel's own begin anew at each reading."""
        with contextlib.suppress(OSError):
            statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
            received, dropped, _ = struct.unpack("=III", statistics)
            self.received += received
            self.dropped += dropped

    def close(self) -> None:
        with contextlib.suppress(AttributeError, ValueError):
            self._memory.close()
        self._socket.close()


def _one_way(outgoing: bool, snaplen: int) -> list[tuple[int, int, int, int]]:
    """Return the classic BPF program that keeps packets of one way (Documentation/networking/filter.rst)."""
    sent, received = (snaplen, 0) if outgoing else (0, snaplen)
    return [
        (_LOAD_WORD, 0, 0, _PACKET_TYPE),
        (_JUMP_IF_EQUAL, 0, 1, _OUTGOING),
        (_RETURN, 0, 0, sent),
        (_RETURN, 0, 0, received),
    ]


def _attach(end: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
