"""Limits of a topology's size, each in this one place: ``lint``, fiberd and ``doctor`` read them here."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BRIDGE_PORTS",
    "MOST_DIRECTIONS",
    "MOST_DUCTS",
    "MOST_LINKS",
    "MOST_NODES_PER_SITE",
    "MOST_SITES",
]

MOST_SITES: Final = 200

MOST_LINKS: Final = 256
"""More have never come up: certifying a link takes nine sockets, and many hosts allow a process 4096 (ulimit -Hn)."""

MOST_DIRECTIONS: Final = 2 * MOST_LINKS
"""What fiberd is told to make room for."""

MOST_DUCTS: Final = 2000

MOST_NODES_PER_SITE: Final = 256
"""A shortened interface name keeps room for ``-255`` (``interface_names.py``)."""

BRIDGE_PORTS: Final = 1023
"""BR_MAX_PORTS is 1 << BR_PORT_BITS, 1024, and port 0 is not used (net/bridge/br_private.h). All nodes and gateways of
a lab are ports of the management bridge."""
