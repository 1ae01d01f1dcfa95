"""The bytes of each hop against gloo itself: what the kernel counted on each connection between ranks over loopback."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from builders.inputs import by_input
from builders.loopback_ranks import run

from testbed.core.training.gloo_bytes import header_bytes, hop_bytes, least_into, site_bytes
from testbed.core.training.strategy_operation import Kind, Operation

ELEMENTS = 60_000
"""Divisible by 3 and 4; 240 kB, beside which gloo's 96 bytes a message are nothing."""
BYTES = 4 * ELEMENTS
OFTEN = 20
"""All-reduces in a row, whose answers outweigh the messages of a barrier."""
TCP_INFO, BYTES_SENT = 11, 200
"""linux/tcp.h: the option, and the offset of tcpi_bytes_sent, which tcpi_bytes_retrans follows."""


def connections() -> dict[tuple[int, int], int]:
    """Return the bytes that this process has sent on each of its connections, by own and peer's port, once each."""
    found = {}
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as each:
                if each.type == socket.SOCK_STREAM and each.family in (socket.AF_INET, socket.AF_INET6):
                    ports = each.getsockname()[1], each.getpeername()[1]
                    told = each.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 232)
                    sent, again = struct.unpack_from("QQ", told, BYTES_SENT)
                    found[ports] = sent - again
        except OSError:
            continue
    return found


def settled() -> dict[tuple[int, int], int]:
    """Return the counts once they stand still, bounded."""
    before, until = connections(), time.monotonic() + 5
    while time.monotonic() < until:
        time.sleep(0.01)
        after = connections()
        if after == before:
            break
        before = after
    return before


def measured(rank: int) -> tuple[list[dict[tuple[int, int], int]], list[tuple[int, int]]]:
    size = dist.get_world_size()
    whole, part = torch.ones(ELEMENTS), torch.ones(ELEMENTS // size)

    def send() -> None:
        if rank == 0:
            dist.send(whole, 1)
        elif rank == 1:
            dist.recv(whole, 0)

    def often() -> None:
        for _ in range(OFTEN):
            dist.all_reduce(whole)

    calls: list[Any] = [
        lambda: dist.all_reduce(whole),
        lambda: dist.reduce_scatter_tensor(part, whole),
        lambda: dist.all_gather_into_tensor(whole, part),
        lambda: dist.all_to_all_single(torch.empty(ELEMENTS), whole),
        lambda: dist.broadcast(whole, 1),
        send,
        often,
    ]
    found = []
    for call in calls:
        call()  # connections are made by the first use of a pair
        dist.barrier()
        before = settled()
        dist.barrier()  # two messages of 96 bytes
        call()
        after = settled()
        found.append({ports: count - before.get(ports, 0) for ports, count in after.items()})
        dist.barrier()
    return found, list(connections())


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.filterwarnings("ignore")
def test_each_hop_carries_what_gloo_sends_over_it(size: int) -> None:
    told = run(size, measured)
    owner = {ports: rank for rank, (_, all_ports) in enumerate(told) for ports in all_ports}
    everyone = tuple(range(size))
    ring: tuple[Kind, ...] = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
    expected = [operation(kind, *everyone, byte_count=BYTES) for kind in ring]
    expected += [
        operation("broadcast", 1, *(rank for rank in everyone if rank != 1), byte_count=BYTES),
        operation("send", 0, 1, byte_count=BYTES),
    ]

    def sent(index: int) -> dict[tuple[int, int], int]:
        hops = defaultdict[tuple[int, int], int](int)
        for rank, (found, _) in enumerate(told):
            for (own, peers), count in found[index].items():
                if (peers, own) in owner:
                    hops[rank, owner[peers, own]] += count
        return hops

    for index, exchange in enumerate(expected):
        payload = hop_bytes(exchange)
        carried = {hop: count for hop, count in sent(index).items() if count > 0.01 * BYTES}
        assert carried == pytest.approx(payload, rel=0.01), exchange.kind
        headers = {hop: count for hop, count in header_bytes(exchange).items() if hop in carried}
        beyond = {hop: count - payload[hop] for hop, count in carried.items()}
        # Not all of gloo's answers have come when the counters are read; a barrier's messages may be among them.
        assert beyond == pytest.approx(headers, abs=400), exchange.kind
    # In a ring of three ranks nothing but the answers goes the other way.
    hops, headers, payload = sent(len(expected)), header_bytes(expected[0]), hop_bytes(expected[0])
    back = {hop: count for hop, count in hops.items() if hop in headers and hop not in payload}
    assert back == pytest.approx({hop: OFTEN * headers[hop] for hop in back}, abs=400)
    assert bool(back) == (size > 2)


def operation(kind: Kind, *ranks: int, byte_count: float = 120) -> Operation:
    return Operation(kind, ranks, byte_count, "gradients")


def test_hops_of_a_group_are_in_the_order_of_rank_numbers_however_it_is_written() -> None:
    assert hop_bytes(operation("all_reduce", 3, 2, 0, byte_count=300)) == {(0, 3): 400, (2, 0): 400, (3, 2): 400}
    assert hop_bytes(operation("all_reduce", 2)) == {}


def test_site_bytes_are_those_of_hops_between_sites() -> None:
    sites = ("east", "east", "west", "west")
    ring = operation("all_reduce", 0, 1, 2, 3, byte_count=100)
    assert site_bytes([ring, ring], sites) == {("east", "west"): 300, ("west", "east"): 300}
    assert site_bytes([operation("all_gather", 0, 1)], sites) == {}


SITES = ("east", "east", "west")


@by_input(
    "kind, least",
    {
        "all_reduce": {"east": 120, "west": 120},
        "reduce_scatter": {"east": 80, "west": 40},
        "all_gather": {"east": 40, "west": 80},
        "all_to_all": {"east": 80, "west": 80},
        "broadcast": {"west": 120},
    },
)
def test_least_into_a_site_is_at_most_what_gloo_sends_into_it(kind: Kind, least: dict[str, float]) -> None:
    exchange = operation(kind, 0, 1, 2)
    assert least_into(exchange, SITES) == pytest.approx(least)
    into = defaultdict[str, float](float)
    for (_, destination), count in site_bytes([exchange], SITES).items():
        into[destination] += count
    assert all(into[site] >= count - 1e-9 for site, count in least.items())


def test_least_into_a_site_is_nothing_from_itself() -> None:
    assert least_into(operation("all_reduce", 0, 1), SITES) == {}
    assert least_into(operation("send", 2, 0), SITES) == {"east": 120}
