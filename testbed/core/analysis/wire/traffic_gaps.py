"""Silences in the traffic of a run, from counters that are read once a second: of each fiber and of each node.

Counters tell how many bytes moved between two readings, not when. A *silence* is a run of intervals in which nothing
moved, between two in which something did. From the last byte before it to the first one after it, it lasted at least
those intervals, and at most one more at each end. A silence that no whole interval lies in cannot be seen.

*Nothing* means less than 1 % of the mean rate over the whole time, as TCP's probes and ARP go on. Before the first
traffic and after the last one there is no silence: the program had not begun to talk, or was done; what lasts to the
end is told apart (``ended_t`` None), as the program may have been waiting.

With these the traffic's return after a fault has a bound: the first interval with traffic after the silence ends at
most that long after the fault began.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.samples import FiberSample, NodeSample

__all__ = ["Silence", "TrafficBack", "TrafficGaps", "TrafficTrack", "evaluate"]

NOTHING: Final = 0.01
"""Of the mean rate."""
_LEAST_BYTES: Final = 2_000
"""A track that moved no more than this has no traffic to be silent."""
_SETTLE: Final = 2
"""A silence that begins up to this many readings after a fault's end counts for it."""

Reading = tuple[float, int]


@dataclass(frozen=True)
class Silence:
    """No traffic from ``began_t`` (a reading) to ``ended_t``; None: to the end of the run, seen until ``seen_t``.

    ``least_s`` and ``most_s`` bound it; ``back_by_t`` is the end of the first interval with traffic after it.
    """

    began_t: float
    ended_t: float | None
    seen_t: float
    least_s: float
    most_s: float | None
    back_by_t: float | None


@dataclass(frozen=True)
class TrafficBack:
    """What a fault did to a track: its longest silence near the fault, and by when traffic was back.

    ``back_within_s``: from the fault's beginning, an upper bound; None: not back as far as was seen.
    """

    fault: str
    silence: Silence
    back_within_s: float | None


@dataclass(frozen=True)
class TrafficTrack:
    """One direction: ``name`` is ``toward west``, ``north:west``, or ``west-0, sent``.

    Attributes:
        kind: ``site`` (all fibers that end there), ``fiber`` or ``node``.
        byte_count: moved while the program ran.
        interval_s: median time between two readings.
        silences: in the order of time.
        longest_calm: the longest one outside of every fault; None without one.
        back: by fault, those that were silent near it.
    """

    name: str
    kind: str
    byte_count: int
    interval_s: float
    silences: tuple[Silence, ...]
    longest_calm: Silence | None
    back: tuple[TrafficBack, ...]

    @property
    def longest(self) -> Silence | None:
        return max(self.silences, key=lambda silence: silence.least_s, default=None)


@dataclass(frozen=True)
class TrafficGaps:
    """``idle`` are the names of tracks without traffic."""

    tracks: tuple[TrafficTrack, ...] = ()
    idle: tuple[str, ...] = ()

    def of(self, kind: str) -> tuple[TrafficTrack, ...]:
        return tuple(track for track in self.tracks if track.kind == kind)


def evaluate(
    fibers: Iterable[FiberSample],
    nodes: Iterable[NodeSample],
    windows: Sequence[FaultWindow],
    began_t: float | None,
    ended_t: float | None,
    *,
    done: bool = False,
) -> TrafficGaps:
    """Return the silences from ``began_t`` to ``ended_t``, the times of the program.

    ``done``: it ended well, so that no traffic after the last one is no silence.
    """
    tracks: list[TrafficTrack] = []
    idle: list[str] = []
    for (kind, name), readings in _readings(fibers, nodes).items():
        inside = [
            reading
            for reading in readings
            if (began_t is None or reading[0] >= began_t) and (ended_t is None or reading[0] <= ended_t)
        ]
        track = _track(kind, name, inside, windows, done)
        if track is not None:
            tracks.append(track)
        elif len(inside) > 1:
            idle.append(name)
    return TrafficGaps(tuple(tracks), tuple(idle))


def _readings(fibers: Iterable[FiberSample], nodes: Iterable[NodeSample]) -> Mapping[tuple[str, str], list[Reading]]:
    """Return (kind, name) -> the readings of its counter, in the order of time."""
    of_fiber: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        of_fiber.setdefault(sample.direction, []).append(sample)
    by_place: dict[tuple[str, str], list[Reading]] = {}
    toward: dict[str, dict[float, int]] = {}
    for track in of_fiber.values():
        moved_by = toward.setdefault(track[0].toward, {})
        for t, count in _moved([(sample.t, sample.byte_count) for sample in track]):
            moved_by[t] = moved_by.get(t, 0) + count
    for site, moved_by in sorted(toward.items()):
        by_place["site", f"toward {site}"] = _accumulated(sorted(moved_by.items()))
    for direction in sorted(of_fiber):
        by_place["fiber", direction] = _accumulated(
            _moved([(sample.t, sample.byte_count) for sample in of_fiber[direction]])
        )
    of_node: dict[str, list[NodeSample]] = {}
    for node_sample in nodes:
        of_node.setdefault(node_sample.node, []).append(node_sample)
    for node, samples in of_node.items():
        by_place["node", f"{node}, sent"] = _accumulated(_moved([(sample.t, sample.sent_bytes) for sample in samples]))
        by_place["node", f"{node}, received"] = _accumulated(
            _moved([(sample.t, sample.received_bytes) for sample in samples])
        )
    return by_place


def _moved(readings: Sequence[Reading]) -> list[Reading]:
    """Return (t, bytes since the reading before). A counter that went back was reset: it counts from zero."""
    moved = [(readings[0][0], 0)] if readings else []
    for (_, before), (t, after) in itertools.pairwise(readings):
        moved.append((t, after - before if after >= before else after))
    return moved


def _accumulated(moved: Sequence[Reading]) -> list[Reading]:
    return list(zip((t for t, _ in moved), itertools.accumulate(count for _, count in moved), strict=True))


def _track(
    kind: str, name: str, readings: Sequence[Reading], windows: Sequence[FaultWindow], done: bool
) -> TrafficTrack | None:
    """Return the track; None if nothing moved, or there are too few readings."""
    if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
        return None
    whole = readings[-1][1] - readings[0][1]
    if whole <= _LEAST_BYTES:
        return None
    interval_s = statistics.median(after - before for (before, _), (after, _) in itertools.pairwise(readings))
    every = _silences(readings, NOTHING * whole / (readings[-1][0] - readings[0][0]))
    silences = tuple(record for record in every if record.ended_t is not None or not done)
    backs = (_back(silences, window, interval_s) for window in windows)
    calm = [silence for silence in silences if not any(_near(silence, window, interval_s) for window in windows)]
    return TrafficTrack(
        name=name,
        kind=kind,
        byte_count=whole,
        interval_s=interval_s,
        silences=silences,
        longest_calm=max(
            (silence for silence in calm if silence.ended_t is not None),
            key=lambda silence: silence.least_s,
            default=None,
        ),
        back=tuple(back for back in backs if back is not None),
    )


def _silences(readings: Sequence[Reading], least_rate: float) -> Iterable[Silence]:
    """Yield the runs of intervals with less than ``least_rate`` B/s after the first traffic."""
    began: int | None = None
    talked = False
    for at, ((t, before), (then, after)) in enumerate(itertools.pairwise(readings)):
        if after - before > least_rate * (then - t):
            if began is not None:
                yield _closed(readings, began, at)
            began, talked = None, True
        elif talked and began is None:
            began = at
    if began is not None:
        begin_t, seen_t = readings[began][0], readings[-1][0]
        yield Silence(begin_t, None, seen_t, seen_t - begin_t, None, None)


def _closed(readings: Sequence[Reading], began: int, at: int) -> Silence:
    """Return the silence from reading ``began`` to reading ``at``, each with an interval of traffic beyond it."""
    begin_t, end_t = readings[began][0], readings[at][0]
    back_by_t = readings[at + 1][0]
    return Silence(begin_t, end_t, end_t, end_t - begin_t, back_by_t - readings[began - 1][0], back_by_t)


def _near(silence: Silence, window: FaultWindow, interval_s: float) -> bool:
    """Whether a silence may be a fault's: it overlaps the fault, or begins within two readings of its end."""
    over_t = silence.seen_t if silence.back_by_t is None else silence.back_by_t
    late = window.ended_t is not None and silence.began_t >= window.ended_t + _SETTLE * interval_s
    return over_t > window.began_t and not late


def _back(silences: Sequence[Silence], window: FaultWindow, interval_s: float) -> TrafficBack | None:
    near = [silence for silence in silences if _near(silence, window, interval_s)]
    if not near:
        return None
    longest = max(near, key=lambda silence: silence.least_s)
    back_within_s = None if longest.back_by_t is None else longest.back_by_t - window.began_t
    return TrafficBack(window.fault, longest, back_within_s)
