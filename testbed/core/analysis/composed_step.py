"""A mean step composed of its operations, timed alone, and of its compute. Pure.

What the rank stands still for takes what it took alone, one operation after the other. What goes on beside the backward
pass, bucket by bucket, exposes what ends after it: buckets queue for the slots of the library or for the lane of the
fiber as in ``predict`` (``bucket_pipeline.py``); several operations of a bucket follow one another, those inside the
site each for one bucket at a time. Of a fragment that lands some steps later, what it takes longer than those is
exposed; fragments queue for the lane. After the last step all fragments on their way land, before what ends the job is
exchanged. A rank waits for the slowest of those with which it ends the step: by how much their compute differs was
timed, too.

A bucket holds its slot for as long as one of a burst that was timed: the buckets in the other slots share the lane with
each of its messages. A collective sends and waits for its peers in turn, so buckets do not take the lane one after the
other. Of buckets that queue for the lane alone, what a burst takes longer than one bucket is their time on the lane.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.core.analysis.step_costs import FiberModel
from testbed.core.analysis.volleys import EXCHANGE, Round, Signature, Volley, cycle_of, rounds, signature
from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE, send_in_order
from testbed.core.prediction.predicted_outcome import Exposed
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["Alone", "composed", "library_s", "slots"]

IN_FLIGHT: Final = 2
"""Operations that torch's gloo runs at once: it has two threads."""
_MOST_STEPS: Final = 400
"""A longer job is its first cycles: the exchange at its end weighs little."""


@dataclass(frozen=True)
class Alone:
    """What was timed: volleys, and how long each took; and steps of compute, each with the time of every rank."""

    planned: Sequence[Volley]
    took_s: Sequence[float]
    steps_s: Sequence[Sequence[float]] = ()

    def __bool__(self) -> bool:
        return bool(self.planned)

    def one(self, of: Round) -> float:
        """Return how long one operation, or one part, of ``of`` took after an idle time; 0 if it was not timed."""
        return next((s for it, s in self._timed if it.burst == 1 and of.like(it)), 0.0)

    def burst(self, of: Round) -> tuple[int, float]:
        """Return how many parts a burst had, and how long it took; (1, what one took) if none was timed."""
        return next(((it.burst, s) for it, s in self._timed if it.burst > 1 and of.like(it)), (1, self.one(of)))

    def exchange_s(self, of: Signature, twin: Twin) -> float | None:
        """Return how long all that follows an inner optimizer took; None if it was not timed."""
        if not of:
            return None
        return next(
            (s for it, s in self._timed if it.kind == EXCHANGE and signature(twin.operations(it.step)) == of), None
        )

    @property
    def _timed(self) -> Sequence[tuple[Volley, float]]:
        return tuple(zip(self.planned, self.took_s, strict=False))


@dataclass(frozen=True)
class _Bucket:
    """What a part of an operation costs, in seconds: time on the lane, one part after the other, and the rest, during
    which it holds its slot. ``cold_s`` more for the first part; ``library_s`` of all that is the library's."""

    lane_s: float
    held_s: float
    cold_s: float
    in_flight: int | None
    library_s: float


@dataclass
class _Clock:
    """Time of the job, and fragments on their way: the step after which each lands, when it will have arrived."""

    now_s: float = 0.0
    lane_free_s: float = 0.0
    flying: list[tuple[int, float]] = field(default_factory=list)


def composed(twin: Twin, fiber: FiberModel, compute_s: float, alone: Alone) -> tuple[Exposed, float]:
    """Return the mean exposed time of a step, and the part of it that is inside the sites.

    ``compute_s``: of a step. Propagation and serialization are at most what twin and certificate say of a step, as in
    ``critical_path``; what an operation takes beyond them is the library's. The first step of a job is left out of the
    mean, as of what is measured: it makes connections. The end of the job is in it.
    """
    steps = twin.layout.steps if twin.layout.steps <= _MOST_STEPS else min(twin.layout.steps, 2 * cycle_of(twin))
    known: dict[tuple[Operation, ...], tuple[Exposed, float, float, tuple[Round, ...]]] = {}
    left_out = int(1 < steps == twin.layout.steps)  # in whole cycles each exchange has its share as it is
    clock, total, inside_s = _Clock(), Exposed(), 0.0
    for step in range(1, steps + 1):
        operations = tuple(twin.operations(step))
        if operations not in known:
            known[operations] = _step(operations, twin, fiber, compute_s, alone)
        exposed, in_site_s, update_s, begun = known[operations]
        clock.now_s += compute_s + update_s
        waited_s = _fragments(clock, step, begun, twin, fiber, alone)
        clock.now_s += waited_s + exposed.total_s - update_s
        if step > left_out:
            total, inside_s = total + exposed + Exposed(waiting_s=waited_s), inside_s + in_site_s
    return total * (1 / (steps - left_out)), inside_s / (steps - left_out)


def library_s(twin: Twin, fiber: FiberModel, alone: Alone) -> float:
    """Return o: what the library takes for an operation across the fiber, the mean over those of a cycle; 0 if
    nothing was timed."""
    found = []
    for step in range(1, cycle_of(twin) + 1 if alone else 1):
        operations = twin.operations(step)
        crossing = [it for it in rounds(operations, twin.layout.sites) if it.crosses]
        exchange_s = alone.exchange_s(signature(operations), twin)
        if exchange_s is not None and any(not it.first.lands for it in crossing):
            moved = max(site_bytes([op for it in crossing for op in it.operations], twin.layout.sites).values())
            found.append(max(0.0, exchange_s - twin.delays * fiber.delay_s - 8 * moved / fiber.rate_bps))
        else:
            found += [_bucket(it, twin, fiber, alone, staged=False).library_s for it in crossing]
    return sum(found) / len(found) if found else 0.0


def _step(
    operations: Sequence[Operation], twin: Twin, fiber: FiberModel, compute_s: float, alone: Alone
) -> tuple[Exposed, float, float, tuple[Round, ...]]:
    """Return what a step exposes, how much of it in the site, how much before fragments begin, and these."""
    found = rounds(operations, twin.layout.sites)
    beside = [it for it in found if it.first.parts]
    begun = tuple(it for it in found if it.first.lands)
    awaited = [it for it in found if not it.first.lands and not it.first.parts]
    tail_s, tail_inside_s = _tail(beside, twin, fiber, compute_s, alone)
    across_s, in_site_s = tail_s - tail_inside_s, tail_inside_s
    exchange_s = alone.exchange_s(signature(operations), twin)
    if exchange_s is None:
        across_s += sum(it.times * alone.one(it) for it in awaited if it.crosses)
        in_site_s += sum(it.times * alone.one(it) for it in awaited if not it.crosses)
    elif any(it.crosses for it in awaited):
        across_s += exchange_s
    else:
        in_site_s += exchange_s
    crossing = [op for it in (*awaited, *beside) if it.crosses for op in it.operations]
    moved = max(site_bytes(crossing, twin.layout.sites).values(), default=0.0)
    propagation_s = min(across_s, twin.delays * fiber.delay_s)
    serialization_s = min(across_s - propagation_s, 8 * moved / fiber.rate_bps)
    software_s = across_s - propagation_s - serialization_s + in_site_s
    together = [it for of in (*awaited, *beside) for it in of.operations]
    exposed = Exposed(propagation_s, serialization_s, software_s, _peer_wait_s(together, alone.steps_s))
    return exposed, in_site_s, tail_s, begun


def _peer_wait_s(operations: Sequence[Operation], steps_s: Sequence[Sequence[float]]) -> float:
    """Return how long a rank waits, on average, for the slowest of those with which it ends the step."""
    world = min((len(row) for row in steps_s), default=0)
    mates = {rank: {rank} for rank in range(world)}
    for it in operations:
        joined = set().union(*(mates.get(rank, set()) for rank in it.ranks))
        mates.update(dict.fromkeys(joined, joined))
    waits = [max(row[mate] for mate in mates[rank]) - row[rank] for row in steps_s for rank in range(world)]
    return sum(waits) / len(waits) if waits else 0.0


def _tail(
    stages: Sequence[Round], twin: Twin, fiber: FiberModel, compute_s: float, alone: Alone
) -> tuple[float, float]:
    """Return what operations beside the backward pass take beyond it, and the part of it that is inside the site."""
    if not stages:
        return 0.0, 0.0
    count, begin_s = stages[0].first.parts, FORWARD_SHARE * compute_s
    ready = [begin_s + (compute_s - begin_s) * (done + 1) / count for done in range(count)]
    inside_s = 0.0
    for it in stages:
        costs = _bucket(it, twin, fiber, alone, staged=len(stages) > 1)
        ready[0] += costs.cold_s
        ready = sorted(ready)
        sent = send_in_order(ready, costs.lane_s, costs.held_s, 0.0, costs.in_flight)
        ready = [it.arrived_s for it in sent]
        inside_s = 0.0 if it.crosses else inside_s + costs.library_s
    tail_s = max(0.0, max(ready) - compute_s)
    return tail_s, min(inside_s, tail_s) if any(it.crosses for it in stages) else tail_s


def _bucket(it: Round, twin: Twin, fiber: FiberModel, alone: Alone, *, staged: bool) -> _Bucket:
    """Return what a part costs, so that a burst takes as long as it was timed."""
    serial_s = propagation_s = 0.0
    if it.crosses:
        moved = max(site_bytes(it.operations, twin.layout.sites).values(), default=0.0) / max(1, it.first.parts)
        serial_s, propagation_s = 8 * moved / fiber.rate_bps / it.times, twin.delays * fiber.delay_s
    count, took_s = alone.burst(it)
    in_flight = 1 if staged and not it.crosses else slots(it)
    if in_flight is None:
        return _messages(count, took_s, alone.one(it), serial_s, propagation_s)
    held_s = took_s / math.ceil(count / in_flight)
    software_s = max(0.0, held_s - serial_s - propagation_s)
    return _Bucket(0.0, held_s, max(0.0, alone.one(it) - held_s), in_flight, software_s)


def _messages(count: int, took_s: float, one_s: float, serial_s: float, propagation_s: float) -> _Bucket:
    """Return what a part costs of which any number is on its way at once: ``count`` took ``took_s``, and one ``one_s``
    after an idle time. They queue for the lane alone, so what each one more takes is lane; the rest is there once."""
    lane_s = max(serial_s, (took_s - one_s) / (count - 1)) if count > 1 else serial_s
    lane_s = min(lane_s, took_s / count)
    latency_s = took_s - count * lane_s
    cold_s = max(0.0, one_s - lane_s - latency_s)
    software_s = max(0.0, latency_s - propagation_s)
    return _Bucket(lane_s, latency_s, cold_s, None, software_s + max(0.0, lane_s - serial_s))


def slots(it: Round) -> int | None:
    """Return how many operations such as these the library runs at once; None for any number: it sends and receives
    messages in a thread that waits for none of them."""
    return None if it.first.kind == "send" else IN_FLIGHT


def _fragments(clock: _Clock, step: int, begun: Sequence[Round], twin: Twin, fiber: FiberModel, alone: Alone) -> float:
    """Send what begins after ``step``; return how long the step waits for what lands after it."""
    for it in begun:
        moved = max(site_bytes(it.operations, twin.layout.sites).values(), default=0.0)
        starts_s = max(clock.now_s, clock.lane_free_s)
        clock.lane_free_s = starts_s + 8 * moved / fiber.rate_bps
        clock.flying.append((step + it.first.lands, max(clock.lane_free_s, starts_s + alone.one(it))))
    over = step >= twin.layout.steps  # then nothing is left for later steps
    due = [arrived_s for lands, arrived_s in clock.flying if lands <= step or over]
    clock.flying = [it for it in clock.flying if it[0] > step]
    return max(0.0, max(due, default=0.0) - clock.now_s)
