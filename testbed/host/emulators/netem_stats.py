"""Counters of one direction on netem, derived from the kernel's; docs/netem.md lists what it does not count."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.host.emulators import tc
from testbed.host.emulators.emulator import DROP_CAUSES, DirectionStats
from testbed.host.linux.interfaces import Traffic

__all__ = ["Counted"]


@dataclass
class Counted:
    """Accumulated counts of one direction.

    ``packets_before`` and ``missed_before`` are the interfaces' counts at the start; ``seen`` are (netem's, tbf's)
    drops at the last :meth:`look`.
    """

    packets_before: int = 0
    missed_before: int = 0
    seen: tuple[int, int] = (0, 0)
    lost: int = 0
    crowded: int = 0
    segments_before: int = 0
    """This and the next two are the final counts of qdiscs that were replaced."""
    bytes_before: int = 0
    queue_drops_before: int = 0

    def begin(self, sender: Traffic, receiver: Traffic) -> None:
        """Start counting, from these counts of the egress and the ingress."""
        self.packets_before, self.missed_before = sender.sent_packets, receiver.received_drops

    def look(self, netem: tc.Counters, tbf: tc.Counters, by_chance: bool) -> None:
        """Attribute new drops. netem's include its child's; the rest is random loss if there is any, else the limit."""
        new_drops = max(0, (netem.drops - self.seen[0]) - (tbf.drops - self.seen[1]))
        if by_chance:
            self.lost += new_drops
        else:
            self.crowded += new_drops
        self.seen = (netem.drops, tbf.drops)

    def replaced(self, netem: tc.Counters, tbf: tc.Counters) -> None:
        """Keep the final counts of qdiscs that are about to be replaced, after a last :meth:`look`."""
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
        """Return the record as of the latest :meth:`look`. ``filtered``: packets dropped by a filter at the ingress."""
        drops = dict.fromkeys(DROP_CAUSES, 0)
        drops |= {"loss": self.lost, "memory": self.crowded, "queue": self.queue_drops_before + tbf.drops}
        drops |= {"size": filtered, "receive": receiver.received_drops - self.missed_before}
        return DirectionStats(
            direction=direction,
            packets=sender.sent_packets - self.packets_before,
            # The kernel counts a super-packet as its segments with their headers (qdisc_pkt_len_init).
            segments=self.segments_before + netem.packets,
            bytes=self.bytes_before + netem.bytes,
            drops=drops,
            queue_bytes=tbf.backlog,
            in_flight_packets=netem.qlen,
        )
