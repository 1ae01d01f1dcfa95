"""Exchanges with the kernel, whose side is played here: each request is judged by its own answer."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from testbed.host.linux import rtnetlink


def acknowledgement(number: int) -> bytes:
    """struct nlmsghdr and nlmsgerr, with the request's header in it."""
    return struct.pack("=IHHII", 36, rtnetlink.NLMSG_ERROR, 0, 0, 0) + struct.pack("=i", -number) + bytes(16)


Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernels:
        ours.settimeout(rtnetlink.PATIENCE_S)
        kernels.settimeout(10.0)
        yield ours, kernels


def exchange(ends: Ends, requests: int, *answers: bytes) -> None:
    """Exchange requests with a kernel that sends these answers."""
    ours, kernels = ends

    def answer() -> None:
        kernels.recv(65536)
        for data in answers:
            kernels.send(data)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        rtnetlink.exchange(ours, [rtnetlink.link_state(1, True)] * requests)
    finally:
        thread.join(10.0)


def test_every_request_has_its_acknowledgement_in_however_many_datagrams(ends: Ends) -> None:
    exchange(ends, 3, acknowledgement(0), acknowledgement(0) + acknowledgement(0))
    assert ends[0].gettimeout() == rtnetlink.PATIENCE_S


def test_the_first_failure_is_raised_and_all_answers_are_taken(ends: Ends) -> None:
    with pytest.raises(OSError) as raised:
        exchange(ends, 3, acknowledgement(errno.ENODEV) + acknowledgement(0) + acknowledgement(errno.EEXIST))
    assert raised.value.errno == errno.ENODEV
    ends[0].settimeout(0.0)
    with pytest.raises(BlockingIOError):
        ends[0].recv(65536)


def test_answers_that_an_exchange_before_left_are_none_of_this_one(ends: Ends) -> None:
    for _ in range(2):
        ends[1].send(acknowledgement(0))
    with pytest.raises(OSError) as raised:
        exchange(ends, 1, acknowledgement(errno.ENOENT))
    assert raised.value.errno == errno.ENOENT
