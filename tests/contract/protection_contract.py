"""Contract of a protected link as seen by users, for every emulator: subclass and provide ``lab``.

The oracles are datagrams with kernel timestamps, ping, and the kernel's own count of carrier losses.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import host_stalls
import pytest
from oracles import oracle

import testbed

FILE = """
scale: 1000
defaults: {link: {optics: OpenZR+}}
sites: {east: {}, west: {}}
ducts: {bridge: 3 km, motorway: 37 km, coast: 437 km, valley: 337 km}
links:
  one: {between: [east, west], via: [bridge, motorway],
        protection: {type: 1+1, via: [bridge, coast], switch: SWITCH, wait_to_restore: 1s}}
  two: {between: [east, west], via: [motorway],
        protection: {type: restoration, via: [valley], switch: 1s, wait_to_restore: 1s}}
"""
GATEWAYS = ("east-gw", "west-gw")
SO_TIMESTAMPNS, NUMBER = 35, struct.Struct("!Q")
MOST_SWITCH_S = 0.050
"""Limit of ITU-T G.841, and the default of 1+1."""
SECOND_PATH_S = 2.2e-3
"""One-way delay of 440 km at 5 us per km."""
ERROR_S = 1e-3
"""Error of the minimum of 20 RTTs on a machine with one noisy CPU; the paths differ by 3 and 4 ms."""


class Gap(NamedTuple):
    whole_s: float
    unstalled_s: float
    """Less the stalls of the host."""


class NoLoss(AssertionError):
    """No datagram was lost in time."""


class Datagrams:
    """Send a numbered datagram every ``every_s`` from one end of a link to the other inside the ``with`` block."""

    def __init__(self, lab: testbed.Lab, link: str, every_s: float) -> None:
        self._every_s = every_s
        west = oracle.netns(lab.name, "west-gw")
        address = oracle.addresses(west, link)["inet"]

        def open_socket() -> socket.socket:
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        self._receiver = oracle.inside(west, open_socket)
        self._receiver.setsockopt(socket.SOL_SOCKET, oracle.SO_RCVBUFFORCE, 64 << 20)
        self._receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._receiver.bind((address, 0))
        self._sender = oracle.inside(oracle.netns(lab.name, "east-gw"), open_socket)
        self._sender.connect(self._receiver.getsockname())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._sent_ns: list[int] = []
        self._last: tuple[int, int] | None = None
        """Number and timestamp, in ns, of the last processed arrival."""

    def __enter__(self) -> Datagrams:
        self._thread.start()
        self._next(5.0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._sender.close()
        self._receiver.close()

    def gap(self, bound_s: float) -> Gap:
        """Wait for the next loss, at most ``bound_s``; return the time from the sending of the last datagram before it
        to the arrival of the first one after it.

        The gap is at least the outage plus the delay of the new path. A stalled CPU can only increase it.
        """
        deadline = time.monotonic() + bound_s
        before = self._last or self._next(bound_s)
        while (after := self._next(deadline - time.monotonic()))[0] == before[0] + 1:
            before = after
        wall_s = time.time() - time.monotonic()
        begin, end = self._sent_ns[before[0]] / 1e9 - wall_s, after[1] / 1e9 - wall_s
        return Gap(end - begin, host_stalls.elapsed_s(begin, end))

    def _next(self, bound_s: float) -> tuple[int, int]:
        self._receiver.settimeout(max(1e-3, bound_s))
        try:
            data, ancillary, _, _ = self._receiver.recvmsg(64, 64)
        except TimeoutError:
            raise NoLoss("expected a loss followed by an arrival within the time limit") from None
        ((_, _, stamp),) = ancillary
        seconds, nanoseconds = struct.unpack("=qq", stamp)
        self._last = (NUMBER.unpack(data)[0], seconds * 10**9 + nanoseconds)
        return self._last

    def _send(self) -> None:
        number = 0
        while not self._over.wait(self._every_s):
            self._sent_ns.append(time.time_ns())
            self._sender.send(NUMBER.pack(number))
            number += 1


def _same(before: list[object], after: list[object]) -> bool:
    """Compare two states except for netem's seed, which differs after each change."""

    def without_seed(value: object) -> object:
        return re.sub(r"'seed': \d+", "", repr(value))

    return without_seed(before) == without_seed(after)


def protected_lab(folder: Path, emulator: str, switch_s: float = MOST_SWITCH_S) -> AbstractContextManager[testbed.Lab]:
    """Return a lab of :data:`FILE` with 1+1 within ``switch_s``.

    It may be uncertified: one noisy CPU may move a median out of tolerance.
    """
    file = folder / "protected.yaml"
    file.write_text(FILE.replace("SWITCH", f"{switch_s * 1e3:g}ms"))
    return testbed.up(str(file), name=oracle.unused_name(), agents=False, emulator=emulator, allow_uncertified=True)


class ProtectionContract:
    switch_s = MOST_SWITCH_S
    every_s = 0.001
    late_s = 0.005
    """Allowed excess of the gap over the switching time, at the minimum of three: two datagram intervals, and the time
    to change a fiber."""

    @pytest.fixture(autouse=True)
    def _on_the_working_path(self, lab: testbed.Lab) -> Iterator[None]:
        yield
        lab.heal()
        self.until_on(lab, "one", None)
        self.until_on(lab, "two", None)

    @staticmethod
    def says(lab: testbed.Lab, link: str) -> str | None:
        """Return the protection state of a link as shown by status."""
        (found,) = (it for it in lab.status().links if it.name == link)
        return next((it for it in found.phases if it in ("on protection", "switching", "dark")), None)

    def until_on(self, lab: testbed.Lab, link: str, state: str | None) -> None:
        oracle.until(lambda: self.says(lab, link) == state, 8.0, f"{link} is {state or 'on its working path'}")

    @staticmethod
    def rtt_s(lab: testbed.Lab, link: str) -> float:
        to = oracle.addresses(oracle.netns(lab.name, "west-gw"), link)["inet"]
        return min(oracle.ping(oracle.netns(lab.name, "east-gw"), to, count=20))

    @staticmethod
    def downs(lab: testbed.Lab, link: str) -> list[int]:
        counter = f"/sys/class/net/{link}/carrier_down_count"
        return [
            int(oracle.run("ip", "netns", "exec", oracle.netns(lab.name, gateway), "cat", counter))
            for gateway in GATEWAYS
        ]

    @pytest.mark.timing("a gap of 50 ms")
    def test_1_plus_1_is_a_short_gap_that_no_port_sees_then_the_second_path(self, lab: testbed.Lab) -> None:
        before, bare = self.downs(lab, "one"), self.rtt_s(lab, "one")
        gaps, backs = [], []
        for _ in range(3):
            with Datagrams(lab, "one", self.every_s) as datagrams:
                with lab.cut("one"):
                    gaps.append(datagrams.gap(5.0))
                    # round trip over 400 km more, at 5 us per km
                    assert self.rtt_s(lab, "one") - bare == pytest.approx(4e-3, abs=ERROR_S)
                with suppress(NoLoss):  # a sender that stalls while the path switches back loses nothing
                    backs.append(datagrams.gap(8.0))
                assert self.rtt_s(lab, "one") == pytest.approx(bare, abs=ERROR_S)
        print("outage:", gaps, "on return:", backs)
        assert backs, "no datagram was lost when the path switched back"
        assert min(gap.whole_s for gap in gaps) >= self.switch_s, gaps
        assert min(gap.unstalled_s for gap in gaps) <= self.switch_s + SECOND_PATH_S + self.late_s, gaps
        assert min(gap.unstalled_s for gap in backs) <= MOST_SWITCH_S + self.late_s, backs
        assert self.downs(lab, "one") == before, "routing never sees it"

    def test_what_both_paths_share_is_not_protected(self, lab: testbed.Lab) -> None:
        with lab.cut("bridge"):
            for gateway in GATEWAYS:
                no_carrier = partial(oracle.no_carrier, oracle.netns(lab.name, gateway), "one")
                oracle.until(no_carrier, 3.0, "one has no carrier")
            assert self.says(lab, "one") == "dark"
        oracle.until(
            lambda: not oracle.no_carrier(oracle.netns(lab.name, "east-gw"), "one"), 3.0, "one has its carrier"
        )

    def test_two_cuts_in_the_two_paths_are_dark_and_heal_in_any_order(self, lab: testbed.Lab) -> None:
        east, bare = oracle.netns(lab.name, "east-gw"), self.rtt_s(lab, "one")
        first = lab.cut("one")
        self.until_on(lab, "one", "on protection")
        second = lab.cut("coast")
        oracle.until(lambda: oracle.no_carrier(east, "one"), 3.0, "both paths are cut")
        first.heal()
        self.until_on(lab, "one", None)
        oracle.until(lambda: not oracle.no_carrier(east, "one"), 3.0, "the working path has its carrier")
        assert self.rtt_s(lab, "one") == pytest.approx(bare, abs=ERROR_S)
        second.heal()
        assert self.says(lab, "one") is None

    @pytest.mark.timing("how long a carrier was lost")
    def test_restoration_loses_the_carrier_for_a_second_and_comes_back_longer(self, lab: testbed.Lab) -> None:
        before, bare, east = self.downs(lab, "two"), self.rtt_s(lab, "two"), oracle.netns(lab.name, "east-gw")
        began = time.monotonic()
        with lab.cut("two"):
            oracle.until(lambda: oracle.no_carrier(east, "two"), 0.9, "the carrier is lost")
            oracle.until(lambda: not oracle.no_carrier(east, "two"), 4.0, "it is restored")
            assert time.monotonic() - began >= 1.0
            self.until_on(lab, "two", "on protection")
            # 300 km more
            assert self.rtt_s(lab, "two") - bare == pytest.approx(3e-3, abs=ERROR_S)
        self.until_on(lab, "two", None)
        assert [after - it for after, it in zip(self.downs(lab, "two"), before, strict=True)] == [1, 1]

    def test_back_on_the_working_path_everything_is_as_it_was(self, lab: testbed.Lab) -> None:
        def state() -> list[object]:
            found: list[object] = []
            for node in (*GATEWAYS, "plant"):
                netns = oracle.netns(lab.name, node)
                found += [
                    [(it["ifname"], it["flags"], it["operstate"]) for it in oracle.ip(netns, "-d", "link")],
                    [(it["ifname"], it["addr_info"]) for it in oracle.ip(netns, "addr")],
                    oracle.ip(netns, "route"),
                    [
                        (it["dev"], it["kind"], it.get("options"))
                        for it in json.loads(oracle.run("ip", "netns", "exec", netns, "tc", "-j", "qdisc", "show"))
                    ],
                ]
            return found

        before = state()
        lab.cut("one")
        lab.cut("two")
        self.until_on(lab, "one", "on protection")
        self.until_on(lab, "two", "on protection")
        lab.cut("coast")
        self.until_on(lab, "one", "dark")
        lab.heal()
        self.until_on(lab, "one", None)
        self.until_on(lab, "two", None)
        oracle.until(lambda: _same(before, state()), 3.0, "the state is as before")

    def test_events_tell_each_switch_and_when(self, lab: testbed.Lab, tmp_path: Path) -> None:
        with lab.cut("one"):
            self.until_on(lab, "one", "on protection")
        log = [line for line in lab.logs() if "protection-switched link=one was=switching to=protection" in line]
        times = {key: float(value) for key, value in re.findall(r"(\w+_t)=([\d.]+)", log[-1])}
        assert times["planned_t"] <= times["command_t"] <= times["ack_t"]
