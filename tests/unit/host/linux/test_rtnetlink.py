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


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernels:
        ours.settimeout(rtnetlink.PATIENCE_S)
        kernels.settimeout(10.0)
        yield ours, kernels


def answering(kernels: socket.socket, *answers: bytes) -> threading.Thread:
    def body() -> None:
        kernels.recv(65536)
        for answer in answers:
            kernels.send(answer)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


REQUEST = rtnetlink.link_state(1, True)


def test_every_request_has_its_acknowledgement_in_however_many_datagrams(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, kernels = ends
    thread = answering(kernels, acknowledgement(0), acknowledgement(0) + acknowledgement(0))
    rtnetlink.exchange(ours, [REQUEST] * 3)
    thread.join(10.0)
    assert ours.gettimeout() == rtnetlink.PATIENCE_S


def test_the_first_failure_is_raised_and_all_answers_are_taken(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, kernels = ends
    answering(kernels, acknowledgement(errno.ENODEV) + acknowledgement(0) + acknowledgement(errno.EEXIST))
    with pytest.raises(OSError) as raised:
        rtnetlink.exchange(ours, [REQUEST] * 3)
    assert raised.value.errno == errno.ENODEV
    ours.settimeout(0.0)
    with pytest.raises(BlockingIOError):
        ours.recv(65536)


def test_answers_that_an_exchange_before_left_are_none_of_this_one(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, kernels = ends
    kernels.send(acknowledgement(0))
    kernels.send(acknowledgement(0))
    answering(kernels, acknowledgement(errno.ENOENT))
    with pytest.raises(OSError) as raised:
        rtnetlink.exchange(ours, [REQUEST])
    assert raised.value.errno == errno.ENOENT
