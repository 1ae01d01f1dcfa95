"""Segmentation, scatter-gather and checksum offload of an interface.

A wire carries MTU-sized packets only, so random impairments must not apply to super-packets. ``ethtool`` has a dozen
switches for that, by protocol; a limit of the kernel covers all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
from typing import Final

from testbed.host.linux import rtnetlink

__all__ = ["set_checksummed", "set_scattered", "set_segmented"]

OFFLOADED_SEGMENTS: Final = 65535
"""The kernel's default limit of segments in a super-packet (GSO_MAX_SEGS)."""

IFLA_GSO_MAX_SEGS: Final = 40
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_STXCSUM: Final = 0x17
_ETHTOOL_SSG: Final = 0x19


def set_segmented(interface: str, on: bool) -> None:
    """Limit an interface of the calling thread's network namespace to MTU-sized packets (``on``), or lift the limit.

    A limit of one segment disables offload for all protocols (``gso_features_check`` of net/core/dev.c). Raises
    OSError.
    """
    with contextlib.closing(rtnetlink.connect()) as raw:
        link = rtnetlink.index(raw, interface)
        most = rtnetlink.attribute(IFLA_GSO_MAX_SEGS, struct.pack("=I", 1 if on else OFFLOADED_SEGMENTS))
        body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, link, 0, 0) + most
        rtnetlink.exchange(raw, [rtnetlink.message(rtnetlink.RTM_NEWLINK, 0, body)])


def set_scattered(interface: str, on: bool) -> None:
    """Switch scatter-gather on (the default) or off, as ``ethtool -K interface sg``. Raises OSError.

    netem flips bits only in a packet's first fragment, which with scatter-gather has the headers only.
    """
    _switch(interface, _ETHTOOL_SSG, on)


def set_checksummed(interface: str, on: bool) -> None:
    """Switch checksum offload on (the default of a veth) or off, as ``ethtool -K interface tx``. Raises OSError.

    Without it, Linux before 6.11 refuses UDP super-packets (EIO, ``udp_send_skb`` of net/ipv4/udp.c).
    """
    _switch(interface, _ETHTOOL_STXCSUM, on)


def _switch(interface: str, command: int, on: bool) -> None:
    value = ctypes.create_string_buffer(struct.pack("=II", command, on))  # struct ethtool_value
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(value)))
