"""Checksum offload, which containerlab switches off: without it this kernel refuses UDP super-packets with EIO."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from oracles import oracle

from testbed.host.linux import namespace, offload

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root"), pytest.mark.alone]

PAYLOAD, SEGMENTS = 1472, 20


@pytest.fixture
def place() -> Iterator[str]:
    """A namespace with one end of a veth, 10.77.1.0, and a neighbour that is said to be there."""
    name = f"tb-{os.getpid()}-csum"
    oracle.run("ip", "netns", "add", name)
    try:
        oracle.run("ip", "-n", name, "link", "add", "near", "type", "veth", "peer", "name", "far")
        oracle.run("ip", "-n", name, "addr", "add", "10.77.1.0/31", "dev", "near")
        for end in ("near", "far"):
            oracle.run("ip", "-n", name, "link", "set", end, "up")
        oracle.run("ip", "-n", name, "neigh", "add", "10.77.1.1", "lladdr", "02:00:00:00:00:09", "dev", "near")
        yield name
    finally:
        oracle.run("ip", "netns", "del", name)


def super_packet(name: str) -> int:
    """Send one; the bytes that the kernel took."""

    def send() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_UDP, oracle.UDP_SEGMENT, PAYLOAD)
            return sender.sendto(bytes(SEGMENTS * PAYLOAD), ("10.77.1.1", 9999))

    return oracle.inside(name, send)


def test_super_packets_leave_where_checksums_are_left_to_the_interface(place: str) -> None:
    path = namespace.netns_path(place)
    namespace.inside(path, lambda: offload.set_checksummed("near", False))
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 11):
        with pytest.raises(OSError, match="Input/output error"):
            super_packet(place)
    namespace.inside(path, lambda: offload.set_checksummed("near", True))
    assert super_packet(place) == SEGMENTS * PAYLOAD
