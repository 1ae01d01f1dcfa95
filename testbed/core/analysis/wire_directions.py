"""Compare the payload that crossed each direction with what the job's all-reduce algorithm moves, both ways.

A ring over the rank order carries 2 (W - 1) / W x n bytes over each of its hops in a step (Patarasuk and Yuan 2009),
and a healthy lab routes each hop over known fibers. So in *calm* stretches (no fault in force, between the first and
the last step of an attempt) the payload of every direction is known; off the ring it is none. Fewer bytes mean that
something went around the fiber; more mean that something else crossed it, or that the algorithm is another one.

The payload is that of TCP: every segment less its headers, so acknowledgements count nothing. Retransmissions are not
payload: the ranks record how many bytes their kernels retransmitted to each peer. Those that replace a dropped segment
cross once, others a second time. Where the drops do not tell, the truth lies between counting them and not, and both
must be outside the tolerance for a verdict of no.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.analysis.timeline import FaultWindow, Stretches
from testbed.core.plan import routing
from testbed.core.plan.addressing import Addressing
from testbed.core.records.rank_log import JobRecord, RankLog
from testbed.core.records.samples import FiberSample
from testbed.core.topology.model import Topology

__all__ = ["HEADERS", "LEAST_STEPS", "RING", "TOLERANCE", "DirectionBytes", "compare", "ring_bytes_per_hop"]

HEADERS = 14 + 20 + 32
"""Bytes around the payload of a TCP segment: Ethernet, IPv4, TCP with timestamps."""

TOLERANCE = 0.05

RING = "gloo ring"
"""The only algorithm with a model: all-reduces of torch's gloo (``algorithm`` of a job record)."""

LEAST_STEPS = 10
"""Calm steps below which the ends of the stretches, where a step is cut in two, would hide a deviation."""


@dataclass(frozen=True)
class DirectionBytes:
    """Payload of one direction in calm stretches; several directions if the kernel spreads flows over them.

    The counters were read at some moment of a step, so ``expected_bytes`` is of as many ``steps`` as lie within the
    stretches, with shares; ``least_bytes`` and ``most_bytes`` are the ends of what is accepted: of the steps that lie
    wholly within them, less the tolerance, and of those that touch them, plus the tolerance. ``measured_bytes`` is
    without retransmissions as far as these crossed twice; ``retransmitted_bytes`` is what ranks retransmitted.
    """

    direction: str
    steps: float
    expected_bytes: float
    least_bytes: float
    most_bytes: float
    measured_bytes: float
    retransmitted_bytes: float
    dropped_bytes: float

    @property
    def too_few(self) -> bool:
        return self.measured_bytes + self._once < self.least_bytes

    @property
    def too_many(self) -> bool:
        return self.measured_bytes + self._once - self.retransmitted_bytes > self.most_bytes

    @property
    def ok(self) -> bool:
        return not self.too_few and not self.too_many

    @property
    def ratio(self) -> float | None:
        """Measured / expected; None where nothing is expected."""
        return self.measured_bytes / self.expected_bytes if self.expected_bytes else None

    @property
    def _once(self) -> float:
        """The retransmissions taken off ``measured_bytes``, because nothing shows that they replaced a drop."""
        return max(0.0, self.retransmitted_bytes - self.dropped_bytes)


def ring_bytes_per_hop(world_size: int, gradient_bytes: float) -> float:
    """Return the payload that a ring all-reduce sends over each hop, in bytes."""
    return 2.0 * (world_size - 1) / world_size * gradient_bytes


def compare(
    topology: Topology, logs: Sequence[RankLog], fibers: Iterable[FiberSample], windows: Sequence[FaultWindow]
) -> tuple[DirectionBytes, ...]:
    """Return the comparison of each direction; () if the algorithm, the route or enough calm steps are not known.

    ``logs`` are those of all ranks, in their order.
    """
    jobs = [log.job for log in logs if log.job]
    if not jobs or any(job.algorithm != RING or job.gradient_bytes is None for job in jobs):
        return ()
    flows = _flows(topology, [job.site for job in jobs])
    if flows is None:
        return ()
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    groups = {group for path in flows for group in path}
    grouped = {direction for group in groups for direction in group}
    groups |= {frozenset((direction,)) for direction in tracks if direction not in grouped}
    if not grouped <= tracks.keys():
        return ()
    steps = _steps(logs)
    calm = Stretches(
        (window.began_t, window.ended_t if window.ended_t is not None else float("inf")) for window in windows
    )
    hop = ring_bytes_per_hop(jobs[0].world_size, jobs[0].gradient_bytes or 0)
    resent = _Resent(topology, logs)
    mtu = {link.name: link.mtu for link in topology.links}
    found = [
        _direction(
            group,
            [tracks[it] for it in sorted(group)],
            sum(path.count(group) for path in flows) * hop,
            float(jobs[0].gradient_bytes or 0),
            steps,
            calm,
            resent,
            mtu,
        )
        for group in sorted(groups, key=sorted)
    ]
    return tuple(it for it in found if it is not None) if all(found) else ()


_Group = frozenset[str]
"""Directions of one hop between neighbouring sites, over which the kernel spreads flows; almost always one."""


def _flows(topology: Topology, sites: Sequence[str]) -> list[tuple[_Group, ...]] | None:
    """Return the path of each hop of the ring that leaves its site; None if a path is not known.

    In gloo's ring each rank sends to the rank before it (gloo/allreduce.cc, ``sendRank``).
    """
    paths = []
    for here, there in zip(sites, [sites[-1], *sites[:-1]], strict=True):
        if here != there:
            path = routing.path(topology, here, there)
            if path is None:
                return None
            paths.append(path)
    return paths


@dataclass(frozen=True)
class _Steps:
    """The steps of one attempt, in order of time: from the first rank's begin until the last rank's synchronisation."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]

    def within(self, first_t: float, last_t: float) -> tuple[int, float, int]:
        """Return the steps wholly between two times, their number with shares, and those that touch the interval."""
        first, last = bisect.bisect_right(self.ends, first_t), bisect.bisect_left(self.begins, last_t)
        whole, share = 0, 0.0
        inner = range(first + 1, last - 1)
        whole, share = len(inner), float(len(inner))
        for index in {first, last - 1} if last > first else set():
            begin, end = self.begins[index], self.ends[index]
            inside = min(end, last_t) - max(begin, first_t)
            whole += begin >= first_t and end <= last_t
            share += inside / (end - begin) if end > begin else 1.0
        return whole, share, max(0, last - first)


def _steps(logs: Sequence[RankLog]) -> list[_Steps]:
    found: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for log in logs:
        for it in log.steps:
            found.setdefault(it.attempt, {}).setdefault(it.step, []).append((it.t_begin, it.t_sync))
    attempts = []
    for steps in found.values():
        # A step that some rank did not end (the attempt failed) moved an unknown part of its bytes.
        times = sorted(
            (min(t for t, _ in ranks), max(t for _, t in ranks)) for ranks in steps.values() if len(ranks) == len(logs)
        )
        if times:
            attempts.append(_Steps(tuple(t for t, _ in times), tuple(t for _, t in times)))
    return attempts


def _direction(
    group: _Group,
    tracks: Sequence[Sequence[FiberSample]],
    per_step: float,
    gradient: float,
    attempts: Sequence[_Steps],
    faults: Stretches,
    resent: _Resent,
    mtu: Mapping[str, int],
) -> DirectionBytes | None:
    whole, share, touched = 0, 0.0, 0
    payload = dropped = retransmitted = 0.0
    for track_number, track in enumerate(tracks):
        for first, last, steps in _stretches(track, attempts, faults):
            frame = mtu.get(first.direction.partition(":")[0], 1500) + 14
            payload += _payload(first, last, frame)
            dropped += (frame - HEADERS) * sum(
                max(0, count - first.drops.get(cause, 0)) for cause, count in last.drops.items() if cause != "down"
            )
            if track_number == 0:
                found = steps.within(first.t, last.t)
                whole, share, touched = whole + found[0], share + found[1], touched + found[2]
                retransmitted += resent.between(group, first.t, last.t)
    if whole < LEAST_STEPS:
        return None
    slack = TOLERANCE * gradient if not per_step else 0.0  # off the ring: as much as would matter beside the ring
    twice = max(0.0, retransmitted - dropped)
    return DirectionBytes(
        direction=" + ".join(sorted(group)),
        steps=share,
        expected_bytes=share * per_step,
        least_bytes=(1.0 - TOLERANCE) * whole * per_step,
        most_bytes=(1.0 + TOLERANCE) * touched * per_step + touched * slack,
        measured_bytes=payload - twice,
        retransmitted_bytes=retransmitted,
        dropped_bytes=dropped,
    )


def _payload(first: FiberSample, last: FiberSample, frame: int) -> float:
    moved, segments = last.byte_count - first.byte_count, last.segments - first.segments
    # Runs of the first versions did not count segments.
    return float(moved - HEADERS * segments) if segments > 0 else moved * (frame - HEADERS) / frame


def _stretches(
    track: Sequence[FiberSample], attempts: Sequence[_Steps], faults: Stretches
) -> Iterator[tuple[FiberSample, FiberSample, _Steps]]:
    """Yield the longest calm stretches between samples, each within the steps of one attempt."""
    for steps in attempts:
        begun: FiberSample | None = None
        before: FiberSample | None = None
        inside = [it for it in track if steps.begins[0] <= it.t <= steps.ends[-1]]
        for one, other in pairwise(inside):
            calm = not faults.touch(one.t, other.t) and other.byte_count >= one.byte_count  # an emulator that restarted
            if calm:
                begun, before = begun or one, other
            if begun and before and (not calm or other is inside[-1]):
                yield begun, before, steps
                begun = before = None


class _Resent:
    """Bytes that ranks retransmitted, by the directions that these crossed, cumulative over time."""

    def __init__(self, topology: Topology, logs: Sequence[RankLog]) -> None:
        net = Addressing(topology)
        site = {str(it): topology.site_of(node).name for node in topology.node_names for it in net.node(node)}
        self._times: dict[str, list[float]] = {}
        self._totals: dict[str, list[float]] = {}
        events: dict[str, list[tuple[float, float]]] = {}
        for log in logs:
            job: JobRecord | None = log.job
            before: dict[tuple[int, str], int] = {}
            for step in log.steps:
                for peer, total in step.retransmitted.items():
                    more, before[step.attempt, peer] = total - before.get((step.attempt, peer), 0), total
                    there = site.get(peer, "")
                    if job is None or more <= 0 or there in ("", job.site):
                        continue
                    for group in routing.path(topology, job.site, there) or ():
                        for direction in group:
                            events.setdefault(direction, []).append((step.t_end, float(more)))
        for direction, listed in events.items():
            listed.sort()
            self._times[direction] = [t for t, _ in listed]
            self._totals[direction] = list(itertools.accumulate(more for _, more in listed))

    def between(self, group: _Group, first_t: float, last_t: float) -> float:
        """Return the bytes, from the end of the step before ``first_t`` to the end of that in which ``last_t`` lies."""
        direction = min(group)  # a retransmission counts for all directions of a group
        times, totals = self._times.get(direction, []), [0.0, *self._totals.get(direction, [])]
        last = bisect.bisect_right(times, last_t)
        last += last < len(times)
        return totals[last] - totals[bisect.bisect_right(times, first_t)]
