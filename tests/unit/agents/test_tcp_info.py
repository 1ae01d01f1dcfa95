"""Retransmitted bytes are read from the kernel, by peer; nothing is reported of sockets that lost nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed_agents import tcp_info
from testbed_agents.tcp_info import Connections


@contextlib.contextmanager
def connection(size: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open one whose both ends are of this process, over which ``size`` bytes went."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            near.sendall(b"x" * size)
            received = 0
            while received < size:
                received += len(far.recv(65536))
            yield near, far


def test_a_connection_that_loses_nothing_is_left_out_and_stays_open() -> None:
    with connection(100_000) as (near, far):
        before = set(Path("/proc/self/fd").iterdir())
        connections = Connections("")
        connections.read()
        assert connections.retransmitted == {}
        assert set(Path("/proc/self/fd").iterdir()) <= before
        near.close()
        assert far.recv(1) == b"", "no copy keeps the connection open"


def test_connections_are_seen_from_the_read_after_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connections, "_crosses", lambda self, peer: True)
    found = Connections("lo")
    found.read()
    none = found.across.sent
    with connection(1000):
        found.read()
        assert found.across.sent == none + 1000
        with connection(2000):
            found.read()
            assert found.across.sent == none + 3000
    found.read()
    assert found.across.sent == none


def test_a_connection_in_the_place_of_another_is_seen_before_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connections, "_crosses", lambda self, peer: True)
    found = Connections("lo")
    with contextlib.ExitStack() as kept:
        kept.enter_context(Path("/dev/null").open())
        found.read()
        none = found.across.sent
        with contextlib.ExitStack() as files:
            for _ in range(3):
                files.enter_context(Path("/dev/null").open())
            found.read()  # now as many descriptors as with a connection and its listener
        with connection(1000):
            for _ in range(tcp_info.LOOKS_EVERY):
                found.read()
            assert found.across.sent == none + 1000
