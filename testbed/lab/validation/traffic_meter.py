"""Counters of what crosses the fibers while an operation runs, by direction (``north:east``)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from testbed.core.certification.certificate import Certificate
from testbed.core.plan.addressing import PLANT
from testbed.core.topology.model import Topology
from testbed.core.validation.traffic import payload_bytes
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.interfaces import InterfaceCounters
from testbed.keeper import client

__all__ = ["Wire", "certified"]

_IP_AND_TCP: Final = 20 + 32
"""Header bytes of a packet: IPv4, TCP with timestamps (RFC 7323)."""

UNLIMITED: Final = 1e15
"""Byte/s of a fiber without a rate limit."""


class Wire:
    """The counters of one lab. Close it, or use it as a context manager."""

    def __init__(self, lab: LabFolder, topology: Topology) -> None:
        """Raises HostError if the plant is missing."""
        self._lab = lab
        self._ends = {
            # What leaves the plant toward a site is sent by the end that faces it.
            direction: end
            for link in topology.links
            for direction, end in zip(link.directions, reversed(topology.interfaces.ends(link.name)), strict=True)
        }
        self._counters = InterfaceCounters(lab_nodes.netns(lab, PLANT))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._counters.close()

    def delivered(self) -> int:
        """Return the bytes that left all fibers since the lab is up, as the plant's kernel counts them: cheap enough to
        read every millisecond. Headers of super-packets count once, so compare it with itself only."""
        now = self._counters.read()
        return sum(now[end].sent_bytes for end in self._ends.values() if end in now)

    def payload(self) -> dict[str, int]:
        """Return the TCP payload bytes that left each direction since the emulator started. Raises LabError.

        The emulator counts segments as they would be on a real wire, with the headers of each.
        """
        counters = client.keeper(self._lab).stats()["directions"]
        return {
            direction["direction"]: round(payload_bytes(direction["bytes"], direction["segments"]))
            for direction in counters
        }

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """Count the payload that crosses each direction while the block runs; filled in at its end."""
        crossed: dict[str, int] = {}
        before = self.payload()
        yield crossed
        crossed.update({name: after - before.get(name, 0) for name, after in self.payload().items()})

    def settle(self, bound_s: float = 1.0, still_s: float = 0.02) -> None:
        """Return when nothing has left a fiber for ``still_s``, or after ``bound_s``: traffic in flight when an
        operation failed must not count for the next one."""
        until = time.monotonic() + bound_s
        seen, since = self.delivered(), time.monotonic()
        while time.monotonic() < until and time.monotonic() - since < still_s:
            time.sleep(0.002)
            now = self.delivered()
            if now != seen:
                seen, since = now, time.monotonic()


def certified(topology: Topology, certificate: Certificate | None) -> dict[str, Mapping[str, float]]:
    """Return the measured ``delay_s`` and ``rate`` (byte/s of TCP payload) of each direction, or the configured values
    where a certificate has none.

    The delay is the least measured one, and the rate the greater of measured and configured (it was measured to 5 %):
    a bound made of these values is one that nothing can beat.
    """
    directions = (
        {direction.direction: direction for link in certificate.links for direction in link.directions}
        if certificate
        else {}
    )
    by_direction: dict[str, Mapping[str, float]] = {}
    for link in topology.links:
        for name in link.directions:
            asked, measured = link.impairment(name), directions.get(name)
            delay_s = asked.delay_s if measured is None or measured.measured is None else measured.measured.min
            rate_bps = asked.rate_bps
            if rate_bps and measured is not None and measured.rate is not None:
                rate_bps = max(rate_bps, measured.rate.measured_bps)
            per_packet = link.mtu + 14 + asked.overhead_bytes
            rate = rate_bps / 8 * (link.mtu - _IP_AND_TCP) / per_packet
            by_direction[name] = {"delay_s": delay_s, "rate": rate or UNLIMITED}
    return by_direction
