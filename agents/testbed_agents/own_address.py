"""The IPv4 address of a network interface of this process's network namespace."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["own_address"]

_SIOCGIFADDR = 0x8915
"""linux/sockios.h"""


def own_address(interface: str) -> str:
    """Return the first IPv4 address of ``interface``. Raises OSError if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])
