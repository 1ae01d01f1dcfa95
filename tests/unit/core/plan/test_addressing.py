"""Addresses never collide, and match docs/design.md."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable

import pytest
from builders.random_topology import topologies
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.plan import build
from testbed.core.plan.addressing import Addressing, namespace_name
from testbed.core.plan.resources import Address, Namespace, Route
from testbed.core.topology.model import Site, Topology
from testbed.host.files import catalog

METRO = catalog.load_topology("metro-40km", None)
PLAN = build.build(METRO)
NET = Addressing(METRO)
SIXTY_EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)


def addresses_of(topology: Topology) -> list[tuple[str, str, str]]:
    """(namespace, interface, cidr) of all addresses of the plan."""
    plan = build.build(topology, agents=False)
    return [(step.namespace, step.interface, step.cidr) for step in plan if isinstance(step, Address)]


@SIXTY_EXAMPLES
@given(topologies(most_nodes=40))
def test_no_address_is_given_twice(topology: Topology) -> None:
    given_out = [ipaddress.ip_interface(cidr).ip for _, _, cidr in addresses_of(topology)]
    assert len(set(given_out)) == len(given_out)


@SIXTY_EXAMPLES
@given(topologies(most_nodes=40))
def test_networks_of_different_wires_do_not_overlap(topology: Topology) -> None:
    wires: dict[ipaddress.IPv4Network | ipaddress.IPv6Network, set[str]] = {}
    for namespace, interface, cidr in addresses_of(topology):
        kind = interface if interface not in ("fabric", "fabric0") else "fabric of " + namespace.partition("-")[0]
        wires.setdefault(ipaddress.ip_interface(cidr).network, set()).add("mgmt" if kind in ("mgmt", "mgmt0") else kind)
    for network, kinds in wires.items():
        assert len(kinds) == 1, f"{network} is on {kinds}"
    for a, b in itertools.combinations(wires, 2):
        assert a.version != b.version or not a.overlaps(b)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(topologies(most_nodes=5))
def test_every_next_hop_is_the_other_end_of_its_interface(topology: Topology) -> None:
    plan = build.build(topology, agents=False)
    on_wire = {(namespace, interface): set[str]() for namespace, interface, _ in addresses_of(topology)}
    for namespace, interface, cidr in addresses_of(topology):
        on_wire[namespace, interface].add(cidr)
    for step in plan:
        if isinstance(step, Route):
            for gateway, interface in step.hops:
                near = [ipaddress.ip_interface(cidr) for cidr in on_wire[step.namespace, interface]]
                hop = ipaddress.ip_address(gateway)
                assert any(hop in it.network and hop != it.ip for it in near), step


def test_a_full_house_fits() -> None:
    """The most that fits the address plan: 254 sites are in 10.1 to 10.254, and 256 nodes in one of them."""
    sites = tuple(Site(f"s{number}", 256 if number == 254 else 1, "") for number in range(1, 255))
    net = Addressing(Topology("full", 1.0, sites, ()))
    assert str(net.node("s254-255")[0]) == "10.254.2.0"
    assert str(net.node("s254-255")[1]) == "fd5c:a1e:ac05:fe::200"
    assert str(net.gateway("s254")[0]) == "10.254.0.1"
    everything = [ip for node in net.topology.node_names for ip in (*net.node(node), net.management[node])]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (NET.node("east-0"), ["10.1.1.1", "fd5c:a1e:ac05:1::101"]),
        (NET.node("west-1"), ["10.2.1.2", "fd5c:a1e:ac05:2::102"]),
        (NET.gateway("west"), ["10.2.0.1", "fd5c:a1e:ac05:2::1"]),
        (NET.link_end(METRO.link("south"), "west"), ["10.255.0.3", "fd5c:a1e:ac05:ffff::3"]),
    ],
)
def test_the_addresses_that_the_design_promises(addresses: Iterable[object], expected: list[str]) -> None:
    assert [*map(str, addresses)] == expected


def names_of(hosts: str) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in hosts.splitlines():
        address, *given = line.split()
        for name in given:
            names.setdefault(name, []).append(address)
    return names


def test_names_resolve_to_the_fabric_and_never_to_management() -> None:
    names = names_of(NET.hosts)
    for node in METRO.node_names:
        assert names[node] == [str(address) for address in NET.node(node)]
        assert names[f"{node}.mgmt"] == [str(NET.management[node])]
        assert names[f"{node}.ipv4"] == [f"::ffff:{NET.node(node)[0]}"], "as an IPv6 socket sees it"
    assert names["east-gw"] == [str(address) for address in NET.gateway("east")]


def test_in_the_management_network_names_are_addresses_that_it_reaches() -> None:
    names, elsewhere = names_of(NET.management_hosts), names_of(NET.hosts)
    for name, address in NET.management.items():
        assert names[name] == names[f"{name}.mgmt"] == elsewhere[f"{name}.mgmt"] == [str(address)]
        assert names[f"{name}.fabric"] == elsewhere[f"{name}.fabric"] == elsewhere[name]
    assert names["mgmt"] == elsewhere["mgmt"] == ["172.31.0.1"]


@pytest.mark.parametrize("hosts", [NET.hosts, NET.management_hosts], ids=["fabric", "management"])
def test_each_address_has_one_line_so_that_lookups_backwards_find_its_name(hosts: str) -> None:
    addresses = [line.split()[0] for line in hosts.splitlines()]
    assert len(addresses) == len(set(addresses))


def test_every_place_has_the_names() -> None:
    hosts = {step.name: step.hosts for step in PLAN if isinstance(step, Namespace)}
    assert hosts.pop("mgmt") == NET.management_hosts
    assert hosts == dict.fromkeys(("plant", "east-gw", "west-gw", *METRO.node_names), NET.hosts)


LABS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,39}", fullmatch=True)


@given(LABS, LABS)
def test_marks_of_two_labs_never_collide(lab: str, other: str) -> None:
    if lab == other:
        return
    nodes = [step.name for step in PLAN if isinstance(step, Namespace)]
    mine = {namespace_name(lab, node) for node in nodes}
    assert mine.isdisjoint(namespace_name(other, node) for node in nodes)
    assert not [name for name in mine if name.startswith(f"tb.{other}.")]
