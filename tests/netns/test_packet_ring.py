"""The ring of captured packets, on a cable between two namespaces."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import run_line
from builders.conditions import LABS
from oracles import oracle

from testbed.errors import HostError
from testbed.host.measure.packet_ring import Packet, PacketRing

pytestmark = LABS

VLAN = bytes.fromhex("020000000002 020000000001 8100 0005 88b5".replace(" ", "")) + b"tagged".ljust(46, b".")
PLAIN = bytes.fromhex("020000000002 020000000001 88b5".replace(" ", "")) + b"plain".ljust(46, b".")


@pytest.fixture(scope="module")
def cable() -> Iterator[tuple[str, str]]:
    one, other = (f"{oracle.unused_name()}-ring-{it}" for it in "ab")
    try:
        for name in (one, other):
            run_line(f"ip netns add {name}")
        run_line("ip -n", one, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", other)
        for name in (one, other):
            oracle.inside(name, lambda: Path("/proc/sys/net/ipv6/conf/wire/disable_ipv6").write_text("1"))
            run_line(f"ip -n {name} link set wire up")
        yield one, other
    finally:
        for name in (one, other):
            run_line(f"ip netns del {name}", check=False)


def sender(name: str) -> socket.socket:
    def made() -> socket.socket:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        found.bind(("wire", 0))
        return found

    return oracle.inside(name, made)


def rings(cable: tuple[str, str], snaplen: int = 262_144) -> tuple[PacketRing, PacketRing]:
    here, there = (Path("/run/netns", it) for it in cable)
    return (
        PacketRing(here, "wire", outgoing=True, snaplen=snaplen),
        PacketRing(there, "wire", outgoing=False, snaplen=snaplen),
    )


def all_of(ring: PacketRing, count: int) -> list[Packet]:
    found: list[Packet] = []

    def complete() -> bool:
        found.extend(ring.read())
        return len(found) >= count

    oracle.until(complete, 5.0, f"{count} packets")
    return found


def test_what_one_end_sends_the_other_receives(cable: tuple[str, str]) -> None:
    with contextlib.closing(sender(cable[0])) as one, contextlib.closing(sender(cable[1])) as back:
        out, incoming = rings(cable)
        with contextlib.closing(out), contextlib.closing(incoming):
            began_ns = time.time_ns()
            for it in (PLAIN, VLAN):
                one.send(it)
            back.send(PLAIN)  # neither of the two is asked for the other way
            sent, arrived = all_of(out, 2), all_of(incoming, 2)
            assert [it.data for it in sent] == [it.data for it in arrived] == [PLAIN, VLAN], "with its tag put back"
            assert [it.length for it in arrived] == [len(PLAIN), len(VLAN)]
            for one_t, other_t in zip(sent, arrived, strict=True):
                assert began_ns <= one_t.at_ns <= other_t.at_ns <= time.time_ns()
            incoming.stop()
            one.send(PLAIN)
            time.sleep(0.15)  # longer than a block takes to be handed over
            assert list(incoming.read()) == [] and len(all_of(out, 1)) == 1
            incoming.count()
            assert (incoming.received, incoming.dropped) == (2, 0)


def test_a_packet_is_kept_as_far_as_asked(cable: tuple[str, str]) -> None:
    out, incoming = rings(cable, snaplen=20)
    with contextlib.closing(sender(cable[0])) as one, contextlib.closing(out), contextlib.closing(incoming):
        one.send(PLAIN)
        (found,) = all_of(incoming, 1)
        assert (found.data, found.length) == (PLAIN[:20], len(PLAIN))


def test_what_nobody_reads_is_counted(cable: tuple[str, str]) -> None:
    """The ring takes 32 MiB; what comes beyond that is dropped, and said."""
    out, incoming = rings(cable)
    large = PLAIN[:14] + bytes(1400)
    count = (40 << 20) // len(large)
    with contextlib.closing(sender(cable[0])) as one, contextlib.closing(out), contextlib.closing(incoming):
        for _ in range(count):
            one.send(large)
        found = sum(1 for _ in incoming.read())
        incoming.count()
        assert incoming.received == count and found + incoming.dropped >= count - 700  # a block is not full yet
        assert incoming.dropped > count // 10


def test_an_interface_that_does_not_exist(cable: tuple[str, str]) -> None:
    with pytest.raises(HostError, match="cannot capture on nowhere: No such device"):
        PacketRing(Path("/run/netns", cable[0]), "nowhere", outgoing=False, snaplen=64)
