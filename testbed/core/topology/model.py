"""A topology as resolved: frozen, every default filled in, SI units (m, s, bit/s, bytes).

As written is ``schema.py``; as deployed is ``testbed.lab``. ``resolve.py`` turns the first into this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Site:
    """A campus: one gateway, one fabric, ``nodes`` nodes, one power domain."""

    name: str
    nodes: int
    power: str

    @property
    def gateway(self) -> str:
        return f"{self.name}-gw"

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{index}" for index in range(self.nodes))


@dataclass(frozen=True)
class Duct:
    """A trench or pipe that links share: one dig cuts every link inside (a shared-risk group)."""

    name: str
    length_m: float


@dataclass(frozen=True)
class Link:
    """One lit route between the two sites of ``between``.

    ``via`` names its duct segments in order; a link written with a bare ``km`` has one private duct of its own name.
    ``delay_s`` is one way, ``rate_bps`` already divided by the topology's scale, ``queue_bytes`` is how
    many wire bytes may wait for their turn in a direction: rate x delay + buffer. ``loss`` is a probability per MTU segment.
    """

    name: str
    between: tuple[str, str]
    via: tuple[str, ...]
    length_m: float
    fiber: str
    optics: str
    waves: int
    delay_s: float
    rate_bps: float
    queue_bytes: int
    loss: float
    mtu: int
    protection: str

    @property
    def ends(self) -> tuple[str, str]:
        """Names of the two interfaces in the plant: ``-a`` faces ``between[0]``, ``-b`` faces ``between[1]``."""
        return (f"{self.name}-a", f"{self.name}-b")

    @property
    def directions(self) -> tuple[str, str]:
        """``link:site`` toward ``between[1]`` first, then toward ``between[0]``."""
        return (f"{self.name}:{self.between[1]}", f"{self.name}:{self.between[0]}")


@dataclass(frozen=True)
class Topology:
    """``scale`` divides rates and payloads, never latency. ``routing`` is ``shortest`` or ``multipath``.

    ``origins`` says for each dotted field (``links.north.km``) where its value came from: ``default``,
    ``--set`` or ``file:line``.
    """

    name: str
    scale: float
    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    ducts: tuple[Duct, ...] = ()
    routing: str = "shortest"
    seed: int = 0
    source: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def link(self, name: str) -> Link:
        return next(link for link in self.links if link.name == name)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Nodes in rank order: all of the first site, then all of the second, as a ring collective likes them."""
        return tuple(node for site in self.sites for node in site.node_names)

    def site_of(self, node: str) -> Site:
        return next(site for site in self.sites if node in site.node_names or node == site.gateway)
