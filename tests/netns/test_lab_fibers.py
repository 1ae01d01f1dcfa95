"""The fibers of a running lab: delay, delivery, counters, and traffic that bypasses them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from builders.commands import run_line
from builders.conditions import LABS
from builders.labs import Lab, address_of, counters, ns
from oracles import oracle

pytestmark = LABS

RTT_S = {"north": 2 * 40 * 5e-6, "south": 2 * 47 * 5e-6}
"""Twice the one-way delay of 40 km and 47 km of glass at 5 us/km."""

ETHERNET_IP_TCP = 14 + 20 + 32
"""Headers of a TCP segment with timestamps, without preamble, FCS and gap."""


def binomial_bounds(trials: int, p: float) -> tuple[float, float]:
    """Two-sided 1e-6 interval of a binomial count, by the normal approximation: np and n(1-p) are large here."""
    mean, sigma = trials * p, (trials * p * (1 - p)) ** 0.5
    return mean - 4.9 * sigma, mean + 4.9 * sigma


def test_the_nodes_are_those_of_the_topology(lab: Lab) -> None:
    assert oracle.namespaces(lab.name) == {
        "east-0", "east-1", "west-0", "west-1", "east-gw", "west-gw", "plant", "mgmt",
    }  # fmt: skip


def test_both_ends_of_every_cable_have_different_indices(lab: Lab) -> None:
    seen = 0
    for node in oracle.namespaces(lab.name):
        for link in oracle.ip(ns(lab, node), "link"):
            if "link_index" in link:
                seen += 1
                assert link["link_index"] != link["ifindex"], f"{node}: {link['ifname']}"
    assert seen == 2 * (4 + 6 + 4), "4 on fabrics, 6 for management, 2 at each end of 2 links; both ends of each"


def test_nothing_of_it_is_in_the_hosts_namespace(lab: Lab) -> None:
    names = {link["ifname"] for link in oracle.json.loads(run_line("ip -j link"))}
    assert names.isdisjoint({"north", "south", "north-a", "fabric", "fabric0", "mgmt", "mgmt0"})
    assert "10.255." not in run_line("ip -j addr")


@pytest.mark.alone
def test_round_trips_take_what_light_takes(lab: Lab) -> None:
    """By minimum and median, less the same path with a redirect for the fiber; all three at the same time."""
    far = {link: address_of(lab, "west-gw", link) for link in RTT_S}
    with oracle.zero_delay_path(f"o{lab.name}") as bare:
        wanted = {"bare": bare, **{link: (ns(lab, "east-gw"), address) for link, address in far.items()}}
        found = oracle.pings(wanted, count=150, interval_s=0.01)
    for link, target in RTT_S.items():
        assert len(found[link]) == 150, "an idle fiber loses nothing"
        for measure in (min, statistics.median):
            error = measure(found[link]) - measure(found["bare"]) - target
            assert abs(error) <= max(50e-6, 0.02 * target), f"{link} by {measure.__name__}: {error * 1e6:+.0f} us"


@pytest.mark.parametrize("family", ["inet", "inet6"])
def test_every_node_reaches_every_node(lab: Lab, family: str) -> None:
    for here, there in (("east-0", "west-0"), ("east-1", "west-1"), ("west-0", "east-1"), ("east-0", "east-1")):
        address = address_of(lab, there, family=family)
        found = oracle.ping(ns(lab, here), address, count=3)
        assert len(found) == 3
        if here[:4] != there[:4]:
            assert min(found) >= RTT_S["north"]


def test_names_resolve_inside_nodes(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    for there in ("west-1", "east-0", "west-gw"):
        capfd.readouterr()
        assert lab.exec("east-0", ["getent", "ahosts", there]) == 0
        said = {line.split()[0] for line in capfd.readouterr().out.splitlines()}
        interface = "fabric" if there.endswith("gw") else "fabric0"
        assert said == set(oracle.addresses(ns(lab, there), interface).values())
    assert lab.exec("east-0", ["getent", "hosts", "nowhere.example"]) != 0


@pytest.mark.parametrize(
    ("place", "interface"), [("east-0", "fabric0"), ("west-gw", "fabric0"), ("plant", "fabric0"), ("mgmt", "mgmt0")]
)
def test_names_resolve_everywhere_and_backwards(
    lab: Lab, capfd: pytest.CaptureFixture[str], place: str, interface: str
) -> None:
    """In the management network a name is the address that is reached from there."""
    capfd.readouterr()
    for there in ("east-0", "west-1"):
        assert lab.exec(place, ["getent", "hosts", there]) == 0  # IPv6 first, where there is such an address
        assert capfd.readouterr().out.split()[0] in oracle.addresses(ns(lab, there), interface).values()
        for address in oracle.addresses(ns(lab, there), "fabric0").values():
            assert lab.exec(place, ["getent", "hosts", address]) == 0
            assert capfd.readouterr().out.split()[1] == (f"{there}.fabric" if place == "mgmt" else there)
        assert lab.exec(place, ["getent", "hosts", address_of(lab, there, "mgmt0")]) == 0
        assert capfd.readouterr().out.split()[1] == (there if place == "mgmt" else f"{there}.mgmt")
    assert lab.exec(place, ["hostname"]) == 0
    assert capfd.readouterr().out == f"{place}\n"
    if place != "plant":  # which has no address
        assert lab.exec(place, ["ping", "-c", "1", "-W", "2", "west-1"]) == 0


@pytest.mark.alone
def test_counters_agree_with_iperf3(lab: Lab) -> None:
    before = counters(lab)
    address = address_of(lab, "west-0")
    report = oracle.iperf3(ns(lab, "east-0"), ns(lab, "west-0"), address)
    after = counters(lab)
    received = report["sum_received"]["bytes"]
    assert received > 20e6, "the flow hardly flowed: what follows would say little"
    expected = received * (1 + ETHERNET_IP_TCP / 1448)
    counted = after["north:west"]["bytes"] - before["north:west"]["bytes"]
    assert counted == pytest.approx(expected, rel=0.02)
    assert after["south:west"]["bytes"] - before["south:west"]["bytes"] < 0.001 * counted, "north is the shorter one"
    segments = after["north:west"]["segments"] - before["north:west"]["segments"]
    assert segments == pytest.approx(received / 1448, rel=0.02)


@pytest.mark.alone
def test_one_percent_loss_is_of_segments_and_leaves_the_rest_as_it_was(healthy: Lab) -> None:
    lab, packets, segments = healthy, 600, 40
    near, far = ns(lab, "east-gw"), ns(lab, "west-gw")
    address = oracle.addresses(far, "north")["inet"]
    before = oracle.ping(near, address, count=40)
    lab.inject("impair", "north:west", loss="1%")
    # 40 datagrams of 1442 bytes on the wire take 0.58 ms at 800 Mb/s: at one send a millisecond no queue grows.
    arrived = oracle.udp_super_packets(near, far, address, packets=packets, segments=segments, size=1376, pause_s=0.001)
    sent = packets * segments
    low, high = binomial_bounds(sent, 0.01)
    lost = set(range(sent)).difference(arrived)
    assert low <= len(lost) <= high
    assert len(arrived) == len(set(arrived))
    assert arrived == sorted(arrived), "a fiber does not reorder"
    hurt = [sum(number * segments + it in lost for it in range(segments)) for number in range(packets)]
    # A lost super-packet would count as 40 losses in one place; single segments hit a third of all packets.
    assert max(hurt) < segments / 2
    assert sum(it > 0 for it in hurt) == pytest.approx(packets * (1 - 0.99**segments), rel=0.35)
    again = oracle.ping(near, address, count=40)
    assert min(again) == pytest.approx(min(before), abs=50e-6), "the delay is still the link's own"
    assert lab.status().links[0].drops >= len(lost)


@pytest.mark.alone
def test_delay_can_be_impaired_and_comes_back(healthy: Lab) -> None:
    near, address = ns(healthy, "east-gw"), address_of(healthy, "west-gw", "south")
    with healthy.inject("impair", "south:west", delay="5ms"):
        found = oracle.ping(near, address, count=20)
        expected = 5e-3 + RTT_S["south"] / 2
        assert expected <= min(found) <= expected + 100e-6
    assert min(oracle.ping(near, address, count=20)) < 1e-3


# ---- nothing goes around


@pytest.mark.parametrize("there", ["west-0", "east-1", "west-gw", "east-gw"])
def test_nobody_is_reached_over_the_management_network(lab: Lab, there: str) -> None:
    (bridge,) = [it for it in oracle.ip(ns(lab, "mgmt"), "addr", "show", "dev", "mgmt") if it["ifname"] == "mgmt"]
    (own,) = [it["local"] for it in bridge["addr_info"] if it["family"] == "inet"]
    here, target = ns(lab, "east-0"), address_of(lab, there, "mgmt0")
    assert oracle.ping(here, own), "the management network itself is there"
    assert oracle.ping(here, target, wait_s=0.2) == []

    # With the bridge as a router, by hand.
    run_line(f"ip -n {here} route add {target}/32 via", own, "dev", "mgmt0")
    try:
        assert oracle.ping(here, target, wait_s=0.2) == []
    finally:
        run_line(f"ip -n {here} route del {target}/32 via", own, "dev", "mgmt0")

    # With the neighbour's hardware address, by hand, both ways.
    macs = {node: oracle.ip(ns(lab, node), "link", "show", "dev", "mgmt0")[0]["address"] for node in ("east-0", there)}
    pairs = (("east-0", there), (there, "east-0"))
    for node, other in pairs:
        neighbour = (address_of(lab, other, "mgmt0"), "lladdr", macs[other], "dev", "mgmt0")
        run_line(f"ip -n {ns(lab, node)} neigh replace", *neighbour)
    try:
        assert oracle.ping(here, target, wait_s=0.2) == []
    finally:
        for node, other in pairs:
            run_line(f"ip -n {ns(lab, node)} neigh del", address_of(lab, other, "mgmt0"), "dev", "mgmt0")


def test_ipv6_link_local_does_not_pass_the_management_network(lab: Lab) -> None:
    addresses = oracle.ip(ns(lab, "west-0"), "addr", "show", "dev", "mgmt0")[0]["addr_info"]
    local = [it["local"] for it in addresses if it["family"] == "inet6" and it["scope"] == "link"]
    assert local
    assert oracle.ping(ns(lab, "east-0"), f"{local[0]}%mgmt0", wait_s=0.2) == []


def test_the_other_site_is_not_reached_by_a_route_through_the_management_bridge(healthy: Lab) -> None:
    here, west = ns(healthy, "east-0"), address_of(healthy, "west-0")
    with healthy.cut("north"), healthy.cut("south"):
        run_line(f"ip -n {here} route add {west}/32 via 172.31.0.1 dev mgmt0")
        try:
            assert oracle.ping(here, west, count=2, wait_s=0.2) == []
        finally:
            run_line(f"ip -n {here} route del {west}/32")


def test_nodes_share_no_memory_and_no_name(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    shared = Path("/dev/shm", f"{lab.name}-probe")
    assert lab.exec("east-0", ["sh", "-c", f"hostname; echo secret > {shared}"]) == 0
    assert capfd.readouterr().out == "east-0\n"
    assert not shared.exists()
    assert lab.exec("east-1", ["test", "-e", str(shared)]) == 1
    assert lab.exec("east-0", ["cat", str(shared)]) == 0
    assert capfd.readouterr().out == "secret\n"
    assert lab.exec("east-0", ["sh", "-c", "ls /sys/class/net"]) == 0
    assert capfd.readouterr().out.split() == ["fabric0", "lo", "mgmt0"], "/sys is the node's own"
