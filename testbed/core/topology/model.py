"""The topology as resolved: frozen, every default filled in, SI units (m, s, bit/s, bytes).

``topology_schema.py`` has the topology as written, which ``resolve.py`` turns into this one; ``testbed.lab`` has it as
deployed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from testbed.core.fields import LARGEST
from testbed.core.physics.fiber import propagation_s
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.protection_selector import SecondPath
from testbed.core.topology import site_fabric
from testbed.core.topology.direction import Direction
from testbed.core.topology.interface_names import InterfaceNames
from testbed.core.user_text import shown

DEFAULT_CONGESTION: Final = "cubic"
CONGESTION_CONTROLS: Final = (DEFAULT_CONGESTION, "bbr", "reno")
"""What ``congestion`` of a topology can name."""


@dataclass(frozen=True)
class Site:
    """A campus: one gateway, one fabric, ``nodes`` nodes, one power domain.

    ``fabric_bps`` is the rate of each node's port, already divided by the topology's scale; 0: without a limit.
    ``oversubscription`` is what all ports together carry over what the core between them does (``site_fabric.py``).
    """

    name: str
    nodes: int
    power: str
    fabric_bps: float = 0.0
    oversubscription: float = 1.0

    @property
    def core_bps(self) -> float:
        """Rate of the fabric's core in bit/s, each way; 0: without a limit."""
        return site_fabric.core_bps(self.nodes, self.fabric_bps, self.oversubscription)

    @property
    def gateway(self) -> str:
        return f"{self.name}-gw"

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{index}" for index in range(self.nodes))


@dataclass(frozen=True)
class Duct:
    """A trench or pipe shared by links: one dig cuts every link inside (a shared-risk group)."""

    name: str
    length_m: float


@dataclass(frozen=True)
class Link:
    """One lit route between the two sites of ``between``.

    ``via`` names its duct segments in order; a link written with a bare ``km`` has one private duct of its own name.
    ``delay_s`` is one way, ``rate_bps`` is already divided by the topology's scale, ``queue_bytes`` is the number of
    wire bytes that may queue in a direction: rate x delay + buffer. ``loss`` is a probability per MTU segment.
    ``delay_s`` includes ``optics_latency_s`` (FEC, DSP; both ends together) and the latency of ``huts`` amplifier
    huts, and ``queue_bytes`` includes ``buffer_bytes``; these three are kept for display.

    ``impairments`` has the complete impairment of each of ``directions``, in that order, where the file sets more than
    the values above (``impair:``, ``toward:``); else it is empty. Delay, rate and loss of ``impair:`` are in the values
    above, too; only a single direction (``toward:``) may differ. Call :meth:`impairment` rather than choose.

    ``second_path`` is set if ``protection`` is ``1+1`` or ``restoration``. ``calibrate``: what packets take from node
    to node beyond the fiber's delay comes off its emulated delay (``core/physics/calibration.py``).
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
    buffer_bytes: int = 0
    optics_latency_s: float = 0.0
    huts: int = 0
    impairments: tuple[Impairment, ...] = ()
    second_path: SecondPath | None = None
    calibrate: bool = True

    @cached_property
    def directions(self) -> tuple[Direction, Direction]:
        """The direction toward ``between[1]``, then the one toward ``between[0]``."""
        one, other = self.between
        return Direction(self.name, one, other), Direction(self.name, other, one)

    def from_site(self, site: str) -> Direction:
        """Return the direction that leaves ``site``."""
        return self.directions[self.between.index(site)]

    def other_end(self, site: str) -> str:
        """Return the site at the other end of the link."""
        return self.between[1 - self.between.index(site)]

    def impairment(self, direction: str) -> Impairment:
        """Return the impairment of one of ``directions`` on the healthy link."""
        if direction not in self.directions:
            raise KeyError(direction)
        if self.impairments:
            return self.impairments[self.directions.index(direction)]
        return Impairment(self.delay_s, self.rate_bps, self.queue_bytes, self.loss)

    def switched(self, direction: str) -> Impairment:
        """Return the impairment of ``direction`` on the second path: only the fiber's delay differs."""
        own = self.impairment(direction)
        if self.second_path is None:
            raise ValueError(f"link {self.name} has no second path")
        longer_s = propagation_s(self.second_path.length_m, self.fiber) - propagation_s(self.length_m, self.fiber)
        return dataclasses.replace(own, delay_s=max(0.0, own.delay_s + longer_s))

    @property
    def rtt_s(self) -> float:
        """Round trip: the sum of both directions, which may differ."""
        return sum(self.impairment(direction).delay_s for direction in self.directions)

    @property
    def switched_rtt_s(self) -> float:
        """Round trip over the second path."""
        return sum(self.switched(direction).delay_s for direction in self.directions)


@dataclass(frozen=True)
class Topology:
    """``scale`` divides rates and payloads, never latency. ``routing`` is ``shortest`` or ``multipath``.

    ``congestion`` is the TCP congestion control of connections over the fibers. Fixed, so that results do not depend on
    the machine's default; the certificate records the one in use.

    ``origins`` maps each dotted field (``links.north.km``) to the source of its value: ``default``, ``--set`` or
    ``file:line``.
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
    congestion: str = DEFAULT_CONGESTION

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def link(self, name: str) -> Link:
        return next(link for link in self.links if link.name == name)

    @cached_property
    def directions(self) -> dict[str, Direction]:
        """All directions of all links, by their names."""
        return {direction: direction for link in self.links for direction in link.directions}

    @cached_property
    def interfaces(self) -> InterfaceNames:
        """The names of the lab's interfaces, derived from those of sites and links."""
        ports = {
            site.name: [place.removeprefix(site.name) for place in (*site.node_names, site.gateway)]
            for site in self.sites
        }
        return InterfaceNames(ports, [link.name for link in self.links])

    @property
    def node_names(self) -> tuple[str, ...]:
        """Nodes in rank order, site by site, so that a ring collective crosses each site boundary once each way."""
        return tuple(node for site in self.sites for node in site.node_names)

    def site_of(self, node: str) -> Site:
        return next(site for site in self.sites if node in site.node_names or node == site.gateway)


Part = TypeVar("Part", "Site", "Link", "Duct", Impairment, SecondPath)


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """Return ``topology`` as JSON data with every field: the content of ``topology.json``."""
    plain: dict[str, Any] = _lists(dataclasses.asdict(topology))
    for site in plain["sites"]:
        if not site["fabric_bps"]:  # as versions write it that know of no such limit
            del site["fabric_bps"], site["oversubscription"]
    if topology.congestion == DEFAULT_CONGESTION:  # likewise
        del plain["congestion"]
    return plain


def _lists(value: Any) -> Any:
    """Return ``value`` with tuples replaced by lists, at any depth."""
    if isinstance(value, Mapping):
        return {key: _lists(nested) for key, nested in value.items()}
    return [_lists(nested) for nested in value] if isinstance(value, list | tuple) else value


def topology_from_dict(data: Mapping[str, Any]) -> Topology:
    """Invert :func:`topology_to_dict`; keys added by a later version are ignored.

    Raises:
        ValueError: ``data`` is not a topology.
    """
    try:
        topology = Topology(
            name=str(data["name"]),
            scale=float(data["scale"]),
            sites=tuple(_part(Site, site) for site in data["sites"]),
            links=tuple(_link(link) for link in data["links"]),
            ducts=tuple(_part(Duct, duct) for duct in data["ducts"]),
            routing=str(data["routing"]),
            seed=int(data["seed"]),
            source=str(data.get("source", "")),
            origins=dict(data.get("origins", {})),
            congestion=str(data.get("congestion", DEFAULT_CONGESTION)),
        )
        for link in topology.links:
            for site in link.between:
                topology.site(site)
        return topology
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StopIteration) as error:
        raise ValueError(f"expected a resolved topology, got {type(error).__name__} {error}") from error


def _link(data: Mapping[str, Any]) -> Link:
    # Files from before impairments per direction lack the key.
    impairments = tuple(_part(Impairment, part) for part in data.get("impairments", ()))
    pairs = {key: tuple(data[key]) for key in ("between", "via")}
    second = data.get("second_path")
    second_path = None if second is None else _part(SecondPath, {**second, "via": tuple(second["via"])})
    return _part(Link, {**data, **pairs, "impairments": impairments, "second_path": second_path})


def _part(kind: type[Part], data: Mapping[str, Any]) -> Part:
    fields = [field for field in dataclasses.fields(kind) if field.name in data]
    return kind(**{field.name: _value(field.name, str(field.type), data[field.name]) for field in fields})


def _value(name: str, kind: str, value: Any) -> Any:
    """Return ``value`` if it has the field's type: a string in place of a number would fail far from here."""
    takes = {"str": str, "int": int, "float": int | float, "bool": bool}.get(kind)
    if takes is not None and (not isinstance(value, takes) or (isinstance(value, bool) and takes is not bool)):
        raise ValueError(f"{name}: expected {kind}, got {value!r}")
    # JSON as Python reads it has Infinity, NaN and integers of any size; report.json has none of these.
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise ValueError(f"{name}: expected a number up to {LARGEST:g}, got {shown(value)}")
    if kind.startswith("tuple[str") and not all(isinstance(name, str) for name in value):
        raise ValueError(f"{name}: expected strings, got {value!r}")
    return float(value) if kind == "float" else value
