"""Paths from node to node over one given link, whatever route other traffic takes; certification adds them for a while.

Each end of a link has a node with an address of its own for that link. The gateways route to these addresses over that
link and no other, there and back, so every link of a lab can be measured between nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing
from testbed.core.plan.build import FABRIC_BRIDGE
from testbed.core.plan.resources import Address, Route
from testbed.core.plan.step import Step
from testbed.core.topology.model import Link, Topology

__all__ = ["NodePath", "inside", "node_paths", "steps"]


@dataclass(frozen=True)
class NodePath:
    """One direction of a link, from node to node: ``name`` is the direction's, or ``inside``."""

    name: str
    sender: str
    source: str
    receiver: str
    destination: str


def node_paths(topology: Topology, link: Link, nodes: Mapping[str, str]) -> Iterator[NodePath]:
    """Yield both directions of ``link`` in the order of its directions. ``nodes``: the node to use of each site."""
    net = Addressing(topology)
    for name, source, target in zip(link.directions, link.between, reversed(link.between), strict=True):
        addresses = (str(net.probed(link, source)), str(net.probed(link, target)))
        yield NodePath(name, nodes[source], addresses[0], nodes[target], addresses[1])


def inside(topology: Topology, nodes: Mapping[str, str]) -> NodePath:
    """Return a path inside a site: to another node of the first site that has one, else to the gateway of the first.

    All sites are built alike, so one stands for all. ``nodes``: the node to send from, of each site.
    """
    net = Addressing(topology)
    site = next((candidate for candidate in topology.sites if candidate.nodes > 1 and candidate.name in nodes), None)
    if site is None:
        site = next(candidate for candidate in topology.sites if candidate.name in nodes)
        other, address = site.gateway, net.gateway(site.name)[0]
    else:
        other = next(node for node in site.node_names if node != nodes[site.name])
        address = net.node(other)[0]
    here = nodes[site.name]
    return NodePath("inside", here, str(net.node(here)[0]), other, str(address))


def steps(topology: Topology, links: Iterable[Link], nodes: Mapping[str, str]) -> Iterator[Step]:
    """Yield the addresses and routes of the paths over ``links``."""
    net = Addressing(topology)
    for link in links:
        for here, there in (link.between, link.between[::-1]):
            gateway, own, far = topology.site(here).gateway, net.probed(link, here), net.probed(link, there)
            yield Address(nodes[here], FABRIC_INTERFACE, f"{own}/32")
            yield Route(gateway, f"{own}/32", ((str(net.node(nodes[here])[0]), FABRIC_BRIDGE),))
            onward = (str(net.link_end(link, there)[0]), topology.interfaces.of_link(link.name))
            yield Route(gateway, f"{far}/32", (onward,))
