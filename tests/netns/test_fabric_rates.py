"""A fabric with a rate, as its nodes see it: by TCP of the test's own, and by what the kernel has after an undo."""

from __future__ import annotations

import functools
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from builders.commands import captured
from builders.labs import Lab, ns, shared_lab

from testbed.core.plan.resources import SiteFabric
from testbed.core.topology import resolve
from testbed.host.drivers import fabric_limits
from testbed.host.linux import namespace, netlink

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

LAB = b"""
scale: 1000
sites:
  east: {nodes: 3, fabric: {rate: 200G, oversubscription: 2}}
  west: {nodes: 2, fabric: {rate: 100G}}
  mid: {nodes: 2}
links:
  north: {between: [east, west], km: 40}
  south: {between: [west, mid], km: 40}
"""
PAYLOAD_SHARE = 1448 / 1538
SECONDS = 1.0


lab = shared_lab(lambda: resolve.load_text(LAB, "fabrics.yaml"))


def _handle(lab: Lab, node: str) -> Path:
    return namespace.netns_path(ns(lab, node))


def _address(site: int, node: int) -> str:
    return f"10.{site}.1.{node + 1}"


def _payload_mbps(lab: Lab, flows: list[tuple[str, str, str]]) -> float:
    """Return what TCP connections carry together, in Mb/s of payload: (source, destination, its address) each."""
    counts = [0] * len(flows)
    begin = time.monotonic() + 0.3  # the first moments are those of bursts and slow start
    end = begin + SECONDS
    threads = []
    for number, (source, destination, address) in enumerate(flows):
        listener = namespace.inside(_handle(lab, destination), functools.partial(socket.create_server, (address, 0)))
        connect = functools.partial(socket.create_connection, listener.getsockname())
        sender = namespace.inside(_handle(lab, source), connect)
        receiver, _ = listener.accept()
        receiver.settimeout(2.0)

        def send(sender: socket.socket = sender) -> None:
            block = bytes(1 << 16)
            with sender:
                while time.monotonic() < end:
                    sender.sendall(block)

        def receive(receiver: socket.socket = receiver, number: int = number) -> None:
            with receiver:
                while data := receiver.recv(1 << 18):
                    if begin <= time.monotonic() < end:
                        counts[number] += len(data)

        listener.close()
        threads += [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 8 * sum(counts) / SECONDS / 1e6


def test_the_certificate_measured_every_port_and_the_core(lab: Lab) -> None:
    assert lab.certificate is not None and lab.certificate.certified
    found = {it.site: {rate.path: rate for rate in it.rates} for it in lab.certificate.fabrics}
    assert set(found) == {"east", "west"}
    assert set(found["east"]) == {"east-0 > east-1", "east-1 > east-2", "east-2 > east-0", "core"}
    assert found["east"]["core"].target_bps == 300e6 and found["west"]["west-0 > west-1"].target_bps == 100e6
    assert any("Fabric of east: 200 Mb/s for 200 Gb/s a node" in line for line in lab.status().fabrics)


def test_ports_carry_their_rate_and_the_core_its_share(lab: Lab) -> None:
    """TCP is a program of its own: at most the rate, and most of it. The machine is shared, so only shares are told."""
    pair = _payload_mbps(lab, [("west-0", "west-1", _address(2, 1))])
    assert 0.8 * 100 * PAYLOAD_SHARE < pair < 1.05 * 100
    around = [("east-0", "east-1", _address(1, 1)), ("east-1", "east-2", _address(1, 2)),
              ("east-2", "east-0", _address(1, 0))]  # fmt: skip
    together = _payload_mbps(lab, around)
    assert 0.8 * 300 * PAYLOAD_SHARE < together < 1.05 * 300, "three ports of 200 Mb/s through a core of 300"
    alone = _payload_mbps(lab, around[:1])
    assert 0.8 * 200 * PAYLOAD_SHARE < alone < 1.05 * 200
    unlimited = _payload_mbps(lab, [("mid-0", "mid-1", _address(3, 1))])
    assert unlimited > 2 * 200, "a site without the key has no limit"


def test_two_sites_reach_each_other_through_an_oversubscribed_core(lab: Lab) -> None:
    across = _payload_mbps(lab, [("east-0", "west-0", _address(2, 0)), ("east-1", "west-1", _address(2, 1))])
    assert 100 < across < 1.05 * 200, "west takes 100 Mb/s at each of two nodes"


def test_a_port_that_was_down_is_reached_again(lab: Lab) -> None:
    """The core's leaf knows its nodes by fixed entries, which a port without carrier must not lose."""
    gateway = ["ip", "-n", ns(lab, "east-gw"), "link", "set", "east-1"]
    for state in ("down", "up"):
        subprocess.run([*gateway, state], check=True)
    assert _payload_mbps(lab, [("east-0", "east-1", _address(1, 1))]) > 100


def test_removing_the_limits_leaves_a_fabric_as_it_was(lab: Lab) -> None:
    """Last: it changes the lab of this module."""
    ports = tuple((f"east-{node}", f"east-{node}") for node in range(3))
    step = SiteFabric("east-gw", "fabric", ports, "fabric0", 200e6, 300e6)
    spaces: dict[str, netlink.Namespace] = {}

    def opened(node: str) -> netlink.Namespace:
        if node not in spaces:
            spaces[node] = netlink.Namespace(_handle(lab, node))
        return spaces[node]

    try:
        for _ in range(2):  # what is gone is no error
            fabric_limits.remove(step, opened)
            shown = _tc(lab, "east-gw", "qdisc") + _tc(lab, "east-0", "qdisc")
            assert "tbf" not in shown and "clsact" not in shown
        masters = captured(["ip", "netns", "exec", f"tb.{lab.name}.east-gw", "bridge", "link"]).stdout
        assert masters.count("master fabric ") == 3 and "fabric_leaf" not in masters
        assert _payload_mbps(lab, [("east-0", "east-1", _address(1, 1))]) > 2 * 200
        fabric_limits.add(step, opened)
        assert _payload_mbps(lab, [("east-0", "east-1", _address(1, 1))]) < 1.05 * 200
    finally:
        for space in spaces.values():
            space.close()


def _tc(lab: Lab, node: str, what: str) -> str:
    argv = ["ip", "netns", "exec", f"tb.{lab.name}.{node}", "tc", what, "show"]
    return captured(argv, check=True).stdout
