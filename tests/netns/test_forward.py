"""A port forwarded into a network namespace: an echo server inside, a client outside."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import run_line
from builders.conditions import LABS
from oracles import oracle

from testbed.errors import NotAllowed, UserError
from testbed.host.metrics.port_forward import AT_ONCE, Forwarder, into_namespace

pytestmark = LABS

PATIENCE_S = 10.0


def all_of(connection: socket.socket) -> bytes:
    """What comes until its other end says that there is no more."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.fixture
def place() -> Iterator[str]:
    """Name of a network namespace with a loopback."""
    name = f"{oracle.unused_name()}-forward"
    run_line(f"ip netns add {name}")
    try:
        run_line(f"ip -n {name} link set lo up")
        yield name
    finally:
        run_line(f"ip netns del {name}")


@pytest.fixture
def echo(place: str) -> Iterator[int]:
    """Port of a server in ``place`` that says all that it heard, once it has heard the end of it."""
    listener = oracle.inside(place, lambda: socket.create_server(("127.0.0.1", 0)))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.sendall(all_of(peer))

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(PATIENCE_S)


def handle(place: str) -> Path:
    return Path("/run/netns", place)


def said(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:

        def send() -> None:
            client.sendall(words)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        heard = all_of(client)
        sender.join(PATIENCE_S)
    return heard


def test_what_is_said_comes_whole_and_in_both_directions(place: str, echo: int) -> None:
    """An end of one direction leaves the other open: the answer comes after it."""
    words = bytes(range(256)) * 20_000
    with Forwarder(into_namespace(handle(place), ("127.0.0.1", echo)), 0) as forwarder:
        assert said(forwarder.port, words) == words
        assert said(forwarder.port, b"") == b""
        assert forwarder.url == f"http://127.0.0.1:{forwarder.port}"


def test_where_nobody_listens_the_connection_is_closed(place: str) -> None:
    with Forwarder(into_namespace(handle(place), ("127.0.0.1", 9)), 0) as forwarder:
        with socket.create_connection(("127.0.0.1", forwarder.port), PATIENCE_S) as client:
            assert client.recv(1) == b""
        with socket.create_connection(("127.0.0.1", forwarder.port), PATIENCE_S) as client:
            assert client.recv(1) == b"", "and the next one is taken too"


def test_a_namespace_that_is_gone_closes_the_connection() -> None:
    with (
        Forwarder(into_namespace(Path("/run/netns/never-made"), ("127.0.0.1", 9)), 0) as forwarder,
        socket.create_connection(("127.0.0.1", forwarder.port), PATIENCE_S) as client,
    ):
        assert client.recv(1) == b""


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_more_connections_than_are_led_at_once_are_served_in_turn(place: str, echo: int) -> None:
    """A browser with many panels, or somebody hostile: neither ends it, nor takes all descriptors of the process."""
    before = descriptors()
    with Forwarder(into_namespace(handle(place), ("127.0.0.1", echo)), 0) as forwarder, contextlib.ExitStack() as held:
        for _ in range(2 * AT_ONCE):
            held.enter_context(socket.create_connection(("127.0.0.1", forwarder.port), PATIENCE_S))
        oracle.until(lambda: descriptors() - before >= 4 * AT_ONCE, PATIENCE_S, "as many as there is room for are led")
        assert descriptors() - before < 5 * AT_ONCE  # 2 of the clients, 1 taken, 1 inside; not 2 and 2
        held.close()
        assert said(forwarder.port, b"still there") == b"still there"


def test_without_a_free_descriptor_it_waits_for_one(place: str, echo: int) -> None:
    """accept(2) fails with EMFILE while the process is at its limit, and the forwarder goes on afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Forwarder(into_namespace(handle(place), ("127.0.0.1", echo)), 0) as forwarder:
        with socket.socket() as client:
            client.settimeout(PATIENCE_S)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            try:
                client.connect(("127.0.0.1", forwarder.port))
                time.sleep(0.3)  # it tries meanwhile, and must not give up
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert said(forwarder.port, b"still there") == b"still there"


def test_when_it_is_closed_nobody_listens(place: str, echo: int) -> None:
    forwarder = Forwarder(into_namespace(handle(place), ("127.0.0.1", echo)), 0)
    forwarder.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forwarder.port), PATIENCE_S)


def test_ports_that_cannot_be_had(place: str) -> None:
    with pytest.raises(UserError, match=r"expected a port from 0 .* to 65535, got 70000"):
        Forwarder(into_namespace(handle(place), ("127.0.0.1", 9)), 70_000)
    with (
        Forwarder(into_namespace(handle(place), ("127.0.0.1", 9)), 0) as first,
        pytest.raises(UserError, match=rf"port {first.port} of 127.0.0.1 is in use; choose another with --port"),
    ):
        Forwarder(into_namespace(handle(place), ("127.0.0.1", 9)), first.port)
    assert issubclass(NotAllowed, UserError)
