"""Fidelity of the fiber while the job loaded the machine, from the emulator's own lateness histogram.

Lateness = sent - due, per packet. It is the emulator's own error, whereas a ping on a loaded link would measure the
queue, which belongs to the emulated network.

If the limits are exceeded, the stall log decides whether the host explains it. The *shadow* of a stall is the stall
itself and an equally long time after it, in which the emulator catches up; overlapping shadows are merged. A packet
that a stall makes later than b was due in a shadow, at least b before its end. So between two samples, stalls make at
most this share of the packets later than b: the length of the shadows, each less b, over the time in which the
direction was busy at its rate (all the time, if its rate is unknown). That many of the latest packets are left out. If
the others are within the limits, the host was noisy and the emulator did not fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.analysis.noise.host_noise import UNWATCHED, StallLog
from testbed.core.intervals import Intervals
from testbed.core.records.samples import FiberSample
from testbed.core.topology.direction import link_of

__all__ = ["MEDIAN_LIMIT_S", "OWN_DROPS", "P99_LIMIT_S", "DirectionFidelity", "quantile", "under_load"]

MEDIAN_LIMIT_S = 50e-6
P99_LIMIT_S = 1e-3

OWN_DROPS = ("receive", "memory", "transmit")
"""Drops that are the emulator's failure, not the fiber's: it did not read in time, had no room, or could not send a
packet."""


@dataclass(frozen=True)
class DirectionFidelity:
    """One direction while the job ran. Lateness in seconds; ``inf`` when it is beyond the histogram's last bound.

    ``queue_bytes_most`` is the longest queue observed, in wire bytes: a property of the network, shown but not judged.
    ``own_drops_in_stalls`` are own drops between two samples with a stall between them. ``late_by_stalls`` counts
    packets that stalls may have made late.
    """

    direction: str
    packets: int
    median_s: float | None
    p99_s: float | None
    own_drops: int
    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    queue_bytes_most: int | None = None
    own_drops_in_stalls: int = 0
    late_by_stalls: int = 0
    held_without_stalls: bool = False
    """Whether the limits hold without the packets that stalls may have made late."""

    @property
    def held(self) -> bool | None:
        """Whether the limits held.

        None if no packet crossed while the job ran, the emulator does not time packets (netem), or stalls of the host
        may be the cause of a violation.
        """
        if self.own_drops > self.own_drops_in_stalls or (self.late and not self.held_without_stalls):
            return False
        if self.own_drops or self.late:
            return None
        return None if self.median_s is None or self.p99_s is None else True

    @property
    def late(self) -> bool:
        """Whether packets were later than the limits."""
        if self.median_s is None or self.p99_s is None:
            return False
        return self.median_s >= MEDIAN_LIMIT_S or self.p99_s >= P99_LIMIT_S

    @property
    def noisy(self) -> bool:
        """Whether only late packets exceeded the limits, and stalls of the host explain them."""
        return self.held is None and self.late and not self.own_drops

    @property
    def why(self) -> str:
        reasons = []
        if self.own_drops:
            stalled = ", which may be due to stalls of the host" if self.own_drops == self.own_drops_in_stalls else ""
            reasons.append(f"the emulator itself dropped {self.own_drops} packets{stalled}")
        if self.median_s is not None and self.median_s >= MEDIAN_LIMIT_S:
            reasons.append(f"median lateness at or above the limit of {MEDIAN_LIMIT_S * 1e6:.0f} us")
        if self.p99_s is not None and self.p99_s >= P99_LIMIT_S:
            reasons.append(f"99th percentile of lateness at or above the limit of {P99_LIMIT_S * 1e3:.0f} ms")
        return ", ".join(reasons)


def quantile(bounds_s: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Return the value below which ``share`` of a histogram lies, interpolated in a bucket; inf beyond the last bound,
    None if empty."""
    total = sum(counts)
    if total <= 0:
        return None
    want, seen = share * total, 0.0
    for index, count in enumerate(counts):
        if count > 0 and seen + count >= want:
            if index >= len(bounds_s):
                return math.inf
            low = bounds_s[index - 1] if index else 0.0
            return low + (bounds_s[index] - low) * (want - seen) / count
        seen += count
    return math.inf


def under_load(
    fibers: Iterable[FiberSample],
    began_t: float | None,
    ended_t: float | None,
    noise: StallLog = UNWATCHED,
    rates_bps: Mapping[str, float] | None = None,
) -> tuple[DirectionFidelity, ...]:
    """Return the fidelity per direction, from the samples around [``began_t``, ``ended_t``] (None: no limit).

    ``rates_bps`` has the rate of each link, by name.
    """
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    shadows = Intervals.union((stall.began_t, stall.ended_t + stall.length_s) for stall in noise.stalls)
    return tuple(
        _direction(name, _around(track, began_t, ended_t), shadows, (rates_bps or {}).get(link_of(name)))
        for name, track in sorted(tracks.items())
        if track
    )


def _around(track: Sequence[FiberSample], began_t: float | None, ended_t: float | None) -> Sequence[FiberSample]:
    """Return the samples from the last one before the interval to the first one after it, as far as they exist."""
    first, last = 0, len(track)
    if began_t is not None:
        first = max((index for index, sample in enumerate(track) if sample.t <= began_t), default=0)
    if ended_t is not None:
        last = 1 + min((index for index, sample in enumerate(track) if sample.t >= ended_t), default=len(track) - 1)
    return track[first:last]


def _direction(
    name: str, track: Sequence[FiberSample], shadows: Intervals, rate_bps: float | None
) -> DirectionFidelity:
    bounds: tuple[float, ...] = track[-1].lateness_bounds_s if track else ()
    counts = [0.0] * (len(bounds) + 1)
    kept = [0.0] * (len(bounds) + 1)
    packets = own = own_in_stalls = 0
    for before, after in pairwise(track):
        restarted = after.packets < before.packets or sum(after.lateness_counts) < sum(before.lateness_counts)
        packets += after.packets - (0 if restarted else before.packets)
        dropped = sum(
            max(0, after.drops.get(cause, 0) - (0 if restarted else before.drops.get(cause, 0))) for cause in OWN_DROPS
        )
        own += dropped
        stalled = shadows.within(before.t, after.t)
        if stalled:
            own_in_stalls += dropped
        if after.lateness_bounds_s != bounds:
            continue
        comparable = not restarted and before.lateness_bounds_s == bounds
        new = [0.0] * (len(bounds) + 1)
        for index, count in enumerate(after.lateness_counts[: len(counts)]):
            earlier = before.lateness_counts[index] if comparable and index < len(before.lateness_counts) else 0.0
            new[index] = max(0.0, count - earlier)
        busy_s = after.t - before.t
        if rate_bps and not restarted:
            busy_s = min(busy_s, 8.0 * (after.byte_count - before.byte_count) / rate_bps)
        unexplained = _without_stalls(new, bounds, stalled, busy_s)
        for index, (count, unexplained_count) in enumerate(zip(new, unexplained, strict=True)):
            counts[index] += count
            kept[index] += unexplained_count
    median_s, p99_s = quantile(bounds, kept, 0.5), quantile(bounds, kept, 0.99)
    return DirectionFidelity(
        direction=name,
        packets=packets,
        median_s=quantile(bounds, counts, 0.5),
        p99_s=quantile(bounds, counts, 0.99),
        own_drops=own,
        bounds_s=bounds,
        counts=tuple(counts),
        queue_bytes_most=max((sample.queue_bytes for sample in track if sample.queue_bytes is not None), default=None),
        own_drops_in_stalls=own_in_stalls,
        late_by_stalls=round(sum(counts) - sum(kept)),
        held_without_stalls=(median_s or 0.0) < MEDIAN_LIMIT_S and (p99_s or 0.0) < P99_LIMIT_S,
    )


def _without_stalls(
    counts: Sequence[float], bounds_s: Sequence[float], shadows: Sequence[tuple[float, float]], busy_s: float
) -> Sequence[float]:
    """Return the histogram of one interval between samples without the late packets that stalls may have delayed."""
    if not shadows or busy_s <= 0:
        return counts
    total, removed = sum(counts), 0.0
    kept = list(counts)
    for index in range(len(bounds_s), 0, -1):
        bound_s = bounds_s[index - 1]  # lower limit of the lateness in this bin
        if bound_s < MEDIAN_LIMIT_S:
            break
        due_s = sum(max(0.0, ended_t - began_t - bound_s) for began_t, ended_t in shadows)
        most = total * min(1.0, due_s / busy_s)
        left_out = min(kept[index], max(0.0, most - removed))
        kept[index] -= left_out
        removed += left_out
    return kept
