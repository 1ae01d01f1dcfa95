"""Faults of places: a node, a gateway, a power domain, an evacuated site, a partition of the management network.

Equipment without power sends no light: the ports of its peers lose the carrier at that moment, and its processes die.
A node's cables lead to the fabric and to the management network; a gateway's to the fibers. The fabric's switch is a
bridge inside the gateway's namespace; it keeps forwarding while the gateway is down, as a separate switch would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.plan.addressing import MANAGEMENT, PLANT
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Unpowered
from testbed.core.plan.step import Step
from testbed.core.topology.model import Site, Topology
from testbed.core.units import parse_duration_s
from testbed.errors import UnknownName

__all__ = [
    "EVACUATION",
    "GATEWAY_DOWN",
    "MANAGEMENT_PARTITION",
    "NODE_KILL",
    "NO_POWER",
    "POWER_LOSS",
    "WARNED",
    "evacuation",
    "gateway_down",
    "management_partition",
    "node_kill",
    "power_loss",
]

NO_POWER: Final = "no power"
"""Name of the phase in which everything in a place is off."""

WARNED: Final = "warned"
"""Name of the phase in which a site expects to lose its power: time to save a checkpoint."""


def node_kill(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Power off a node: its cables go dark, its processes die. Raises UserError."""
    Reader(parameters).finish()
    if target not in topology.node_names:
        raise UnknownName("node", target, topology.node_names)
    return Compiled((Phase(0.0, NO_POWER, _nodes_off(topology, (target,))),), (), nodes=(target,))


def gateway_down(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Power off a site's gateway: all of the site's fibers go dark at both ends. Raises UserError."""
    Reader(parameters).finish()
    named = any(site.name == target for site in topology.sites)  # a site may be called like another one's gateway
    site = _site(topology, target if named else target.removesuffix("-gw"), target)
    dark, links = _gateways_off(topology, (site,))
    return Compiled.at_once(NO_POWER, dark, links)


def power_loss(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Power off every node and gateway of a power domain, or of one site, at once. Raises UserError."""
    Reader(parameters).finish()
    return _power_loss(topology, target, ())


def evacuation(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Warn a site, and power it off after ``warning``. Raises UserError."""
    reader = Reader(parameters)
    warning_s = reader.read("warning", parse_duration_s, 30.0)
    reader.finish()
    return _power_loss(topology, target, (Phase(0.0, WARNED, ()),), warning_s)


def management_partition(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Cut a site's nodes and gateway off the management network; the job continues. Raises UserError."""
    Reader(parameters).finish()
    site = _site(topology, target, target)
    places = (*site.node_names, site.gateway)
    dark = tuple(Carrier(MANAGEMENT, topology.interfaces.port(site.name, it), False) for it in places)
    return Compiled((Phase(0.0, "unreachable", dark),), (), nodes=site.node_names)


def _power_loss(topology: Topology, target: str, before: tuple[Phase, ...], at_s: float = 0.0) -> Compiled:
    sites = tuple(site for site in topology.sites if target in (site.power, site.name))
    if not sites:
        domains = dict.fromkeys(site.power for site in topology.sites)
        raise UnknownName(
            "power domain or site", target, dict.fromkeys([*domains, *(it.name for it in topology.sites)])
        )
    nodes = tuple(node for site in sites for node in site.node_names)
    dark, links = _gateways_off(topology, sites)
    management = tuple(Carrier(MANAGEMENT, topology.interfaces.port(site.name, site.gateway), False) for site in sites)
    # Fibers go dark first, in one request: that is the time of the power event. Killing processes takes milliseconds.
    off = Phase(at_s, NO_POWER, (*dark, *management, *_nodes_off(topology, nodes)))
    return Compiled((*before, off), links, nodes=nodes)


def _gateways_off(topology: Topology, sites: Iterable[Site]) -> tuple[tuple[Carrier, ...], tuple[str, ...]]:
    off = {site.name for site in sites}
    links = tuple(link.name for link in topology.links if off & {*link.between})
    return tuple(Carrier(PLANT, end, False) for link in links for end in topology.interfaces.ends(link)), links


def _nodes_off(topology: Topology, nodes: Iterable[str]) -> tuple[Step, ...]:
    nodes = tuple(nodes)
    sites = [topology.site_of(node) for node in nodes]
    cables = [
        Carrier(place, topology.interfaces.port(site.name, node), False)
        for node, site in zip(nodes, sites, strict=True)
        for place in (site.gateway, MANAGEMENT)
    ]
    ranks = {node: number for number, node in enumerate(topology.node_names)}
    return (*cables, *(Unpowered(node, (ranks[node],)) for node in nodes))


def _site(topology: Topology, name: str, written: str) -> Site:
    for site in topology.sites:
        if site.name == name:
            return site
    raise UnknownName("site", written, [site.name for site in topology.sites])


NODE_KILL = FaultKind("node-kill", "a node loses power: its cables go dark, its processes die", "a node", node_kill)

GATEWAY_DOWN = FaultKind(
    "gateway-down", "a site's gateway loses power: all of its fibers go dark", "a site", gateway_down
)

POWER_LOSS = FaultKind(
    "power-loss",
    "every node and gateway in one power domain loses power at once",
    "a power domain, or a site",
    power_loss,
)

EVACUATION = FaultKind(
    "evacuation",
    "a site is warned and loses power later: time to save a checkpoint",
    "a site, or a power domain",
    evacuation,
    {"warning": "time between warning and power loss (30s)"},
)

MANAGEMENT_PARTITION = FaultKind(
    "management-partition",
    "a site is unreachable over the management network; its fibers and the job continue",
    "a site",
    management_partition,
)
