"""A queue holds at least one full packet: a smaller one would pass nothing, and 0 would mean no limit."""

from __future__ import annotations

import pytest
from oracles.fault_values import shapes

from testbed.core.faults.fault_registry import compile_fault
from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import load_text
from testbed.errors import TestbedError, UserError

FULL = 1500 + 14 + 24
"""MTU, Ethernet's header, and what a frame costs on the wire beyond itself (IEEE 802.3), in bytes."""


def link(**overrides: str) -> Topology:
    text = b"sites: {east: {}, west: {}}\nlinks: {north: {between: [east, west], km: 40}}\n"
    return load_text(text, "x.yaml", {f"links.north.{key.replace('__', '.')}": it for key, it in overrides.items()})


@pytest.mark.parametrize("km", ["1 m", "1 km", "3 km"])
def test_a_short_link_without_a_buffer_queues_one_packet(km: str) -> None:
    assert link(km=km, buffer="0").links[0].impairment("north:west").queue_bytes == FULL


def test_a_longer_one_queues_what_is_in_flight() -> None:
    assert link(buffer="0").links[0].impairment("north:west").queue_bytes == 20000
    assert link(km="1 m", buffer="0", mtu="9000").links[0].impairment("north:west").queue_bytes == 9000 + 38


@pytest.mark.parametrize("queue", ["1", str(FULL - 1)])
def test_a_written_queue_that_lets_nothing_pass_is_refused(queue: str) -> None:
    with pytest.raises(TestbedError, match=rf"queue: {queue} B cannot hold a full packet.*write at least {FULL} B"):
        link(impair__queue=queue)
    with pytest.raises(UserError, match=rf"queue={queue}: .*write at least {FULL} B"):
        compile_fault(link(), "impair", "north", {"queue": queue})


@pytest.mark.parametrize("queue", [0, FULL])
def test_one_packet_and_no_limit_are_what_they_say(queue: int) -> None:
    assert link(impair__queue=str(queue)).links[0].impairment("north:west").queue_bytes == queue
    found = shapes(link(), compile_fault(link(), "impair", "north", {"queue": str(queue)}).steps)
    assert [it.queue_bytes for it in found.values()] == [queue, queue]
