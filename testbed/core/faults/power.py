"""Faults of places: a node, a gateway, a power domain, an evacuated site, a partition of the management network.

Equipment without power sends no light: the ports of its peers lose the carrier at that moment, and its processes die.
A node's cables lead to the fabric and to the management network; a gateway's to the fibers. The fabric's switch is a
bridge inside the gateway's namespace; it keeps forwarding while the gateway is down, as a separate switch would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Given, Parameter, Phase
from testbed.core.faults.fault_target import Aim
from testbed.core.plan.addressing import MANAGEMENT, PLANT
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Unpowered
from testbed.core.plan.step import Step
from testbed.core.topology.model import Site, Topology
from testbed.core.units import parse_duration_s

__all__ = ["NO_POWER", "PLACE_FAULTS", "WARNED"]

NO_POWER: Final = "no power"
"""Name of the phase in which everything in a place is off."""

WARNED: Final = "warned"
"""Name of the phase in which a site expects to lose its power: time to save a checkpoint."""


def _kill_node(aim: Aim, given: Given) -> Compiled:
    return Compiled((Phase(0.0, NO_POWER, _nodes_off(aim.topology, [aim.node()])),), (), nodes=(aim.node(),))


def _gateway_down(aim: Aim, given: Given) -> Compiled:
    dark, links = _fibers_dark(aim.topology, [aim.gateway()])
    return Compiled.at_once(NO_POWER, dark, links)


def _power_loss(aim: Aim, given: Given, before: tuple[Phase, ...] = (), at_s: float = 0.0) -> Compiled:
    sites = aim.powered()
    nodes = tuple(node for site in sites for node in site.node_names)
    dark, links = _fibers_dark(aim.topology, sites)
    management = [_unplugged(aim.topology, site, site.gateway, MANAGEMENT) for site in sites]
    # Fibers go dark first, in one request: that is the time of the power event. Killing processes takes milliseconds.
    off = Phase(at_s, NO_POWER, (*dark, *management, *_nodes_off(aim.topology, nodes)))
    return Compiled((*before, off), links, nodes=nodes)


def _evacuate(aim: Aim, given: Given) -> Compiled:
    return _power_loss(aim, given, (Phase(0.0, WARNED, ()),), given["warning"])


def _partition(aim: Aim, given: Given) -> Compiled:
    site = aim.site()
    dark = tuple(_unplugged(aim.topology, site, name, MANAGEMENT) for name in (*site.node_names, site.gateway))
    return Compiled((Phase(0.0, "unreachable", dark),), (), nodes=site.node_names)


def _unplugged(topology: Topology, site: Site, name: str, place: str) -> Carrier:
    """Return the cable of a node or gateway dark whose port is in the namespace ``place``."""
    return Carrier(place, topology.interfaces.port(site.name, name), False)


def _fibers_dark(topology: Topology, sites: Iterable[Site]) -> tuple[tuple[Carrier, ...], tuple[str, ...]]:
    """Return all fibers of ``sites`` dark at both ends, and the names of their links."""
    off = {site.name for site in sites}
    links = tuple(link.name for link in topology.links if off & {*link.between})
    return tuple(Carrier(PLANT, end, False) for link in links for end in topology.interfaces.ends(link)), links


def _nodes_off(topology: Topology, nodes: Iterable[str]) -> tuple[Step, ...]:
    placed = {node: topology.site_of(node) for node in nodes}
    cables = (
        _unplugged(topology, site, node, place) for node, site in placed.items() for place in (site.gateway, MANAGEMENT)
    )
    ranks = {node: rank for rank, node in enumerate(topology.node_names)}
    return (*cables, *(Unpowered(node, (ranks[node],)) for node in placed))


PLACE_FAULTS: Final = (
    FaultKind(
        "node-kill", "a node loses power: its cables go dark, its processes die", "a node", _kill_node, find=Aim.node
    ),
    FaultKind(
        "gateway-down",
        "a site's gateway loses power: all of its fibers go dark",
        "a site",
        _gateway_down,
        find=Aim.gateway,
    ),
    FaultKind(
        "power-loss",
        "every node and gateway in one power domain loses power at once",
        "a power domain, or a site",
        _power_loss,
        find=Aim.powered,
    ),
    FaultKind(
        "evacuation",
        "a site is warned and loses power later: time to save a checkpoint",
        "a site, or a power domain",
        _evacuate,
        {"warning": Parameter("time between warning and power loss (30s)", parse_duration_s, 30.0)},
        Aim.powered,
    ),
    FaultKind(
        "management-partition",
        "a site is unreachable over the management network; its fibers and the job continue",
        "a site",
        _partition,
        find=Aim.site,
    ),
)
