"""Shipped topologies that many tests use."""

from __future__ import annotations

from testbed.host.files import catalog

METRO, RING = (catalog.load_topology(name) for name in ("metro-40km", "regional-ring"))
