"""Addresses, routes and link states by hand-packed rtnetlink messages; the oracle is `ip -j`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import captured, run_line
from builders.conditions import LABS
from oracles.oracle import ip

from testbed.errors import HostError
from testbed.host.linux import namespace, rtnetlink
from testbed.host.linux.netlink import Namespace

pytestmark = LABS

LAST_RESORT = 4294967295


@pytest.fixture
def name() -> Iterator[str]:
    mine = f"nl{os.getpid()}"
    run_line("ip netns add", mine)
    for cable in ("k0", "k1"):
        words = ["ip", "-n", mine, "link", "add", cable, "type", "veth", "peer", "name", f"{cable}-far"]
        subprocess.run(words, check=True, timeout=10)
        run_line("ip -n", mine, "link", "set", f"{cable}-far", "up")
    yield mine
    run_line("ip netns del", mine)


@pytest.fixture
def space(name: str) -> Iterator[Namespace]:
    with Namespace(Path("/run/netns", name)) as opened:
        opened.up("lo")
        for number, cable in enumerate(("k0", "k1")):
            opened.up(cable)
            opened.add_address(cable, f"10.9.{number}.1/24")
            opened.add_address(cable, f"fd09:0:0:{number}::1/64")
        yield opened


def routes(name: str, family: str, destination: str) -> list[dict[str, Any]]:
    return [it for it in ip(name, family, "route", "show", "table", "all") if it["dst"] == destination]


def test_an_address_is_usable_at_once(name: str, space: Namespace) -> None:
    (link,) = ip(name, "addr", "show", "dev", "k1")
    assert "UP" in link["flags"]
    found = {it["local"]: it for it in link["addr_info"] if it["scope"] == "global"}
    assert found["10.9.1.1"]["prefixlen"] == 24
    assert found["fd09:0:0:1::1"]["prefixlen"] == 64
    assert found["fd09:0:0:1::1"]["nodad"] is True
    assert "tentative" not in found["fd09:0:0:1::1"]


@pytest.mark.parametrize(
    ("family", "destination", "hops"),
    [
        ("-4", "10.5.0.0/16", ("10.9.0.2", "10.9.1.2")),
        ("-6", "fd05::/64", ("fd09::2", "fd09:0:0:1::2")),
    ],
)
def test_routes_come_and_go(name: str, space: Namespace, family: str, destination: str, hops: tuple[str, str]) -> None:
    ways = tuple(zip(hops, ("k0", "k1"), strict=True))
    space.add_route(destination, ways[:1], 10)
    space.add_route(destination, ways[1:], 20)
    space.add_route(destination, (), LAST_RESORT)
    found = {it.get("metric"): it for it in routes(name, family, destination)}
    assert (found[10]["gateway"], found[10]["dev"]) == (hops[0], "k0")
    assert (found[20]["gateway"], found[20]["dev"]) == (hops[1], "k1")
    assert found[LAST_RESORT]["type"] == "blackhole"

    space.delete_route(destination, ways[:1], 10)
    assert {it.get("metric") for it in routes(name, family, destination)} == {20, LAST_RESORT}
    space.delete_route(destination, (), LAST_RESORT)
    space.delete_route(destination, ways[1:], 20)
    assert routes(name, family, destination) == []
    space.delete_route(destination, ways[1:], 20)  # what is not there is no error


@pytest.mark.parametrize(
    ("family", "destination", "hops"),
    [
        ("-4", "10.6.0.0/16", {("10.9.0.2", "k0"), ("10.9.1.2", "k1")}),
        ("-6", "fd06::/64", {("fd09::2", "k0"), ("fd09:0:0:1::2", "k1")}),
    ],
)
def test_a_multipath_route_has_all_its_hops(
    name: str, space: Namespace, family: str, destination: str, hops: set[tuple[str, str]]
) -> None:
    space.add_route(destination, tuple(sorted(hops)), 10)
    (found,) = routes(name, family, destination)
    assert {(it["gateway"], it["dev"]) for it in found["nexthops"]} == hops


def test_carriers_change_together_and_are_seen(name: str, space: Namespace) -> None:
    space.set_carriers({"k0-far": False, "k1-far": False})
    assert {key: space.carriers()[key] for key in ("k0", "k1")} == {"k0": False, "k1": False}
    assert {it["ifname"] for it in ip(name, "link") if "NO-CARRIER" in it["flags"]} >= {"k0", "k1"}
    assert space.carriers() == {it["ifname"]: "LOWER_UP" in it["flags"] for it in ip(name, "link")}
    space.set_carriers({"k0-far": True, "k1-far": True})
    assert {key: space.carriers()[key] for key in ("k0", "k1")} == {"k0": True, "k1": True}


def test_a_veth_into_another_namespace_has_what_was_asked_for(name: str, space: Namespace) -> None:
    other = f"{name}-b"
    run_line(f"ip netns add {other}")
    try:
        space.add_veth("near", 77, "far", Path("/run/netns", other), 1400, "02:00:00:00:00:11")
        space.assert_distinct_indices("near")
        (near,), (far,) = ip(name, "link", "show", "dev", "near"), ip(other, "link", "show", "dev", "far")
        assert (near["ifindex"], near["mtu"], near["operstate"]) == (77, 1400, "DOWN")
        assert (far["mtu"], far["address"], far["operstate"]) == (1400, "02:00:00:00:00:11", "DOWN")
        with Namespace(Path("/run/netns", other)) as there:
            assert there.mac("far") == "02:00:00:00:00:11"
        with pytest.raises(HostError, match=r"could not make the veth .*:near: File exists"):
            space.add_veth("near", 0, "far-2", Path("/run/netns", other), 1400)
        space.delete_link("near")
        assert [link["ifname"] for link in ip(other, "link")] == ["lo"]
    finally:
        run_line(f"ip netns del {other}")


def test_a_bridge_isolates_its_ports_and_knows_an_address(name: str, space: Namespace) -> None:
    space.add_bridge("br", ("k0", "k1"), True, 1500)
    (bridge,) = ip(name, "-d", "link", "show", "dev", "br")
    data = bridge["linkinfo"]["info_data"]
    assert ("UP" in bridge["flags"], data["stp_state"], data["forward_delay"]) == (True, 0, 0)
    for port in ("k0", "k1"):
        (link,) = ip(name, "-d", "link", "show", "dev", port)
        assert (link["master"], link["linkinfo"]["info_slave_data"]["isolated"]) == ("br", True)
    space.add_bridge("other", (), False, 1500)
    space.set_port("k1", "other", learning=False, hairpin=True)
    (link,) = ip(name, "-d", "link", "show", "dev", "k1")
    port_data = link["linkinfo"]["info_slave_data"]
    assert (link["master"], port_data["learning"], port_data["hairpin"]) == ("other", False, True)
    space.add_forwarding("02:00:00:00:00:22", "k1")
    argv = ["bridge", "-n", name, "-j", "fdb", "show", "br", "other"]
    listed = json.loads(captured(argv, check=True, timeout=10).stdout)
    assert [(row["ifname"], row["state"]) for row in listed if row["mac"] == "02:00:00:00:00:22"] == [("k1", "static")]


def test_a_redirect_takes_everything_received_to_the_other_interface(name: str, space: Namespace) -> None:
    def filters() -> str:
        argv = ["tc", "-n", name, "filter", "show", "dev", "k0", "ingress"]
        return captured(argv, check=True, timeout=10).stdout

    space.redirect_ingress("k0", "k1")
    assert "match 00000000/00000000 at 0" in filters()
    assert "mirred (Egress Redirect to device k1) stolen" in filters()
    space.unredirect("k0")
    assert "mirred" not in filters()
    space.unredirect("k0")  # removing a missing redirect succeeds


def test_what_the_kernel_refuses_is_said_in_words(space: Namespace) -> None:
    with pytest.raises(HostError, match=r"could not give .*:k0 the address 10.9.0.1/24: File exists"):
        space.add_address("k0", "10.9.0.1/24")
    with pytest.raises(HostError, match="no interface nowhere in"):
        space.up("nowhere")
    with pytest.raises(HostError, match=r"could not add the route to 10.7.0.0/16"):
        space.add_route("10.7.0.0/16", (("192.0.2.1", "k0"),), 0)


def test_all_answers_to_one_datagram_find_room(name: str, space: Namespace) -> None:
    # The ends of 500 links; the kernel's default receive buffer overflows at a few hundred answers (ENOBUFS).
    def ask() -> None:
        with contextlib.closing(rtnetlink.connect()) as raw:
            link = rtnetlink.index(raw, "k0")
            rtnetlink.exchange(raw, [rtnetlink.link_state(link, up) for up in (False, True) * 500])

    namespace.inside(Path("/run/netns", name), ask)
    (link,) = ip(name, "link", "show", "dev", "k0")
    assert "UP" in link["flags"]
