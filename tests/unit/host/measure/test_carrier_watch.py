"""What the watch makes of the kernel's messages and counts; datagrams are packed here, as linux/if_link.h has them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def after(kernel: socket.socket) -> Iterator[Callable[..., list[tuple[bool, int, int, bool]]]]:
    """``after(message, …)``: (lit, changes, missed, turned) of all that was heard of ``north``."""
    heard: list[Change] = []
    last = threading.Event()

    def hear(change: Change) -> None:
        if change.interface == "last":
            last.set()
        else:
            heard.append(change)

    one = CarrierWatch({"west-gw": Path("nowhere")}, {"west-gw": {"north", "last"}}, hear)
    one.start()

    def tell(*messages: bytes) -> list[tuple[bool, int, int, bool]]:
        for it in messages:
            kernel.send(it)
        kernel.send(message("last", False, 1))
        assert last.wait(5.0)
        return [(it.lit, it.changes, it.missed, it.turned) for it in heard]

    yield tell
    one.stop()


def north(lit: bool, count: int | None) -> bytes:
    return message("north", lit, count)


def test_it_asks_for_all_interfaces_first(kernel: socket.socket) -> None:
    CarrierWatch({"west-gw": Path("nowhere")}, {"west-gw": {"north"}}, lambda change: None)
    length, kind, flags = struct.unpack_from("=IHH", kernel.recv(1000))
    assert (length, kind, flags) == (32, RTM_GETLINK, 0x301)


def test_changes_are_counted_from_the_beginning(after: Callable[..., object]) -> None:
    heard = after(north(True, 2), north(False, 3), north(False, 3), north(True, 4))
    assert heard == [(False, 1, 0, True), (True, 2, 0, True)]


def test_what_the_kernel_counted_and_did_not_tell_is_missed(after: Callable[..., object]) -> None:
    assert after(north(True, 2), north(True, 6), north(False, 9)) == [(True, 4, 4, False), (False, 7, 2, True)]


def test_a_change_before_the_first_answer_counts(after: Callable[..., object]) -> None:
    assert after(north(False, 3), north(True, 4)) == [(False, 1, 0, True), (True, 2, 0, True)]


def test_a_kernel_that_does_not_count_misses_nothing(after: Callable[..., object]) -> None:
    heard = after(north(True, None), north(False, None), north(True, None))
    assert heard == [(False, 1, 0, True), (True, 2, 0, True)]


def test_a_count_that_is_ahead_of_the_flags_waits_for_the_next_message(after: Callable[..., object]) -> None:
    assert after(north(True, 2), north(True, 3), north(False, 3)) == [(False, 1, 0, True)]


def test_other_interfaces_and_torn_messages_are_left_out(after: Callable[..., object]) -> None:
    assert after(message("lo", False, 9), north(False, 1)[:30], b"", struct.pack("=IHHII", 8, 16, 0, 0, 0)) == []
