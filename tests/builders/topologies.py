"""Topologies of tests: shipped ones, and texts with ``--set`` as on the command line."""

from __future__ import annotations

import shlex

from testbed.core.topology.model import Topology
from testbed.core.topology.override import split
from testbed.core.topology.resolve import load_text
from testbed.host.files import catalog

METRO, RING = (catalog.load_topology(name) for name in ("metro-40km", "regional-ring"))


def topology(text: str, changes: str = "", label: str = "lab.yaml") -> Topology:
    """Resolve a file with ``changes``: ``"links.north.km=80 scale=100"``, quoted as for a shell."""
    return load_text(text.encode(), label, dict(map(split, shlex.split(changes))))
