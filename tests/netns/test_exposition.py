"""Metrics over HTTP, from this network namespace and from others."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.conditions import LABS
from oracles import oracle

from testbed.errors import HostError
from testbed.host.metrics.exposition import CONTENT_TYPE, Exposition

pytestmark = LABS

OURS = Path("/proc/self/ns/net")


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        number = found.getsockname()[1]
    yield number


def test_only_metrics_are_answered(port: int) -> None:
    told = Exposition(OURS, "127.0.0.1", port, lambda: b"up 1\n")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?x=1", timeout=10) as answer:
            assert (answer.headers["Content-Type"], answer.read()) == (CONTENT_TYPE, b"up 1\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        with pytest.raises(HostError, match=f"cannot serve metrics at 127.0.0.1:{port}: Address already in use"):
            Exposition(OURS, "127.0.0.1", port, lambda: b"")
    finally:
        told.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


def test_when_it_is_closed_nobody_reads_for_it_any_more(port: int) -> None:
    """Else what a scrape reads is closed under its hands, and the next file of that number is read instead."""
    reading, go_on = threading.Event(), threading.Event()

    def text() -> bytes:
        reading.set()
        assert go_on.wait(10)
        return b""

    told = Exposition(OURS, "127.0.0.1", port, text)
    scrape = threading.Thread(target=lambda: socket_says(port, b"GET /metrics HTTP/1.0\r\n\r\n"))
    scrape.start()
    assert reading.wait(10)
    closing = threading.Thread(target=told.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    closing.join(10)
    scrape.join(10)
    assert not closing.is_alive() and not scrape.is_alive()
    reading.clear()
    with pytest.raises(HostError, match="taken down"):
        told.answer()
    assert not reading.is_set()
    oracle.until(lambda: not any(it.name == "exporter" for it in threading.enumerate()), 10, "its thread ends")
    told.close()


def socket_says(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(words)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
