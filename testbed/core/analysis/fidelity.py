"""Fidelity of the fiber while the job loaded the machine, from the emulator's own lateness histogram.

Lateness = sent - due, per packet. It is the emulator's own error, whereas a ping on a loaded link would measure the
queue, which belongs to the emulated network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.records.samples import FiberSample

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
    """

    direction: str
    packets: int
    median_s: float | None
    p99_s: float | None
    own_drops: int
    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    queue_bytes_most: int | None = None

    @property
    def held(self) -> bool | None:
        """None when no packet crossed while the job ran, or the emulator does not time packets (netem)."""
        if self.own_drops:
            return False
        if self.median_s is None or self.p99_s is None:
            return None
        return self.median_s < MEDIAN_LIMIT_S and self.p99_s < P99_LIMIT_S

    @property
    def why(self) -> str:
        reasons = []
        if self.own_drops:
            reasons.append(f"the emulator itself dropped {self.own_drops} packets")
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
    fibers: Iterable[FiberSample], began_t: float | None, ended_t: float | None
) -> tuple[DirectionFidelity, ...]:
    """Return the fidelity per direction, from the samples around [``began_t``, ``ended_t``] (None: no limit)."""
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    return tuple(_direction(name, _around(track, began_t, ended_t)) for name, track in sorted(tracks.items()) if track)


def _around(track: Sequence[FiberSample], began_t: float | None, ended_t: float | None) -> Sequence[FiberSample]:
    """Return the samples from the last one before the interval to the first one after it, as far as they exist."""
    first, last = 0, len(track)
    if began_t is not None:
        first = max((index for index, sample in enumerate(track) if sample.t <= began_t), default=0)
    if ended_t is not None:
        last = 1 + min((index for index, sample in enumerate(track) if sample.t >= ended_t), default=len(track) - 1)
    return track[first:last]


def _direction(name: str, track: Sequence[FiberSample]) -> DirectionFidelity:
    bounds: tuple[float, ...] = track[-1].lateness_bounds_s if track else ()
    counts = [0.0] * (len(bounds) + 1)
    packets = own = 0
    for before, after in pairwise(track):
        restarted = after.packets < before.packets or sum(after.lateness_counts) < sum(before.lateness_counts)
        packets += after.packets - (0 if restarted else before.packets)
        for cause in OWN_DROPS:
            own += max(0, after.drops.get(cause, 0) - (0 if restarted else before.drops.get(cause, 0)))
        if after.lateness_bounds_s != bounds:
            continue
        comparable = not restarted and before.lateness_bounds_s == bounds
        for index, count in enumerate(after.lateness_counts[: len(counts)]):
            earlier = before.lateness_counts[index] if comparable and index < len(before.lateness_counts) else 0.0
            counts[index] += max(0.0, count - earlier)
    return DirectionFidelity(
        direction=name,
        packets=packets,
        median_s=quantile(bounds, counts, 0.5),
        p99_s=quantile(bounds, counts, 0.99),
        own_drops=own,
        bounds_s=bounds,
        counts=tuple(counts),
        queue_bytes_most=max((each.queue_bytes for each in track if each.queue_bytes is not None), default=None),
    )
