"""What a fiber does to packets in one direction; the same names and meaning on every emulator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Impairment:
    """One direction of one link.

    Attributes:
        delay_s: one way, propagation plus optics, in seconds.
        rate_bps: bits per second on the wire (frame + 24 B of preamble, FCS and gap); 0 means unlimited.
        queue_bytes: tail-drop limit on the wire bytes that wait for their turn at ``rate_bps``, sized as
            rate x delay + buffer; what is in flight does not count. 0 means no limit but the emulator's memory cap.
        loss: probability that one MTU segment is lost, 0..1.
    """

    delay_s: float = 0.0
    rate_bps: float = 0.0
    queue_bytes: int = 0
    loss: float = 0.0


@dataclass(frozen=True)
class Direction:
    """One direction of a link as the emulator sees it: in at ``ingress``, out at ``egress``, both in the plant.

    ``name`` is ``link:site``, the site being the one that the direction leads to.
    """

    name: str
    ingress: str
    egress: str
    impairment: Impairment

    @property
    def link(self) -> str:
        return self.name.partition(":")[0]

    @property
    def toward(self) -> str:
        return self.name.partition(":")[2]
