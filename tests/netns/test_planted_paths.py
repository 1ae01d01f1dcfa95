"""A path around the fibers is found wherever it is: planted by ``ip`` between two sites of a ring."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command
from builders.conditions import ALONE, thorough
from builders.labs import Lab, address_of, bring_up, ns, shared_lab
from oracles import oracle
from planted_fibers import second_path, site_network

pytestmark = ALONE

RING = """
scale: 1000
sites: {a: {nodes: 2}, b: {nodes: 2}, c: {nodes: 2}, d: {nodes: 2}}
links:
  ab: {between: [a, b], km: 20}
  bc: {between: [b, c], km: 20}
  cd: {between: [c, d], km: 30}
  da: {between: [d, a], km: 30}
"""


lab = shared_lab(RING)


def around(command: Command, lab: Lab) -> dict[str, Any]:
    said = command(f"certify -l {lab.name} --json")
    assert said.returncode in (0, 1), said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    assert found["around"]["ok"] is (found["around"]["why"] == "")
    assert found["around"]["ok"] or found["around"]["why"] in found["why"]
    return found["around"]  # type: ignore[no-any-return]


def test_a_lab_as_it_was_built_has_no_path_around_any_pair_of_its_sites(lab: Lab, command: Command) -> None:
    found = around(command, lab)
    assert (found["ok"], found["pairs"], found["families"]) == (True, 6, ["IPv4", "IPv6"])


@pytest.mark.parametrize(
    ("sites", "family", "said"),
    [
        thorough("cd", "inet6", "over IPv6", id="last two sites, IPv6 only"),
        pytest.param("cd", "inet", "over IPv4", id="last two sites, IPv4 only"),
        pytest.param("bd", "inet6", "over IPv6", id="sites that no fiber joins"),
    ],
)
def test_a_second_path_between_two_gateways_is_found_in_the_family_that_it_carries(
    lab: Lab, command: Command, sites: str, family: str, said: str
) -> None:
    one, other = tuple(sites)
    hops = {"inet6": ("fd00:bad::2", "fd00:bad::1"), "inet": ("192.168.99.2", "192.168.99.1")}[family]
    routes = (
        (f"{one}-gw", site_network(lab.name, other, family), hops[0]),
        (f"{other}-gw", site_network(lab.name, one, family), hops[1]),
    )
    with second_path(lab.name, f"{one}-gw", f"{other}-gw", *routes):
        found = around(command, lab)
    assert found["ok"] is False
    assert f"{one}-0 reaches {other}-0 {said}" in found["why"]
    assert "without crossing every fiber of the path" in found["why"]
    assert ("IPv4" if family == "inet6" else "IPv6") not in found["why"].replace("IPv4 broadcast", "").replace(
        "link-local IPv6", ""
    )
    assert around(command, lab)["ok"] is True


def test_a_path_one_way_is_found_while_other_traffic_crosses_the_fibers(lab: Lab, command: Command) -> None:
    """Counters of packets would not tell: those of the other traffic make up for those that are missing."""
    target = address_of(lab, "c-1", family="inet6")
    other = ("ip", "netns", "exec", ns(lab, "a-1"), "ping", "-q", "-i", "0.002", target)
    traffic = subprocess.Popen(other, stdout=subprocess.DEVNULL)
    try:
        route = ("d-gw", site_network(lab.name, "c", "inet6"), "fd00:bad::1")
        with second_path(lab.name, "c-gw", "d-gw", route):
            found = around(command, lab)
    finally:
        traffic.terminate()
        traffic.wait()
    assert "d-0 reaches c-0 over IPv6" in found["why"]
    assert "c-0 reaches d-0 over" not in found["why"]


def test_a_cable_between_two_nodes_without_an_address_is_found(lab: Lab, command: Command) -> None:
    with second_path(lab.name, "c-1", "d-1"):
        found = around(command, lab)
    assert found["ok"] is False
    assert "c-1 reaches d-1 by " in found["why"]
    assert " from leak0" in found["why"]


def test_gateways_know_their_neighbours_on_the_links_without_resolving_them(lab: Lab) -> None:
    """Entries that are resolved share one small table of the whole host; permanent ones do not count."""
    for site in lab.topology.sites:
        place = ns(lab, site.gateway)
        links = [link for link in lab.topology.links if site.name in link.between]
        for link in links:
            (other,) = set(link.between) - {site.name}
            far = ns(lab, f"{other}-gw")
            (mac,) = [it["address"] for it in oracle.ip(far, "link", "show", "dev", link.name)]
            for family in ("-4", "-6"):
                known = oracle.ip(place, family, "neigh", "show", "dev", link.name, "nud", "permanent")
                address = oracle.addresses(far, link.name)["inet" if family == "-4" else "inet6"]
                assert [it["lladdr"] for it in known if it["dst"] == address] == [mac]


@pytest.mark.thorough
def test_64_sites_are_probed_within_two_seconds(state_folder: Path, command: Command) -> None:
    with bring_up(topology="ring-64") as wide:
        found = [around(command, wide) for _ in range(3)]
    assert {it["pairs"] for it in found} == {64 * 63 // 2}
    assert min(it["took_s"] for it in found) <= 2.0
