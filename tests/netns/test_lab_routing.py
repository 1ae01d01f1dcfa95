"""Labs of more than two sites: the shortest fiber first, the bypass when it is cut, and no routing loops."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time

import host_stalls
import pytest
from builders.conditions import ALONE, thorough
from builders.labs import Lab, address_of, ns, shared_lab
from oracles import oracle

pytestmark = ALONE

RING = """
scale: 1000
sites: {a: {nodes: 1}, b: {nodes: 1}, c: {nodes: 1}, d: {nodes: 1}}
links:
  ab: {between: [a, b], km: 20}
  bc: {between: [b, c], km: 20}
  cd: {between: [c, d], km: 30}
  da: {between: [d, a], km: 30}
"""
WATCHED_S = 0.4
GAP_S = 0.1


lab = shared_lab({"metro-triangle": "metro-triangle", "ring": RING})


def ends(lab: Lab) -> tuple[str, str, str]:
    """Two nodes, and a link on the shortest way between them; in the ring not one of the first gateway's own."""
    ring = len(lab.topology.links) == 4
    return ("a-0", "c-0", "bc") if ring else ("east-0", "west-0", "east-west")


def hop_limits(lab: Lab) -> int:
    """Packets that gateways threw away because they had been on the way too long, v4 and v6, by the kernels' count."""
    count = 0
    for site in lab.topology.sites:
        inside = ("ip", "netns", "exec", ns(lab, site.gateway), "cat")
        heads, values = (
            line.split() for line in oracle.run(*inside, "/proc/net/snmp").splitlines() if line.startswith("Icmp:")
        )
        count += int(values[heads.index("OutTimeExcds")])
        six = dict(line.split() for line in oracle.run(*inside, "/proc/net/snmp6").splitlines())
        count += int(six["Icmp6OutTimeExcds"])
    return count


@pytest.mark.parametrize("family", ["inet", "inet6"])
def test_the_least_round_trip_is_that_of_the_shortest_fiber(lab: Lab, family: str) -> None:
    here, there, link = ends(lab)
    address = address_of(lab, there, family=family)
    healthy = min(oracle.ping(ns(lab, here), address, count=20))
    ring = link == "bc"
    with lab.cut(link):
        oracle.until(lambda: oracle.ping(ns(lab, here), address), 5.0, "there is a way around")
        around = min(oracle.ping(ns(lab, here), address, count=20))
    longer_km = 60 - 40 if ring else 55 + 62 - 40
    # Of the triangle's way around one gateway more is part; the ring's has as many.
    assert around - healthy == pytest.approx(longer_km * 10e-6, abs=100e-6)
    oracle.until(
        lambda: min(oracle.ping(ns(lab, here), address, count=5)) < (healthy + around) / 2, 5.0, "back on the short way"
    )


class Datagrams:
    """A UDP datagram each millisecond from one namespace to another; ``arrivals`` are the times of receipt."""

    def __init__(self, sender: str, receiver: str, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._receiver, self._sender = (
            oracle.inside(place, lambda: socket.socket(family, socket.SOCK_DGRAM)) for place in (receiver, sender)
        )
        self._receiver.bind((address, 0))
        self._receiver.settimeout(0.2)
        self._sender.connect(self._receiver.getsockname()[:2])
        self.arrivals: list[float] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=it) for it in (self._send, self._receive)]

    def __enter__(self) -> Datagrams:
        for thread in self._threads:
            thread.start()
        oracle.until(lambda: len(self.arrivals) > 50, 5.0, "datagrams arrive")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._receiver.close()

    def gap_s(self, begin: float) -> float:
        """The longest silence from ``begin`` until long after the paths are whole again, less the host's stalls."""
        oracle.until(lambda: self.arrivals[-1] > begin + WATCHED_S, 5.0, "datagrams arrive again")
        return host_stalls.longest_gap_s([begin, *(t for t in list(self.arrivals) if t >= begin)])

    def _send(self) -> None:
        while not self._stop.wait(0.001):
            with contextlib.suppress(OSError):  # unreachable for a moment: that is what is measured
                self._sender.send(b"x")

    def _receive(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                self._receiver.recv(16)
                self.arrivals.append(time.monotonic())


@pytest.mark.parametrize("family", ["inet", thorough("inet6")])
def test_datagrams_pause_for_less_than_a_tenth_of_a_second(lab: Lab, family: str) -> None:
    """The longest silence around the cut and around the heal, by the median of three; nothing goes in circles."""
    here, there, link = ends(lab)
    before = hop_limits(lab)
    gaps: dict[str, list[float]] = {"cut": [], "heal": []}
    with Datagrams(ns(lab, here), ns(lab, there), address_of(lab, there, family=family)) as flow:
        for _ in range(3):
            t = time.monotonic()
            fault = lab.cut(link)
            gaps["cut"].append(flow.gap_s(t))
            t = time.monotonic()
            fault.heal()
            gaps["heal"].append(flow.gap_s(t))
    for what, seen in gaps.items():
        assert statistics.median(seen) < GAP_S, (what, seen)
    assert hop_limits(lab) == before, "a packet went round until its hop limit was reached"
