"""The kernel's statistics of this process's TCP connections: tcp(7), TCP_INFO (linux/tcp.h)."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
from collections import Counter
from dataclasses import dataclass

from testbed_agents.interfaces import network_of

__all__ = ["Connections", "Sums"]

_AT_BUSY = 168
"""Of tcpi_busy_time in struct tcp_info; tcpi_rwnd_limited and tcpi_sndbuf_limited (all us, since Linux 4.10),
tcpi_delivered and tcpi_delivered_ce, tcpi_bytes_sent and tcpi_bytes_retrans (since Linux 4.19) follow."""
_FIELDS = struct.Struct("=QQQIIQQ")
_AT_ORDER = _AT_BUSY + _FIELDS.size
_ORDER = struct.Struct("=III")
"""tcpi_dsack_dups, tcpi_reord_seen (since Linux 4.19), tcpi_rcv_ooopack (since Linux 5.4)."""

_libc = ctypes.CDLL(None, use_errno=True)
_buffer = ctypes.create_string_buffer(_AT_ORDER + _ORDER.size)


LOOKS_EVERY = 16
"""Reads after which descriptors are listed again: one that was closed while another was made leaves their number."""


@dataclass(frozen=True)
class Sums:
    """Sums over connections since they were made: payload bytes, and seconds (``testbed.core.records.TcpRecord``)."""

    sent: int = 0
    retransmitted: int = 0
    busy_s: float = 0.0
    window_limited_s: float = 0.0
    buffer_limited_s: float = 0.0

    def since(self, before: Sums) -> dict[str, int | float]:
        """Return the fields of a step record's ``tcp``; nothing is negative if a connection was closed meanwhile."""
        return {
            "sent": max(0, self.sent - before.sent),
            "retransmitted": max(0, self.retransmitted - before.retransmitted),
            "busy_s": round(max(0.0, self.busy_s - before.busy_s), 6),
            "window_limited_s": round(max(0.0, self.window_limited_s - before.window_limited_s), 6),
            "buffer_limited_s": round(max(0.0, self.buffer_limited_s - before.buffer_limited_s), 6),
        }


class Connections:
    """The open TCP connections of this process. ``interface``: the network of its IPv4 address is the site's own.

    ``read`` costs about 2 us per connection. A connection's peer is looked up once, and which descriptors are
    connections every :data:`LOOKS_EVERY` times, or once their number has changed.
    """

    def __init__(self, interface: str) -> None:
        self._near = network_of(interface)
        self._peers: dict[tuple[int, int], str] = {}
        """Peers by descriptor and inode, which no later socket has."""
        self.retransmitted: dict[str, int] = {}
        """Payload bytes retransmitted so far, by the peer's address. Peers without any are left out, as most are."""
        self.out_of_order: dict[str, int] = {}
        """Packets received so far before an earlier one, likewise. The acknowledgement of each lists what arrived
        (SACK), in up to 28 bytes that a count of bytes less headers takes for payload."""
        self.across = Sums()
        """Of the connections to other networks, which cross a fiber."""
        self._descriptors: list[int] = []
        self._count, self._reads = -1, 0

    def _look(self) -> bool:
        """Update which descriptors may be connections. Returns False if they cannot be listed."""
        try:
            count = os.stat("/proc/self/fd").st_size  # noqa: PTH116 (their number since Linux 6.2, before that 0)
            if count == 0 or count != self._count or self._reads % LOOKS_EVERY == 0:
                names = os.listdir("/proc/self/fd")  # noqa: PTH208 (a path per descriptor would double the cost)
                self._descriptors = [number for name in names if _is_socket(number := int(name))]
                self._count = count
        except OSError:
            return False
        self._reads += 1
        return True

    def read(self) -> None:
        """Update :attr:`retransmitted`, :attr:`out_of_order` and :attr:`across`.

        Never raises: no figure is worth a failed step.
        """
        again: Counter[str] = Counter()
        early: Counter[str] = Counter()
        sent = resent = busy_us = window_us = buffer_us = 0
        if not self._look():
            return
        length = ctypes.c_uint()
        reference = ctypes.byref(length)
        for descriptor in self._descriptors:
            length.value = len(_buffer)
            if _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _buffer, reference) != 0:
                continue  # no TCP socket
            if length.value < _AT_ORDER:
                continue  # an older kernel
            busy, window, small, _, _, out, resent_bytes = _FIELDS.unpack_from(_buffer, _AT_BUSY)
            before = _ORDER.unpack_from(_buffer, _AT_ORDER)[2] if length.value >= len(_buffer) else 0
            if not (out or before) or not (peer := self._peer(descriptor)):
                continue
            if resent_bytes:
                again[peer] += resent_bytes
            if before:
                early[peer] += before
            if self._crosses(peer):
                sent, resent = sent + out, resent + resent_bytes
                busy_us, window_us, buffer_us = busy_us + busy, window_us + window, buffer_us + small
        self.retransmitted, self.out_of_order = dict(again), dict(early)
        self.across = Sums(sent, resent, busy_us / 1e6, window_us / 1e6, buffer_us / 1e6)

    def _peer(self, descriptor: int) -> str:
        try:
            key = (descriptor, os.fstat(descriptor).st_ino)
        except OSError:
            return ""
        if key not in self._peers:
            self._peers[key] = _peer(descriptor)
        return self._peers[key]

    def _crosses(self, peer: str) -> bool:
        try:
            address = int.from_bytes(socket.inet_aton(peer), "big")
        except OSError:
            return False  # IPv6 on the loopback device
        network, mask = self._near
        return mask != 0 and address & mask != network and address >> 24 != 127


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False  # that of the list itself


def _peer(descriptor: int) -> str:
    try:
        copy = socket.socket(fileno=os.dup(descriptor))  # closed at once: a copy would keep the connection open
    except OSError:
        return ""
    with copy:
        try:
            return str(copy.getpeername()[0]).removeprefix("::ffff:")
        except OSError:
            return ""
