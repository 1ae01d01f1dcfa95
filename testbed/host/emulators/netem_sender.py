"""The gateway's end of a fiber on netem: what it may send while chance has a say over its packets.

netem sees what the sender's offload has made, a super-packet of 64 kB as one packet, and flips bits only in its first
piece. What is lost or hit on a wire is one segment.
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
    """It sends MTU-sized packets only."""
    gathered: bool = False
    """A packet lies in one piece."""

    def suit(self, impairment: Impairment) -> None:
        """Segmented while chance has a say, gathered while bits are flipped. Raises OSError."""
        segmented, gathered = impairment.touches_packets, impairment.corrupt_survives
        if segmented != self.segmented:
            namespace.inside(self.netns, lambda: offload.set_segmented(self.interface, segmented))
            self.segmented = segmented
        if gathered != self.gathered:
            namespace.inside(self.netns, lambda: offload.set_scattered(self.interface, not gathered))
            self.gathered = gathered
