"""Names and addresses of a lab on the host, and the mark of its namespaces.

The mark is the prefix ``tb.<lab>.`` of network namespaces. Dots cannot occur in the names of labs, sites and nodes, so
the names of two labs never collide, and no foreign namespace carries the mark of a lab by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from netaddr import IPAddress, IPNetwork

from testbed.core.topology.model import Link, Topology

MARK = "tb"
PLANT = "plant"
MANAGEMENT = "mgmt"
FABRIC = "fabric"
"""Last part of names of fabric addresses, as ``mgmt`` is that of management addresses."""
FABRIC_INTERFACE = "fabric0"
MANAGEMENT_INTERFACE = "mgmt0"
METRICS_PORT = 9100
EXPORTER_PORT = 9101
PROMETHEUS_PORT = 9090
MASTER_PORT = 29500

LAB_V4 = IPNetwork("10.0.0.0/8")
LAB_V6 = IPNetwork("fd5c:a1e:ac05::/48")
LINKS_V4 = IPNetwork("10.255.0.0/16")
PROBED_V4 = IPNetwork("10.253.0.0/16")
LINKS_V6 = IPNetwork("fd5c:a1e:ac05:ffff::/64")
MANAGEMENT_V4 = IPNetwork("172.31.0.0/16")


def namespace_name(lab: str, node: str) -> str:
    """Return the name of the network namespace of ``node`` (or gateway, ``plant``, ``mgmt``), as in ``ip netns``."""
    return f"{MARK}.{lab}.{node}"


@dataclass(frozen=True)
class Addressing:
    """All addresses of a topology, derived from the order of its sites, nodes and links.

    Site k (from 1) has 10.k.0.0/16 and fd5c:a1e:ac05:k::/64; its gateway is the first host, its nodes .1.1 and on.
    Link j has the j-th /31 and /127 of the links' prefixes.
    """

    topology: Topology

    @cached_property
    def _site_index(self) -> dict[str, int]:
        return {site.name: index for index, site in enumerate(self.topology.sites, 1)}

    @cached_property
    def _link_index(self) -> dict[str, int]:
        return {link.name: index for index, link in enumerate(self.topology.links)}

    def site_networks(self, site: str) -> tuple[IPNetwork, IPNetwork]:
        """Return the (IPv4, IPv6) prefixes of a site."""
        k = self._site_index[site]
        v4 = IPNetwork((LAB_V4.first + (k << 16), 16), version=4)
        v6 = IPNetwork((LAB_V6.first + (k << 64), 64), version=6)
        return v4, v6

    def gateway(self, site: str) -> tuple[IPAddress, IPAddress]:
        v4, v6 = self.site_networks(site)
        return v4[1], v6[1]

    def node(self, node: str) -> tuple[IPAddress, IPAddress]:
        """Return the fabric addresses of a node."""
        site = self.topology.site_of(node)
        number = site.node_names.index(node) + 1
        v4, v6 = self.site_networks(site.name)
        return v4[256 + number], v6[256 + number]

    def link_end(self, link: Link, site: str) -> tuple[IPAddress, IPAddress]:
        """Return the addresses of ``site``'s gateway on ``link``."""
        side = link.between.index(site)
        offset = 2 * self._link_index[link.name] + side
        return LINKS_V4[offset], LINKS_V6[offset]

    def probed(self, link: Link, site: str) -> IPAddress:
        """Return the address of ``site``'s first node that other sites reach over ``link`` only, while it is probed."""
        return PROBED_V4[2 * self._link_index[link.name] + link.between.index(site)]

    def link_mac(self, link: Link, site: str) -> str:
        """Return the MAC of ``site``'s gateway on ``link``, locally administered, unless containerlab makes it."""
        j = self._link_index[link.name]
        return f"02:5c:a1:{j >> 8:02x}:{j & 255:02x}:{link.between.index(site):02x}"

    @cached_property
    def management(self) -> dict[str, IPAddress]:
        """The management address of every node and gateway; the bridge itself is the first host of the prefix."""
        names = [*self.topology.node_names, *(site.gateway for site in self.topology.sites)]
        return {name: MANAGEMENT_V4[index] for index, name in enumerate(names, 2)}

    @cached_property
    def hosts(self) -> str:
        """The hosts file of every node, gateway and the plant: names resolve without a name server, and addresses too.

        A node's name is its fabric address; ``NODE.fabric`` and ``NODE.mgmt`` mean the same everywhere. IPv4-mapped
        IPv6 addresses (``::ffff:10.1.1.1``, RFC 4291, 2.5.5.2) need names of their own: torch looks up the name of each
        peer that connects and logs a failure otherwise.
        """
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{MANAGEMENT_V4[1]} {MANAGEMENT}"]
        for node in self.topology.node_names:
            lines += [f"{address} {node} {node}.{FABRIC}" for address in self.node(node)]
            lines.append(f"::ffff:{self.node(node)[0]} {node}.ipv4")
        for site in self.topology.sites:
            lines += [f"{address} {site.gateway} {site.gateway}.{FABRIC}" for address in self.gateway(site.name)]
        lines += [f"{address} {name}.{MANAGEMENT}" for name, address in self.management.items()]
        return "\n".join(lines) + "\n"

    @cached_property
    def management_hosts(self) -> str:
        """The hosts file of the management network, which reaches no fabric: a node's name is its management address
        there."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{MANAGEMENT_V4[1]} {MANAGEMENT}"]
        lines += [f"{address} {name} {name}.{MANAGEMENT}" for name, address in self.management.items()]
        for node in self.topology.node_names:
            lines += [f"{address} {node}.{FABRIC}" for address in self.node(node)]
        for site in self.topology.sites:
            lines += [f"{address} {site.gateway}.{FABRIC}" for address in self.gateway(site.name)]
        return "\n".join(lines) + "\n"
