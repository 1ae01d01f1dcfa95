"""The uncertainty of measured times on a host whose cores stall.

The uncertainty of a time is the union over cores of the stalls in its interval, plus 200 ms for each TCP retransmission
timeout that began in a stall, and at most the interval itself. A timeout began at least 200 ms before it expired.
Timeouts are counted once a second, so it is known to a second which stall was in force. Stalls shorter than
:data:`LOSING_STALL_S` cause no timeouts, because they fill no buffer.

A verdict that differs within the uncertainty is unknown. Additional stalls can turn a pass or a fail into unknown, but
not one into the other. Without stalls the results are the same as without a log.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from testbed.core.intervals import Intervals
from testbed.core.records.stalls import Stall, TcpTimeouts

__all__ = ["LOSING_STALL_S", "NOISY_SHARE", "NOISY_STALL_S", "TIMEOUT_S", "UNWATCHED", "NoiseSummary", "StallLog"]

TIMEOUT_S = 0.2
"""The minimum retransmission timeout of Linux."""

LOSING_STALL_S = 0.01
"""The kernel queues 1,000 packets for a stalled core: 15 ms at 800 Mb/s."""

NOISY_SHARE = 0.01
NOISY_STALL_S = 0.02
"""A host is noisy if at least one core was stalled for a larger share of the time, or longer at once. Both limits are
chosen (docs/certificate.md, "Noise of the host"); ranges and verdicts do not depend on them."""


@dataclass(frozen=True)
class NoiseSummary:
    """The stalls during a job; ``noisy`` where they are large enough to matter.

    ``stalled_share`` is the share of the time in which at least one core was stalled.
    """

    stalls: int
    stalled_s: float
    stalled_share: float
    longest_s: float
    timeouts: int
    """TCP retransmission timeouts that began in a stall."""
    noisy: bool


@dataclass(frozen=True)
class StallLog:
    """The stall log of a host; ``watched`` is False if no log was kept, so that the noise is unknown."""

    stalls: tuple[Stall, ...] = ()
    timeouts: tuple[TcpTimeouts, ...] = ()
    watched: bool = False

    @cached_property
    def stalled(self) -> Intervals:
        """When at least one core was stalled."""
        return Intervals.union((stall.began_t, stall.ended_t) for stall in self.stalls)

    def uncertainty_s(self, began_t: float, ended_t: float) -> float:
        """Return the uncertainty of the time from ``began_t`` to ``ended_t``."""
        if not self.stalls or ended_t <= began_t:
            return 0.0
        uncertain_s = self.stalled.length_s(began_t, ended_t) + TIMEOUT_S * self.timeouts_of(began_t, ended_t)
        return min(ended_t - began_t, uncertain_s)

    def uncertainty_of(self, intervals: Sequence[tuple[float, float]]) -> float:
        """Return the uncertainty of the sum of disjoint intervals."""
        return sum(self.uncertainty_s(began_t, ended_t) for began_t, ended_t in intervals)

    def timeouts_of(self, began_t: float, ended_t: float) -> int:
        """Return the number of timeouts that began in a stall and may have expired between the two times."""
        since, since_sum, until, until_sum = self._timeouts
        return since_sum[bisect.bisect_left(since, ended_t)] - until_sum[bisect.bisect_right(until, began_t)]

    @cached_property
    def _timeouts(self) -> tuple[list[float], list[int], list[float], list[int]]:
        """Return the timeouts that began in a stall by the begin and by the end of their sample, each with sums."""
        losing = Intervals.union(
            (stall.began_t, stall.ended_t) for stall in self.stalls if stall.length_s >= LOSING_STALL_S
        )
        counted = [
            sample for sample in self.timeouts if losing.within(sample.since_t - TIMEOUT_S, sample.t - TIMEOUT_S)
        ]
        since = sorted(counted, key=lambda sample: sample.since_t)
        until = sorted(counted, key=lambda sample: sample.t)
        return (
            [sample.since_t for sample in since],
            list(itertools.accumulate((sample.count for sample in since), initial=0)),
            [sample.t for sample in until],
            list(itertools.accumulate((sample.count for sample in until), initial=0)),
        )

    def summary(self, began_t: float | None, ended_t: float | None) -> NoiseSummary | None:
        """Summarize the stalls between the two times; None if no stall log was kept, or the times are unknown."""
        if not self.watched or began_t is None or ended_t is None or ended_t <= began_t:
            return None
        during = [stall for stall in self.stalls if stall.ended_t > began_t and stall.began_t < ended_t]
        stalled_s = self.stalled.length_s(began_t, ended_t)
        share = stalled_s / (ended_t - began_t)
        longest_s = max((min(stall.ended_t, ended_t) - max(stall.began_t, began_t) for stall in during), default=0.0)
        return NoiseSummary(
            stalls=len(during),
            stalled_s=stalled_s,
            stalled_share=share,
            longest_s=longest_s,
            timeouts=self.timeouts_of(began_t, ended_t),
            noisy=share > NOISY_SHARE or longest_s > NOISY_STALL_S,
        )


UNWATCHED = StallLog()
"""No stall log: all uncertainties are zero."""
