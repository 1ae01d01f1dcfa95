"""Which packets of a measurement the host delayed, by its own logs: stalls of the cores, and the emulator's record.

A packet is excluded by these logs alone and never by its own delay, so a fiber that delays packets cannot hide behind
a noisy host: the emulator records when each packet was due by its own values, and that it was sent then.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.core.intervals import Intervals

__all__ = ["FEWEST_PACKETS", "HELD_UP_S", "ON_TIME_S", "STALL_PERIOD_S", "Crossing", "HostLog", "Leg", "LoggedStall"]

FEWEST_PACKETS: Final = 20
"""Minimum number of packets on time to judge delay and jitter; with fewer a quantity is not measurable."""

HELD_UP_S: Final = 150e-6
"""A longer send call delayed its packet. A call takes 20 to 60 us, and delivers the packet to the emulator."""

ON_TIME_S: Final = 50e-6
"""A packet left the emulator on time if its send call returned at most this long after it was due; 7 to 20 us are
usual. The call delivers the packet to its receiver, so the receiver's timestamp is not later."""

STALL_PERIOD_S: Final = 1e-3
"""A stall may have begun up to this long before its logged start (``testbed/fiberd/stalls.h``)."""

LoggedStall = tuple[int, float, float]
"""A stall: core, start in seconds of CLOCK_MONOTONIC, length in seconds."""


@dataclass(frozen=True)
class Crossing:
    """When a packet was due at the end of a direction, and when it had been sent; seconds of CLOCK_MONOTONIC.

    ``period`` is the number of the queue's busy period in which the packet waited.
    """

    due_t: float
    sent_t: float
    period: int

    @property
    def on_time(self) -> bool:
        return self.sent_t - self.due_t <= ON_TIME_S


@dataclass(frozen=True)
class Leg:
    """A direction that a packet crosses: its delay in seconds, and how far jitter may move it either way."""

    direction: str
    delay_s: float
    spread_s: float = 0.0


@dataclass(frozen=True)
class HostLog:
    """The logs of one measurement. Times are seconds of CLOCK_MONOTONIC.

    Attributes:
        stalls: when at least one core was stalled.
        crossings: by direction and mark; None where the emulator records no packets (netem).
        stall_count, longest_stall_s, stalled_share: number of stalls, the longest, and the mean share of the cores'
            time in stalls; ``stall_count`` is None if stalls are not logged.
    """

    stalls: Intervals = field(default_factory=Intervals)
    crossings: Mapping[tuple[str, int], Crossing] | None = None
    stall_count: int | None = None
    longest_stall_s: float = 0.0
    stalled_share: float = 0.0

    @classmethod
    def of(
        cls,
        stalls: Sequence[LoggedStall] | None,
        crossings: Mapping[tuple[str, int], Crossing] | None,
        lasted_s: float,
        cores: int,
    ) -> HostLog:
        """Return the log of a measurement of ``lasted_s`` seconds; ``stalls`` is None if stalls are not logged."""
        if stalls is None:
            return cls(crossings=crossings)
        intervals = Intervals.union((start - STALL_PERIOD_S, start + length) for _, start, length in stalls)
        total_s = sum(length for _, _, length in stalls)
        longest_s = max((length for _, _, length in stalls), default=0.0)
        share = min(1.0, total_s / max(1e-9, lasted_s * cores))
        return cls(intervals, crossings, len(stalls), longest_s, share)

    def delays(self, before_t: float, after_t: float, mark: int, crossed: Iterable[Leg]) -> bool:
        """Whether the host delayed a packet that arrived.

        Args:
            before_t: when the call that sent the packet began.
            after_t: when that call had returned.
            mark: identifies the packet in the emulator's record.
            crossed: the directions that the packet crossed, in their order.
        """
        if after_t - before_t > HELD_UP_S or self.stalls.overlaps(before_t, after_t):
            return True
        out_t = after_t
        for leg in crossed:
            if self.crossings is None:
                due_t = out_t + leg.delay_s
                window = (due_t - leg.spread_s, due_t + leg.spread_s + ON_TIME_S)
            else:
                crossing = self.crossings.get((leg.direction, mark))
                if crossing is None or not crossing.on_time:
                    return True
                window = (crossing.due_t, crossing.sent_t)
            if self.stalls.overlaps(*window):
                return True
            out_t = window[1]
        return False

    def is_on_time(self, direction: str, mark: int | None, arrived_t: float) -> tuple[bool, int]:
        """Return whether a packet of a train arrived without delay by the host, and the busy period of the packet.

        Without a record the packet passed a token bucket of the kernel, which does not make up for a stall: a stall
        ends a busy period, as an empty queue does.
        """
        stalled = self.stalls.overlaps(arrived_t - STALL_PERIOD_S / 2, arrived_t)
        if self.crossings is None:
            return not stalled, bisect.bisect_right(self.stalls.began_t, arrived_t)
        crossing = self.crossings.get((direction, mark)) if mark is not None else None
        if crossing is None:
            return False, -1
        return crossing.on_time and not stalled, crossing.period
