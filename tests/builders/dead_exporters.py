"""Addresses of exporters that do not answer, each in its own way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
Address = tuple[str, int]


@contextlib.contextmanager
def listening(backlog: int = 128) -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0), backlog=backlog) as server:
        yield server


@contextlib.contextmanager
def silent() -> Iterator[Address]:
    """Connections are accepted, by the kernel, and never answered."""
    with listening() as server:
        yield server.getsockname()


@contextlib.contextmanager
def black_hole() -> Iterator[Address]:
    """Packets that ask for a connection are dropped: the queue of connections is full."""
    with listening(backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()


def refusing() -> Address:
    """Nobody listens any more."""
    with listening() as server:
        address: Address = server.getsockname()
    return address


@contextlib.contextmanager
def addresses(count: int) -> Iterator[list[Address]]:
    """All three kinds in turn."""
    with silent() as one, black_hole() as two:
        kinds = (one, two, refusing())
        yield [kinds[number % 3] for number in range(count)]
