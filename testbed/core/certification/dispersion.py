"""The rate of a bottleneck from the dispersion of packet trains: bytes over the time between their arrivals.

A train that enters a queue faster than it leaves is spread by the bottleneck (Dovrolis et al., "What do packet
dispersion techniques measure?", INFOCOM 2001, section III). The ends of a train are no measure of it: the first packet
has no predecessor whose jitter it must wait for, the last one of a reordered train is the one that jitter delayed most,
and a packet that the host's scheduler delays moves an end by milliseconds. So the ends are left out, and the rate is
the median of those of many stretches within the train.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["Arrival", "rate_bps", "slopes_bps"]

Arrival = tuple[float, float]
"""(when, bits on the wire): seconds at which the last of these bits arrived."""

_HEAD_SHARE: Final = 0.1
"""Share of a train that is left out at its head: it has the wake-up latency of the forwarding process."""
_MOST_EDGE_SHARE: Final = 0.25
"""Share of a train that is left out for jitter, at most, at either end."""


def slopes_bps(arrivals: Sequence[Arrival], edge_s: float = 0.0, last_bits: float | None = None) -> tuple[float, ...]:
    """Return the rates of the stretches of a train, in bit/s; empty if it is too short.

    Args:
        arrivals: of one train, in any order; packets of the same instant left together.
        edge_s: how long the jitter of a path takes to settle; as much is left out at either end.
        last_bits: only so many bits at the end of the train are used; None: all but the head.
    """
    instants: dict[float, float] = {}
    for at, bits in arrivals:
        instants[at] = instants.get(at, 0.0) + bits
    times = sorted(instants)
    if len(times) < 3:
        return ()
    passed, total = [], 0.0
    for at in times:
        total += instants[at]
        passed.append(total)
    # All in bits, not in seconds: a tail that the scheduler held up would stretch the train.
    span_s = 2.0 * (times[_at(passed, 0.75 * total)] - times[_at(passed, 0.25 * total)])
    edge = min(edge_s / span_s if span_s > 0 else 0.0, _MOST_EDGE_SHARE) * total
    skipped = max(edge, _HEAD_SHARE * total)
    if last_bits is not None and last_bits < total:
        skipped = max(edge, total - last_bits)
    first, last = _at(passed, skipped), _at(passed, total - edge)
    if last - first < 2:
        return ()
    half = (passed[last] - passed[first]) / 2.0
    found = []
    for begin in range(first, last):
        end = bisect_left(passed, passed[begin] + half, begin + 1, last + 1)
        if end > last:
            break
        found.append((passed[end] - passed[begin]) / (times[end] - times[begin]))
    return tuple(found)


def _at(passed: Sequence[float], bits: float) -> int:
    """Return the index of the instant at which so many bits had arrived."""
    return min(bisect_left(passed, bits), len(passed) - 1)


def rate_bps(slopes: Sequence[float]) -> float | None:
    """Return the rate of which most stretches are; None without any."""
    return statistics.median(slopes) if slopes else None
