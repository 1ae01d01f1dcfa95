"""What has happened to one direction on netem, put together from what the kernel counts; docs/netem.md says what it
does not count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.host.emulators import tc
from testbed.host.emulators.emulator import DROP_CAUSES, DirectionStats

__all__ = ["Counted", "InterfaceCount", "interfaces"]

InterfaceCount = tuple[int, int]
"""Packets that an interface has sent, and received ones that it has dropped."""


def interfaces() -> dict[str, InterfaceCount]:
    """By name, in the network namespace of the calling thread; proc(5), net/dev."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, words = line.partition(":")
        fields = words.split()
        found[name.strip()] = (int(fields[9]), int(fields[3]))
    return found


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

    def begin(self, sender: InterfaceCount, receiver: InterfaceCount) -> None:
        """Count from here on: of its egress and its ingress."""
        self.packets_before, self.missed_before = sender[0], receiver[1]

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
        sender: InterfaceCount,
        receiver: InterfaceCount,
    ) -> DirectionStats:
        """As of the latest look. ``filtered``: packets that a filter has dropped at the ingress."""
        drops = dict.fromkeys(DROP_CAUSES, 0)
        drops |= {"loss": self.lost, "memory": self.crowded, "queue": self.queue_drops_before + tbf.drops}
        drops |= {"size": filtered, "receive": receiver[1] - self.missed_before}
        return DirectionStats(
            direction=direction,
            packets=sender[0] - self.packets_before,
            # The kernel counts a super-packet as its segments, and their headers (qdisc_pkt_len_init).
            segments=self.segments_before + netem.packets,
            bytes=self.bytes_before + netem.bytes,
            drops=drops,
            queue_bytes=tbf.backlog,
            in_flight_packets=netem.qlen,
        )
