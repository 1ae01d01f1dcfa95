"""A queue holds at least one full packet: a smaller one would pass nothing, and 0 would mean no limit."""

from __future__ import annotations

import pytest
from builders.faults import fault, shaped
from builders.inputs import by_input

from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import load_text
from testbed.errors import TestbedError, UserError

FULL = 1500 + 14 + 24
"""MTU, Ethernet's header, and what a frame costs on the wire beyond itself (IEEE 802.3), in bytes."""


def link(words: str = "") -> Topology:
    """Two sites and a link of 40 km, with other values: ``buffer=0 impair.queue=1``."""
    text = b"sites: {east: {}, west: {}}\nlinks: {north: {between: [east, west], km: 40}}\n"
    return load_text(text, "x.yaml", dict(f"links.north.{word}".split("=") for word in words.split()))


@by_input(
    "words, queue_bytes",
    {
        # A short link queues one packet, a longer one what is in flight.
        **dict.fromkeys(("km=1m", "km=1km", "km=3km"), FULL),
        "km=40km": 20000,
        "km=1m mtu=9000": 9000 + 38,
    },
)
def test_queue_of_a_link_without_a_buffer(words: str, queue_bytes: int) -> None:
    assert link(f"buffer=0 {words}").links[0].impairment("north:west").queue_bytes == queue_bytes


@pytest.mark.parametrize("queue", [1, FULL - 1])
def test_a_written_queue_that_lets_nothing_pass_is_refused(queue: int) -> None:
    with pytest.raises(TestbedError, match=rf"queue: {queue} B cannot hold a full packet.*write at least {FULL} B"):
        link(f"impair.queue={queue}")
    with pytest.raises(UserError, match=rf"queue={queue}: .*write at least {FULL} B"):
        fault(f"impair north queue={queue}", link())


@pytest.mark.parametrize("queue", [0, FULL])
def test_a_queue_of_one_packet_or_without_a_limit(queue: int) -> None:
    assert link(f"impair.queue={queue}").links[0].impairment("north:west").queue_bytes == queue
    shapes = shaped(f"impair north queue={queue}", link())
    assert [shape.queue_bytes for shape in shapes.values()] == [queue, queue]
