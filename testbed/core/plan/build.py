"""Build the plan of a lab from its topology, before anything on the host changes.

Steps are in the order of creation: namespaces, cables, bridges, addresses, routes, then the emulator, then the light
in the fibers (plant ends up), then the agents, then Prometheus. Undo runs in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator

from netaddr import IPAddress, IPNetwork

from testbed.core.physics.impairment import EmulatedDirection
from testbed.core.plan import routing
from testbed.core.plan.addressing import (
    EXPORTER_PORT,
    FABRIC_INTERFACE,
    LAB_V4,
    LAB_V6,
    MANAGEMENT,
    MANAGEMENT_INTERFACE,
    MANAGEMENT_V4,
    METRICS_PORT,
    PLANT,
    PROMETHEUS_PORT,
    Addressing,
)
from testbed.core.plan.properties import Carrier, Shape
from testbed.core.plan.resources import (
    Address,
    Agents,
    Bridge,
    End,
    Fibers,
    Namespace,
    Prometheus,
    Rank,
    Redirect,
    Route,
    SiteFabric,
    Sysctls,
    Veth,
)
from testbed.core.plan.step import Plan, Step
from testbed.core.topology.model import Link, Topology

FIRST_INDEX = 10_001
"""First interface index set by the testbed, far above those that the kernel assigns in a fresh namespace."""

FABRIC_BRIDGE = "fabric"
MANAGEMENT_BRIDGE = "mgmt"

# No autoconfiguration: an idle lab sends no packet over its fibers. Link-local addresses stay, because a router has no
# other source address to resolve the neighbour of a forwarded packet (net/ipv6/ndisc.c).
_QUIET_IPV6 = tuple(
    (f"net/ipv6/conf/{where}/{key}", value)
    for where in ("all", "default")
    for key, value in (("accept_ra", "0"), ("accept_dad", "0"), ("router_solicitations", "0"))
)

# Linux begins with 64: in a ring of 64 sites one cut leads neighbours through 64 gateways, and the last one drops the
# packet. The largest value passes every path of the most sites that a topology may have.
_HOPS = (
    ("net/ipv4/ip_default_ttl", "255"),
    ("net/ipv6/conf/all/hop_limit", "255"),
    ("net/ipv6/conf/default/hop_limit", "255"),
)

_HOST_TCP = (
    # Windows must hold rate x RTT of the longest fiber; metrics of an old connection must not affect a new one.
    ("net/ipv4/tcp_rmem", "4096 131072 67108864"),
    ("net/ipv4/tcp_wmem", "4096 65536 67108864"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
)

_PING = (("net/ipv4/ping_group_range", "0 2147483647"),)
"""Programs have no privileges: without raw sockets, ping needs this (icmp(7); it holds for IPv6 too)."""

_ROUTER = (
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    # Spread flows, not packets, over parallel links.
    ("net/ipv4/fib_multipath_hash_policy", "1"),
    ("net/ipv6/fib_multipath_hash_policy", "1"),
    # `rp_filter` is the maximum of `all` and the interface: a detour over the other link must not be dropped.
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
)

_FAILOVER = tuple(
    (f"net/{family}/conf/{where}/{key}", value)
    for where in ("all", "default")
    for family, key, value in (
        # Without the first a dead link keeps attracting traffic for the whole cut; without the others the neighbour
        # entries are flushed and the heal costs 0.7 to 1 s of resolution.
        ("ipv4", "ignore_routes_with_linkdown", "1"),
        ("ipv6", "ignore_routes_with_linkdown", "1"),
        ("ipv4", "arp_evict_nocarrier", "0"),
        ("ipv6", "ndisc_evict_nocarrier", "0"),
    )
)


def build(topology: Topology, *, agents: bool = True, emulator: str = "fiberd", observe: bool = False) -> Plan:
    """Return the complete plan of a lab. Pure: it depends on the topology, not on the name of the lab."""
    net = Addressing(topology)
    steps: list[Step] = [
        *_namespaces(topology, net),
        *_fabrics(topology, net),
        *_management(topology, net),
        *_links(topology, net),
        *routing.routes(topology),
    ]
    if topology.links:
        steps.append(Fibers(PLANT, tuple(directions(topology)), topology.seed, emulator))
        # The baseline values that the undo of a fault returns to.
        steps += [Shape(direction.name, direction.impairment) for direction in directions(topology)]
        # Carrier comes last: an interface is up if and only if an emulator forwards what it receives.
        steps += [Carrier(PLANT, end, True) for link in topology.links for end in topology.interfaces.ends(link.name)]
    if agents:
        steps.append(Agents(ranks(topology)))
    if observe:
        scraped = ranks(topology) if agents else ()
        steps.append(Prometheus(MANAGEMENT, str(MANAGEMENT_V4[1]), PROMETHEUS_PORT, EXPORTER_PORT, scraped))
    return tuple(steps)


def directions(topology: Topology) -> Iterator[EmulatedDirection]:
    """Yield both directions of every link for the emulator."""
    for link in topology.links:
        a, b = topology.interfaces.ends(link.name)
        toward_b, toward_a = link.directions
        receiver = port if (port := topology.interfaces.of_link(link.name)) != link.name else ""
        yield EmulatedDirection(toward_b, a, b, link.impairment(toward_b), receiver)
        yield EmulatedDirection(toward_a, b, a, link.impairment(toward_a), receiver)


def ranks(topology: Topology) -> tuple[Rank, ...]:
    """Return one rank per node, contiguous by site, so that a ring crosses each site boundary once each way."""
    management = Addressing(topology).management
    return tuple(
        Rank(number, node, topology.site_of(node).name, str(management[node]), METRICS_PORT)
        for number, node in enumerate(topology.node_names)
    )


def _namespaces(topology: Topology, net: Addressing) -> Iterator[Step]:
    yield Namespace(PLANT, isolated=True, hosts=net.hosts)
    # The plant only forwards frames: its own IP stack must not answer, resolve or announce.
    yield Sysctls(PLANT, (("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")))
    yield Namespace(MANAGEMENT, isolated=True, hosts=net.management_hosts)
    yield Sysctls(
        MANAGEMENT,
        (
            ("net/ipv4/ip_forward", "0"),
            ("net/ipv6/conf/all/disable_ipv6", "1"),
            ("net/ipv6/conf/default/disable_ipv6", "1"),
        ),
    )
    for site in topology.sites:
        yield Namespace(site.gateway, isolated=True, hosts=net.hosts)
        yield Sysctls(site.gateway, _QUIET_IPV6 + _HOPS + _ROUTER)
        yield Sysctls(site.gateway, _FAILOVER, optional=True)
        for node in site.node_names:
            yield Namespace(node, isolated=True, hosts=net.hosts)
            yield Sysctls(node, _QUIET_IPV6 + _HOPS)
            yield Sysctls(node, _HOST_TCP, optional=True)
            yield Sysctls(node, _PING, optional=True)


def _fabrics(topology: Topology, net: Addressing) -> Iterator[Step]:
    index = FIRST_INDEX
    for site in topology.sites:
        ports = {node: topology.interfaces.port(site.name, node) for node in site.node_names}
        for node, port in ports.items():
            near = End(site.gateway, port, index, alternative=topology.interfaces.alternative(port))
            yield Veth(near, End(node, FABRIC_INTERFACE), _fabric_mtu(topology))
            index += 1
        yield Bridge(site.gateway, FABRIC_BRIDGE, tuple(ports.values()), mtu=_fabric_mtu(topology))
        yield from _addresses(site.gateway, FABRIC_BRIDGE, net.gateway(site.name), net.site_networks(site.name))
        if site.fabric_bps:
            yield SiteFabric(
                site.gateway,
                FABRIC_BRIDGE,
                tuple(ports.items()),
                FABRIC_INTERFACE,
                site.fabric_bps,
                site.core_bps,
                _fabric_mtu(topology),
            )
        for node in site.node_names:
            yield from _addresses(node, FABRIC_INTERFACE, net.node(node), net.site_networks(site.name))
            for prefix, gateway in zip((LAB_V4, LAB_V6), net.gateway(site.name), strict=True):
                yield Route(node, str(prefix), ((str(gateway), FABRIC_INTERFACE),), congestion=topology.congestion)


def _management(topology: Topology, net: Addressing) -> Iterator[Step]:
    ports = {name: topology.interfaces.port(topology.site_of(name).name, name) for name in net.management}
    for offset, (name, port) in enumerate(ports.items()):
        near = End(MANAGEMENT, port, FIRST_INDEX + offset, alternative=topology.interfaces.alternative(port))
        yield Veth(near, End(name, MANAGEMENT_INTERFACE))
    yield Bridge(MANAGEMENT, MANAGEMENT_BRIDGE, tuple(ports.values()), isolated=True)
    yield Address(MANAGEMENT, MANAGEMENT_BRIDGE, f"{MANAGEMENT_V4[1]}/{MANAGEMENT_V4.prefixlen}")
    for name, address in net.management.items():
        yield Address(name, MANAGEMENT_INTERFACE, f"{address}/{MANAGEMENT_V4.prefixlen}")


def _links(topology: Topology, net: Addressing) -> Iterator[Step]:
    index, names = FIRST_INDEX, topology.interfaces
    for link in topology.links:
        port = names.of_link(link.name)
        for end, site in zip(names.ends(link.name), link.between, strict=True):
            gateway = topology.site(site).gateway
            yield Veth(
                End(PLANT, end, index, up=False, alternative=names.alternative(end)),
                End(gateway, port, mac=net.link_mac(link, site), alternative=names.alternative(port)),
                link.mtu,
            )
            index += 1
            other = link.other_end(site)
            for own, remote, length in zip(net.link_end(link, site), net.link_end(link, other), (31, 127), strict=True):
                yield Address(gateway, port, f"{own}/{length}", (str(remote), net.link_mac(link, other)))


def _addresses(
    namespace: str, interface: str, addresses: tuple[IPAddress, ...], networks: tuple[IPNetwork, ...]
) -> Iterator[Step]:
    for address, network in zip(addresses, networks, strict=True):
        yield Address(namespace, interface, f"{address}/{network.prefixlen}")


def _fabric_mtu(topology: Topology) -> int:
    """Return the MTU of the fabrics, that of the fibers: larger frames would need fragmentation at the gateway."""
    return min((link.mtu for link in topology.links), default=1500)


def reference(link: Link) -> Plan:
    """Return a temporary path like ``link`` with a zero-delay redirect as the fiber: the baseline of certification."""
    middle, a, b = "ref-plant", "ref-a", "ref-b"
    return (
        *(Namespace(name) for name in (middle, a, b)),
        Sysctls(middle, (("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1"))),
        *(Sysctls(name, _QUIET_IPV6) for name in (a, b)),
        Veth(End(middle, "ref-a", FIRST_INDEX, up=False), End(a, "ref0"), link.mtu),
        Veth(End(middle, "ref-b", FIRST_INDEX + 1, up=False), End(b, "ref0"), link.mtu),
        Address(a, "ref0", "10.254.0.0/31"),
        Address(b, "ref0", "10.254.0.1/31"),
        Redirect(middle, "ref-a", "ref-b"),
        Carrier(middle, "ref-a", True),
        Carrier(middle, "ref-b", True),
    )


__all__ = ["build", "directions", "ranks", "reference"]
