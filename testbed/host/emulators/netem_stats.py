"""What has happened to one direction on netem, put together from what the kernel counts; docs/netem.md says what it
does not count."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.host.emulators import tc
from testbed.host.emulators.emulator import DROP_CAUSES, DirectionStats
from testbed.host.linux.interfaces import Traffic

__all__ = ["Counted"]


@dataclass
class Counted:
    """Of one direction. ``packets_before`` and ``missed_before`` are its interfaces' counts when it began, ``seen`` are
    (netem's, tbf's) drops at the last look."""

    packets_before: int = 0
    missed_before: int = 0
    seen: tuple[int, int] = (0, 0)
    lost: int = 0
    crowded: int = 0
    segments_before: int = 0
    """This and the next two are what qdiscs had counted that were replaced since."""
    bytes_before: int = 0
    queue_drops_before: int = 0

    def begin(self, sender: Traffic, receiver: Traffic) -> None:
        """Count from here on: of its egress and its ingress."""
        self.packets_before, self.missed_before = sender.sent_packets, receiver.received_drops

    def look(self, netem: tc.Counters, tbf: tc.Counters, by_chance: bool) -> None:
        """netem counts its child's drops too. What is over is chance where there is loss, else the packet limit."""
        more = max(0, (netem.drops - self.seen[0]) - (tbf.drops - self.seen[1]))
        if by_chance:
            self.lost += more
        else:
            self.crowded += more
        self.seen = (netem.drops, tbf.drops)

    def replaced(self, netem: tc.Counters, tbf: tc.Counters) -> None:
        """Its qdiscs go, after they were looked at for the last time; fresh ones begin at 0."""
        self.segments_before += netem.packets
        self.bytes_before += netem.bytes
        self.queue_drops_before += tbf.drops
        self.seen = (0, 0)

    def stats(
        self,
        direction: str,
        netem: tc.Counters,
        tbf: tc.Counters,
        filtered: int,
        sender: Traffic,
        receiver: Traffic,
    ) -> DirectionStats:
        """As of the latest look. ``filtered``: packets that a filter has dropped at the ingress."""
        drops = dict.fromkeys(DROP_CAUSES, 0)
        drops |= {"loss": self.lost, "memory": self.crowded, "queue": self.queue_drops_before + tbf.drops}
        drops |= {"size": filtered, "receive": receiver.received_drops - self.missed_before}
        return DirectionStats(
            direction=direction,
            packets=sender.sent_packets - self.packets_before,
            # The kernel counts a super-packet as its segments, and their headers (qdisc_pkt_len_init).
            segments=self.segments_before + netem.packets,
            bytes=self.bytes_before + netem.bytes,
            drops=drops,
            queue_bytes=tbf.backlog,
            in_flight_packets=netem.qlen,
        )
