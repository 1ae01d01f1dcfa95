"""Retransmitted bytes are read from the kernel, by peer; nothing is reported of sockets that lost nothing."""

from __future__ import annotations

import socket
from pathlib import Path

from testbed_agents.tcp_info import retransmitted


def test_a_connection_that_loses_nothing_is_left_out_and_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            near.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(far.recv(65536))
            before = set(Path("/proc/self/fd").iterdir())
            assert retransmitted() == {}
            assert set(Path("/proc/self/fd").iterdir()) == before
            near.close()
            assert far.recv(1) == b"", "no copy keeps the connection open"
