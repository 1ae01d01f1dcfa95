"""pcapng files as scapy, an independent reader, has them."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.utils import PcapNgReader

from testbed.core import pcapng

INTERFACES = (
    pcapng.Interface("west-gw/north", "north:west, received", 8e8, 262_144),
    pcapng.Interface("east-gw/north", "north:east, received", 0.0, 64),
)
HEADER = pcapng.header("testbed 0.1.0", "lab ä, after the fiber", INTERFACES)

packets = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2**62), st.binary(min_size=14, max_size=90), st.integers(0, 65_000)),
    max_size=8,
)


def read(content: bytes) -> list[tuple[int, bytes, int]]:
    """Return time in ns, bytes and length of each packet."""
    stream: Any = io.BytesIO(content)
    with PcapNgReader(stream) as reader:
        return [(round(it.time * 10**9), bytes(it), it.wirelen) for it in reader]


@settings(max_examples=60)
@given(packets, st.integers(0, 10**6), st.integers(0, 10**6))
def test_packets_come_back_with_time_bytes_and_length(
    found: list[tuple[int, int, bytes, int]], received: int, dropped: int
) -> None:
    blocks = [
        pcapng.packet(number, at_ns, data, len(data) + more, pcapng.INBOUND) for number, at_ns, data, more in found
    ]
    ends = [pcapng.statistics(number, 1, 2**60, received, dropped) for number in range(2)]
    content = HEADER + b"".join(blocks) + b"".join(ends)
    assert read(content) == [(at_ns, data, len(data) + more) for _, at_ns, data, more in found]
    assert len(content) % 4 == 0 and all(len(it) <= 80 for it in ends)
    for it, (_, _, data, _) in zip(blocks, found, strict=True):
        assert len(it) == pcapng.PACKET_OVERHEAD_BYTES + len(data) + -len(data) % 4
    for count in range(len(blocks)):  # what ends between two blocks is a whole file
        assert len(read(HEADER + b"".join(blocks[:count]))) == count


def test_lengths_of_blocks_are_at_both_ends() -> None:
    """So that a reader can go backwards, as the format demands."""
    at, seen = 0, []
    while at < len(HEADER):
        kind, size = (int.from_bytes(HEADER[at + it : at + it + 4], "little") for it in (0, 4))
        assert int.from_bytes(HEADER[at + size - 4 : at + size], "little") == size
        seen.append(kind)
        at += size
    assert seen == [0x0A0D0D0A, 1, 1]
