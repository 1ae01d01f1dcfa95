"""Paths from node to node over one link: addresses of their own, and routes that lead over that link and no other."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from testbed.core.plan import node_paths
from testbed.core.plan.build import build
from testbed.core.plan.resources import Address, Route
from testbed.core.topology.resolve import load_text

TRIANGLE = b"""\
sites: {a: {nodes: 2}, b: {}, c: {}}
links:
  ab: {between: [a, b], km: 10}
  ac: {between: [a, c], km: 10}
  bc: {between: [b, c], km: 10}
  longer: {between: [b, a], km: 90}
"""
TOPOLOGY = load_text(TRIANGLE, "t.yaml")
NODES = {"a": "a-1", "b": "b-0", "c": "c-0"}


def walk(steps: list[Route], owner: dict[str, str], gateway: str, destination: str) -> list[str]:
    """The links and nodes that a packet at ``gateway`` passes, by the longest prefix and then the least metric."""
    passed: list[str] = []
    while gateway.endswith("-gw"):
        fit = [it for it in steps if it.namespace == gateway and ip_address(destination) in ip_network(it.destination)]
        best = min(fit, key=lambda it: (-ip_network(it.destination).prefixlen, it.metric))
        ((hop, interface),) = best.hops
        passed.append(interface)
        gateway = owner[hop]
        assert len(passed) < 5
    return [*passed, gateway]


def test_each_direction_goes_over_its_own_link_there_and_back() -> None:
    lab = [step for step in build(TOPOLOGY, agents=False) if isinstance(step, Route | Address)]
    probing = list(node_paths.steps(TOPOLOGY, TOPOLOGY.links, NODES))
    routes = [it for it in (*lab, *probing) if isinstance(it, Route) and ":" not in it.destination]
    owner = {step.cidr.partition("/")[0]: step.namespace for step in (*lab, *probing) if isinstance(step, Address)}
    for link in TOPOLOGY.links:
        for path in node_paths.node_paths(TOPOLOGY, link, NODES):
            ends = [(path.sender, path.source), (path.receiver, path.destination)]
            for (near, own), (far, other) in (ends, ends[::-1]):
                assert owner[own] == near
                passed = walk(routes, owner, TOPOLOGY.site_of(near).gateway, other)
                assert passed == [link.name, "fabric", far]
    probed = [step.cidr.partition("/")[0] for step in probing if isinstance(step, Address)]
    assert len(set(probed)) == 2 * len(TOPOLOGY.links)
    assert all(ip_address(it) in ip_network("10.253.0.0/16") for it in probed)
    assert not set(probed) & {step.cidr.partition("/")[0] for step in lab if isinstance(step, Address)}, (
        "of the lab itself"
    )


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(NODES, ("a-1", "a-0")), ({"b": "b-0", "c": "c-0"}, ("b-0", "b-gw")), ({"a": "a-0"}, ("a-0", "a-1"))],
)
def test_inside_a_site_is_another_node_or_else_the_gateway(nodes: dict[str, str], expected: tuple[str, str]) -> None:
    path = node_paths.inside(TOPOLOGY, nodes)
    assert (path.sender, path.receiver) == expected
