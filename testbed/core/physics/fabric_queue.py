"""Queues of a site's fabric: what a port, or the core, lets pass at once and keeps waiting."""

from __future__ import annotations

from typing import Final

from testbed.core.physics.impairment import WIRE_OVERHEAD_BYTES

__all__ = ["BURST_S", "ETHERNET_BYTES", "QUEUE_S", "burst_bytes", "frame_rate_bytes", "queue_bytes"]

ETHERNET_BYTES: Final = 14
"""Header of a frame, without its check sequence."""
QUEUE_S: Final = 0.01
"""What waits at most, in time at the port's rate; the default buffer of a fiber."""
BURST_S: Final = 0.002
"""What an idle port lets pass at once, in time at its rate: a timer of a busy machine is late by as much."""
_LEAST_BURST_BYTES: Final = 20_000
"""Two of the largest frames; the kernel segments super-packets above the burst."""


def burst_bytes(rate_bps: float) -> int:
    return max(_LEAST_BURST_BYTES, round(rate_bps * BURST_S / 8))


def queue_bytes(rate_bps: float) -> int:
    """Return how many bytes may wait, those of a burst included."""
    return burst_bytes(rate_bps) + max(_LEAST_BURST_BYTES, round(rate_bps * QUEUE_S / 8))


def frame_rate_bytes(rate_bps: float, mtu: int) -> int:
    """Return bytes of frames per second at which full-sized ones take ``rate_bps`` of the wire.

    The kernel counts the header of a super-packet's segments, but not preamble, gap and check sequence.

    >>> frame_rate_bytes(400e6, 1500)
    49219766
    """
    frame = mtu + ETHERNET_BYTES
    return round(rate_bps / 8 * frame / (frame + WIRE_OVERHEAD_BYTES))
