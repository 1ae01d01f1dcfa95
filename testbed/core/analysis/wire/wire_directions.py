"""Compare the payload that crossed each direction with what the job's strategy moves, both ways.

The strategy's twin says which operations each step has, ``gloo_bytes`` what they move over each hop between ranks, and
a healthy lab routes each hop over known fibers. So in *calm* stretches (no fault in force, between the first and the
last step of an attempt) the payload of every direction is known; on the others it is none. Fewer bytes mean that
something went around the fiber; more mean that something else crossed it, or that the algorithm is another one.

The payload is that of TCP: every segment less its headers, so acknowledgements count nothing. Retransmissions are not
payload: the ranks record how many bytes their kernels retransmitted to each peer. Those that replace a dropped segment
cross once, others a second time. Where the drops do not tell, the truth lies between counting them and not, and both
must be outside the tolerance for a verdict of no.

An acknowledgement that lists what arrived out of order (SACK, RFC 2018) is longer than the headers, so its list looks
like payload of the direction that it takes. Where little payload goes that way and much comes the other way, that can
be most of what is counted. The ranks record how many packets came out of order, each of which has one such
acknowledgement.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.timeline import FaultWindow, Stretches
from testbed.core.analysis.wire.wire_loads import AttemptLoads, Exchanges, MovedBytes, attempt_loads
from testbed.core.plan import routing
from testbed.core.plan.addressing import Addressing
from testbed.core.records.rank_log import JobRecord, RankLog
from testbed.core.records.samples import FiberSample
from testbed.core.topology.direction import link_of
from testbed.core.topology.model import Topology
from testbed.core.training.twin import Twin

__all__ = ["HEADERS", "LEAST_STEPS", "RING", "TOLERANCE", "DirectionBytes", "compare"]

HEADERS = 14 + 20 + 32
"""Bytes around the payload of a TCP segment: Ethernet, IPv4, TCP with timestamps."""

SACK = 28
"""Most bytes of a list of what arrived out of order: 3 blocks of 8 beside timestamps, 2, and 2 of padding."""

TOLERANCE = 0.05

RING = "gloo ring"
"""The only library with a model of its bytes: torch's gloo (``algorithm`` of a job record)."""

_SOON_S = 3.0
"""The first sample after the exchange that ends a job comes within this time, if the fibers were still sampled."""

LEAST_STEPS = 10
"""Calm steps below which the ends of the stretches, where a step is cut in two, would hide a deviation."""


@dataclass(frozen=True)
class DirectionBytes:
    """Payload of one direction in calm stretches; several directions if the kernel spreads flows over them.

    The counters were read at some moment of a step, so ``expected_bytes`` is of as many ``steps`` as lie within the
    stretches, with shares; ``least_bytes`` and ``most_bytes`` are the ends of what is accepted: of the exchanges that
    lie wholly within them, less the tolerance, and of those that touch them, plus the tolerance. So where few
    exchanges were seen, or a fault held some back, it is more than the tolerance. ``most_bytes`` includes what
    acknowledgements may list of packets out of order. ``measured_bytes`` is without retransmissions as far as these
    crossed twice; ``retransmitted_bytes`` is what ranks retransmitted.
    """

    direction: str
    steps: float
    expected_bytes: float
    least_bytes: float
    most_bytes: float
    measured_bytes: float
    """Without retransmissions."""
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
    def accepted(self) -> tuple[float, float]:
        """Least and most ratio that count as ok; (0, 0) where nothing is expected."""
        if not self.expected_bytes:
            return 0.0, 0.0
        return self.least_bytes / self.expected_bytes, self.most_bytes / self.expected_bytes

    @property
    def _once(self) -> float:
        """The retransmissions taken off ``measured_bytes``, because nothing shows that they replaced a drop."""
        return max(0.0, self.retransmitted_bytes - self.dropped_bytes)


def compare(
    topology: Topology,
    logs: Sequence[RankLog],
    fibers: Iterable[FiberSample],
    windows: Sequence[FaultWindow],
    twin: Twin | None = None,
    exchanges: Exchanges | None = None,
) -> tuple[DirectionBytes, ...]:
    """Return the comparison of each direction; () if what the library moves, the route or enough calm steps are not
    known.

    ``logs`` are those of all ranks, in their order; without ``twin``, it is that of the logs.
    """
    jobs = [log.job for log in logs if log.job]
    twin = twin or twin_of(logs)
    if twin is None or any(job.algorithm != RING for job in jobs):
        return ()
    loads = attempt_loads(twin, logs, windows, exchanges)
    paths = _paths(topology, {pair for of in loads.values() for load in of.loads for pair in load.moved})
    if not paths:
        return ()
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    groups = {group for path in paths.values() for group in path}
    grouped = {direction for group in groups for direction in group}
    groups |= {frozenset((direction,)) for direction in tracks if direction not in grouped}
    if not grouped <= tracks.keys():
        return ()
    attempts = [(steps, loads[attempt]) for attempt, steps in _steps(logs).items()]
    calm = Stretches(
        (window.began_t, window.ended_t if window.ended_t is not None else float("inf")) for window in windows
    )
    resent = _ByPeer(topology, logs, "retransmitted")
    early = _ByPeer(topology, logs, "out_of_order")
    mtu = {link.name: link.mtu for link in topology.links}
    compared = [
        _direction(
            group,
            [tracks[direction] for direction in sorted(group)],
            Counter(pair for pair, path in paths.items() for hop in path if hop == group),
            attempts,
            calm,
            resent,
            early,
            mtu,
        )
        for group in sorted(groups, key=sorted)
    ]
    return tuple(direction for direction in compared if direction is not None) if all(compared) else ()


_Group = frozenset[str]
"""Directions of one hop between neighbouring sites, over which the kernel spreads flows; almost always one."""


def _paths(topology: Topology, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[_Group, ...]] | None:
    """Return the path of each pair of sites that exchange something; None if a path is not known."""
    paths: dict[tuple[str, str], tuple[_Group, ...]] = {}
    for here, there in pairs:
        path = routing.path(topology, here, there)
        if path is None:
            return None
        paths[here, there] = path
    return paths


@dataclass(frozen=True)
class _Steps:
    """The steps of one attempt, in order of time: from the first rank's begin until the last rank's synchronisation."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    all_began_t: float
    """When the last rank began the first of them. Until then what ranks sent before it (tensors that torch spreads
    over them, say) may still be on its way: a sender goes on once the kernel has the bytes."""

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


def _steps(logs: Sequence[RankLog]) -> dict[int, _Steps]:
    spans_by_step: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for log in logs:
        for record in log.steps:
            spans_by_step.setdefault(record.attempt, {}).setdefault(record.step, []).append(
                (record.t_begin, record.t_sync)
            )
    attempts = {}
    for attempt, steps in spans_by_step.items():
        # A step that some rank did not end (the attempt failed) moved an unknown part of its bytes.
        times = sorted(
            (min(t for t, _ in ranks), max(t for _, t in ranks)) for ranks in steps.values() if len(ranks) == len(logs)
        )
        if times:
            first = min(step for step, ranks in steps.items() if len(ranks) == len(logs))
            began_t = max(t for t, _ in steps[first])
            attempts[attempt] = _Steps(tuple(t for t, _ in times), tuple(t for _, t in times), began_t)
    return attempts


def _direction(
    group: _Group,
    tracks: Sequence[Sequence[FiberSample]],
    sites: Mapping[tuple[str, str], int],
    attempts: Sequence[tuple[_Steps, AttemptLoads]],
    faults: Stretches,
    resent: _ByPeer,
    early: _ByPeer,
    mtu: Mapping[str, int],
) -> DirectionBytes | None:
    """Compare one direction; ``sites``: how often the traffic of a pair of sites crosses it."""
    whole, share, slack = 0, 0.0, 0.0
    moved = MovedBytes()
    payload = dropped = retransmitted = listed = 0.0
    for track_number, track in enumerate(tracks):
        for first, last, steps, loads in _stretches(track, attempts, faults):
            frame = mtu.get(link_of(first.direction), 1500) + 14
            payload += _payload(first, last, frame)
            dropped += (frame - HEADERS) * sum(
                max(0, count - first.drops.get(cause, 0)) for cause, count in last.drops.items() if cause != "down"
            )
            if track_number == 0:
                between = steps.within(first.t, last.t)
                whole, share = whole + between[0], share + between[1]
                slack += TOLERANCE * loads.per_step * between[2]
                moved += loads.between(first.t, last.t, sites)
                retransmitted += resent.between(group, first.t, last.t)
                listed += SACK * early.between(group, first.t, last.t)
    if whole < LEAST_STEPS or (sites and not moved.whole):
        return None
    twice = max(0.0, retransmitted - dropped)
    return DirectionBytes(
        direction=" + ".join(sorted(group)),
        steps=share,
        expected_bytes=moved.share,
        least_bytes=(1.0 - TOLERANCE) * moved.whole,
        # Where nothing is expected: as much as would matter beside what crosses elsewhere.
        most_bytes=(1.0 + TOLERANCE) * moved.touched + (slack if not sites else 0.0) + listed,
        measured_bytes=payload - twice,
        retransmitted_bytes=retransmitted,
        dropped_bytes=dropped,
    )


def _payload(first: FiberSample, last: FiberSample, frame: int) -> float:
    moved, segments = last.byte_count - first.byte_count, last.segments - first.segments
    # Runs of the first versions did not count segments.
    return float(moved - HEADERS * segments) if segments > 0 else moved * (frame - HEADERS) / frame


def _stretches(
    track: Sequence[FiberSample], attempts: Sequence[tuple[_Steps, AttemptLoads]], faults: Stretches
) -> Iterator[tuple[FiberSample, FiberSample, _Steps, AttemptLoads]]:
    """Yield the longest calm stretches between samples, each within the steps and exchanges of one attempt."""
    for steps, loads in attempts:
        begun: FiberSample | None = None
        before: FiberSample | None = None
        inside = [sample for sample in track if steps.all_began_t <= sample.t <= _last_t(track, steps, loads)]
        for one, other in pairwise(inside):
            calm = not faults.touch(one.t, other.t) and other.byte_count >= one.byte_count  # an emulator that restarted
            if calm:
                begun, before = begun or one, other
            if begun and before and (not calm or other is inside[-1]):
                yield begun, before, steps, loads
                begun = before = None


def _last_t(track: Sequence[FiberSample], steps: _Steps, loads: AttemptLoads) -> float:
    """Return until when an attempt's bytes are known: until its last step, or with the exchange that follows it."""
    last_t = max([steps.ends[-1], *(load.end_t for load in loads.loads)])
    if last_t > steps.ends[-1]:
        behind = next((sample.t for sample in track if sample.t >= last_t), last_t)
        # Without a sample behind the exchange, it would be cut in two.
        last_t = behind if behind <= last_t + _SOON_S else max(load.begin_t for load in loads.loads)
    return min(loads.known_until, last_t)


class _ByPeer:
    """What step records count by peer, by the directions from the rank to the peer, cumulative over time.

    ``name``: ``retransmitted``, bytes sent again; or ``out_of_order``, packets whose acknowledgements go there.
    """

    def __init__(self, topology: Topology, logs: Sequence[RankLog], name: str) -> None:
        net = Addressing(topology)
        site = {str(address): topology.site_of(node).name for node in topology.node_names for address in net.node(node)}
        self._times: dict[str, list[float]] = {}
        self._totals: dict[str, list[float]] = {}
        events: dict[str, list[tuple[float, float]]] = {}
        for log in logs:
            job: JobRecord | None = log.job
            before: dict[tuple[int, str], int] = {}
            for step in log.steps:
                for peer, total in getattr(step, name).items():
                    added, before[step.attempt, peer] = total - before.get((step.attempt, peer), 0), total
                    there = site.get(peer, "")
                    if job is None or added <= 0 or there in ("", job.site):
                        continue
                    for group in routing.path(topology, job.site, there) or ():
                        for crossed in group:
                            events.setdefault(crossed, []).append((step.t_end, float(added)))
        for direction, listed in events.items():
            listed.sort()
            self._times[direction] = [t for t, _ in listed]
            self._totals[direction] = list(itertools.accumulate(added for _, added in listed))

    def between(self, group: _Group, first_t: float, last_t: float) -> float:
        """Return the count, from the end of the step before ``first_t`` to the end of that in which ``last_t`` lies."""
        direction = min(group)  # a retransmission counts for all directions of a group
        times, totals = self._times.get(direction, []), [0.0, *self._totals.get(direction, [])]
        last = bisect.bisect_right(times, last_t)
        last += last < len(times)
        return totals[last] - totals[bisect.bisect_right(times, first_t)]
