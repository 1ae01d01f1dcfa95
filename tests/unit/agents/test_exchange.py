"""Two replicas exchange over two connections, one for each direction; else large messages would take turns."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from builders import loopback_ranks
from testbed_agents import watched
from testbed_agents.exchange.sums import begin_sum

ELEMENTS = 1_000_000
LARGE_BYTES = 2 * ELEMENTS
"""Half of one message: nothing else comes near it."""
RECEIVED_AT, SENT_AT = 128, 200
"""Of tcpi_bytes_received and tcpi_bytes_sent in struct tcp_info (linux/tcp.h)."""


class Order:
    """Notes the kind of each operation when it begins."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def entered(self, operation: watched.Operation) -> None:
        self.kinds.append(operation.kind)

    def left(self, operation: watched.Operation) -> None: ...

    def added(self, *sum_of_messages: Any) -> None: ...


def busy_connections() -> list[tuple[bool, bool]]:
    """Return, of each connection of this process that carried a large message: whether it sent, and received one."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(each.name))
        except OSError:
            continue
        try:
            with socket.socket(fileno=copy) as connection:
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        except OSError:
            with contextlib.suppress(OSError):  # no socket
                os.close(copy)
            continue
        received, sent = (struct.unpack_from("=Q", told, at)[0] > LARGE_BYTES for at in (RECEIVED_AT, SENT_AT))
        if sent or received:
            found.append((sent, received))
    return sorted(found)


def test_messages_of_opposite_directions_have_connections_of_their_own() -> None:
    def rank_of(rank: int) -> Any:
        order = Order()
        group: Any = dist.new_group([0, 1])
        group.hooks.observer = order
        ways = [begin_sum(torch.full((ELEMENTS,), float(rank + 1)), group, (0, 1)) for _ in range(2)]
        sums = [way.wait() for way in ways]
        group.hooks.observer = None
        dist.barrier()
        return order.kinds, [float(each.sum()) for each in sums], busy_connections()

    for kinds, sums, connections in loopback_ranks.run(2, rank_of, backend=watched.BACKEND):
        assert kinds == ["recv", "send"] * 2, "gloo sends nothing before it knows that the receiver is ready"
        assert sums == [3.0 * ELEMENTS] * 2
        assert connections == [(False, True), (True, False)]


def test_a_receipt_from_any_source_is_the_other_rank_s() -> None:
    def rank_of(rank: int) -> float:
        value = torch.full((4,), float(rank))
        going: Any = dist.isend(value.clone(), 1 - rank)
        source = dist.recv(value)  # of any source
        going.wait()
        assert source == 1 - rank
        return float(value[0])

    assert loopback_ranks.run(2, rank_of, backend=watched.BACKEND) == [1.0, 0.0]
