"""Offload settings of the gateway's end of a fiber on netem, while random impairments apply.

netem sees packets after the sender's offload: a super-packet of 64 kB is one packet, and bits are flipped only in its
first fragment. On a wire, loss and bit errors hit single segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.core.physics.impairment import Impairment
from testbed.host.linux import namespace, offload

__all__ = ["Sender"]


@dataclass
class Sender:
    """An interface in the network namespace at ``netns``."""

    netns: Path
    interface: str
    segmented: bool = False
    """Whether it sends MTU-sized packets only."""
    gathered: bool = False
    """Whether each packet is one contiguous buffer."""

    def suit(self, impairment: Impairment) -> None:
        """Segment while random impairments apply, gather while bits are flipped. Raises OSError."""
        segmented, gathered = impairment.touches_packets, impairment.corrupt_survives
        if segmented != self.segmented:
            namespace.inside(self.netns, lambda: offload.set_segmented(self.interface, segmented))
            self.segmented = segmented
        if gathered != self.gathered:
            namespace.inside(self.netns, lambda: offload.set_scattered(self.interface, not gathered))
            self.gathered = gathered
