"""What the watch makes of the kernel's messages and counts; datagrams are packed here, as linux/if_link.h has them."""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.tables import table

from testbed.host.measure import carrier_watch
from testbed.host.measure.carrier_watch import CarrierWatch, Change

RTM_NEWLINK, RTM_GETLINK, IFLA_IFNAME, IFLA_MTU, IFLA_CARRIER_CHANGES = 16, 18, 3, 4, 35
IFF_LOWER_UP = 1 << 16


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def message(name: str, lit: bool, count: int | None) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 7, IFF_LOWER_UP if lit else 0, 0)
    body += attribute(IFLA_MTU, struct.pack("=I", 1500)) + attribute(IFLA_IFNAME, name.encode() + b"\0")
    if count is not None:
        body += attribute(IFLA_CARRIER_CHANGES, struct.pack("=I", count))
    return struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, 0, 0, 0) + body


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The kernel's end of the one socket that the watch listens to."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    monkeypatch.setattr(carrier_watch.namespace, "inside", lambda path, work: theirs)
    with ours:
        yield ours


def north(lit: bool, count: int | None) -> bytes:
    return message("north", lit, count)


def test_it_asks_for_all_interfaces_first(kernel: socket.socket) -> None:
    CarrierWatch({"west-gw": Path("nowhere")}, {"west-gw": {"north"}}, lambda change: None)
    length, kind, flags = struct.unpack_from("=IHH", kernel.recv(1000))
    assert (length, kind, flags) == (32, RTM_GETLINK, 0x301)


@table(
    "messages, heard",
    {
        "changes are counted from the beginning": (
            [north(True, 2), north(False, 3), north(False, 3), north(True, 4)],
            [(False, 1, 0, True), (True, 2, 0, True)],
        ),
        "what the kernel counted and did not send is missed": (
            [north(True, 2), north(True, 6), north(False, 9)],
            [(True, 4, 4, False), (False, 7, 2, True)],
        ),
        "a change before the first answer counts": (
            [north(False, 3), north(True, 4)],
            [(False, 1, 0, True), (True, 2, 0, True)],
        ),
        "of a kernel that does not count nothing is missed": (
            [north(True, None), north(False, None), north(True, None)],
            [(False, 1, 0, True), (True, 2, 0, True)],
        ),
        "a count that is ahead of the flags waits for the next message": (
            [north(True, 2), north(True, 3), north(False, 3)],
            [(False, 1, 0, True)],
        ),
        "other interfaces and torn messages are left out": (
            [message("lo", False, 9), north(False, 1)[:30], b"", struct.pack("=IHHII", 8, 16, 0, 0, 0)],
            [],
        ),
    },
)
def test_changes_of_a_carrier(
    kernel: socket.socket, messages: list[bytes], heard: list[tuple[bool, int, int, bool]]
) -> None:
    """(lit, changes, missed, turned) of all that was heard of ``north``."""
    changes: queue.Queue[Change] = queue.Queue()
    watch = CarrierWatch({"west-gw": Path("nowhere")}, {"west-gw": {"north", "last"}}, changes.put)
    watch.start()
    for data in (*messages, message("last", False, 1)):
        kernel.send(data)
    received: list[Change] = []
    while not received or received[-1].interface != "last":
        received.append(changes.get(timeout=5.0))
    watch.stop()
    assert [(change.lit, change.changes, change.missed, change.turned) for change in received[:-1]] == heard
