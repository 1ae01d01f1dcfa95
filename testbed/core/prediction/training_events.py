"""Level 2: training as events on one heap, for what closed forms leave out. Pure.

Sites compute layer by layer, forward and in reverse backward; an exchange is ready when the slowest site has computed
what it sends; it holds a slot of the library, then the lanes of the fiber, one for each direction, then propagates; a
later pass waits for it, and takes the outer step of what has arrived. Checkpoints stop compute, not exchanges. Sites of
equal speed are one process, so that 100,000 accelerators cost as much as two; steps that neither send nor wait for
anything are one event, so that a million steps between exchanges cost as much as one.

Utilization is n T / time until the last exchange of step n - 1 has arrived, for n steps, a whole number of cycles; or,
where rounds overlap each other, of the steps between two marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE
from testbed.core.prediction.event_heap import Fiber, Process, Signal, Simulation, Slots, Transfer
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Exposed, Outcome

__all__ = ["Checkpoints", "Operation", "Plan", "parts_of", "simulate"]


@dataclass(frozen=True)
class Operation:
    """One operation of a step's exchange.

    Points of a step count layers: 0 to L is the forward pass, L to 2 L the backward pass.

    Attributes:
        bits: on the fiber, each direction, wire factor included.
        delays: one-way delays in sequence.
        ready: the point of its step at which the data is there.
        gate_steps: the step that waits for it is that many steps later; with 0, ``gate`` is ``ready`` or later.
        gate: the point of that step.
        fiber: index of the fiber that carries it.
        together: all sites take part in one operation. Else each site sends its own: there and back, one after the
            other, each in its direction; and the gate waits for those of all sites.
        outer_s: time of the outer step of what has arrived: of each site at the gate, or else between there and back.
    """

    bits: float
    delays: float
    ready: float
    gate_steps: int
    gate: float
    fiber: int = 0
    together: bool = True
    outer_s: float = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints that stop compute for ``seconds`` after every ``every`` steps."""

    every: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What ``steps`` steps exchange.

    Attributes:
        exchanges: operations by step, in the order in which they ask for the library; steps without any are left out.
        fibers: payload rate in bit/s and one-way delay in seconds of each; empty for those of the inputs.
        measured: the steps at whose beginning the measurement begins and ends; None for all steps, until the last
            exchange has arrived.
    """

    steps: int
    exchanges: Mapping[int, tuple[Operation, ...]]
    fibers: tuple[tuple[float, float], ...] = ()
    measured: tuple[int, int] | None = None


_WAIT, _MARK, _SEND, _CHECKPOINT = range(4)
_FIRST: Final = -1
"""Place of gates of earlier steps among what happens at one point: before the step's own operations."""


class _Trip:
    """One operation of all sites, or of one: its transfers one after the other, ready once all participants are."""

    __slots__ = ("arrived", "legs", "missing")

    def __init__(self, legs: list[Transfer], participants: int) -> None:
        self.legs = legs
        self.missing = participants
        self.arrived: Signal = legs[-1].arrived

    def during(self, since_s: float, until_s: float) -> Exposed:
        """Split the wait from ``since_s`` to ``until_s`` by what the trip was doing."""
        waiting_s = max(0.0, min(until_s, self.legs[0].ready_s) - since_s)
        return parts_of(self.legs, since_s, until_s) + Exposed(waiting_s=waiting_s)


def _arrival_s(trip: _Trip) -> float:
    return trip.arrived.at_s or 0.0


def parts_of(legs: Iterable[Transfer], since_s: float, until_s: float) -> Exposed:
    """Split the time that ``legs``, one after the other, were on their way between two moments; gaps are software."""
    total, before_s = Exposed(), None
    for leg in legs:
        if before_s is not None:
            gap_s = min(until_s, leg.ready_s) - max(since_s, before_s)
            total = total + Exposed(software_s=max(0.0, gap_s))
        before_s = math.inf if leg.arrived.at_s is None else leg.arrived.at_s
        begin_s, end_s = max(since_s, leg.ready_s), min(until_s, before_s)
        if end_s > begin_s:
            total = total + Exposed.during(begin_s, end_s, leg.ready_s, leg.started_s + leg.software_s, leg.sent_s)
    return total


class _Exchanges:
    """All operations of a plan, and the fibers that carry them."""

    def __init__(self, inputs: Inputs, plan: Plan, simulation: Simulation, classes: int) -> None:
        self._simulation = simulation
        self._operations: dict[tuple[int, int], Operation] = {}
        self._trips: dict[tuple[int, int], list[_Trip]] = {}
        rates = plan.fibers or ((inputs.rate_bps, inputs.delay_s),)
        libraries = [Slots(inputs.in_flight) for _ in range(classes)]
        self._fibers = [[Fiber(simulation, slots) for _ in rates] for slots in libraries]
        for step, operations in plan.exchanges.items():
            for index, it in enumerate(operations):
                rate_bps, delay_s = rates[it.fiber]
                serial_s = it.bits / rate_bps if it.bits else 0.0
                self._operations[step, index] = it
                ways = [(serial_s, serial_s)] if it.together else [(serial_s, 0.0), (0.0, serial_s)]
                self._trips[step, index] = [
                    _Trip(
                        [Transfer(inputs.operation_s, way, it.delays * delay_s) for way in ways],
                        classes if it.together else 1,
                    )
                    for _ in range(1 if it.together else classes)
                ]

    def of(self, step: int, index: int) -> list[_Trip]:
        """Return the trips that a gate of an operation waits for."""
        return self._trips[step, index]

    def last(self) -> _Trip | None:
        """Return the trip that arrived last; None without any."""
        return max((trip for some in self._trips.values() for trip in some), key=_arrival_s, default=None)

    def outer_s(self, step: int, index: int) -> float:
        """Return the outer step that a site takes at the gate of an operation."""
        operation = self._operations[step, index]
        return operation.outer_s if operation.together else 0.0

    def reach(self, step: int, index: int, number: int) -> None:
        """Let the site ``number`` have computed what an operation sends."""
        operation = self._operations[step, index]
        trip = self._trips[step, index][0 if operation.together else number]
        trip.missing -= 1
        if trip.missing == 0:
            fiber = self._fibers[0 if operation.together else number][operation.fiber]
            if operation.together:
                fiber.send(trip.legs[0])
            else:
                self._simulation.start(self._there_and_back(fiber, trip, operation.outer_s))

    @staticmethod
    def _there_and_back(fiber: Fiber, trip: _Trip, outer_s: float) -> Process:
        there, back = trip.legs
        fiber.send(there)
        yield there.arrived
        yield outer_s
        fiber.send(back)


def simulate(inputs: Inputs, plan: Plan, checkpoints: Checkpoints | None = None) -> Outcome:
    """Return what the steps of ``plan`` cost at the first of the fastest sites."""
    speeds = tuple(sorted(set(inputs.slowdowns))) or (1.0,)  # sites that are alike collapse
    simulation = Simulation()
    exchanges = _Exchanges(inputs, plan, simulation, len(speeds))
    actions, left = _actions(inputs, plan, checkpoints)
    account = _Account()
    ends = [0.0] * len(speeds)

    def site(number: int, speed: float) -> Process:
        step_s, told = inputs.step_s * speed, account if number == 0 else _Account()
        last_step, last_s = 0, 0.0
        for step, things in actions:
            for point, kind, value in things:
                here_s = _at_s(point, inputs.layers, step_s)
                pause_s = (step - last_step) * step_s + (here_s - last_s)
                if pause_s > 0:
                    yield pause_s
                last_step, last_s = step, here_s
                if kind == _SEND:
                    exchanges.reach(step, value, number)
                elif kind == _MARK:
                    told.mark(simulation.now_s)
                elif kind == _CHECKPOINT:
                    yield value
                    told.stopped_s += value
                else:
                    since_s = simulation.now_s
                    trips = [trip for key in value for trip in exchanges.of(*key)]
                    for trip in trips:
                        if trip.arrived.at_s is None:
                            yield trip.arrived
                    if simulation.now_s > since_s:
                        last = max(trips, key=_arrival_s)  # what the pass waited for in the end
                        told.add(last.during(since_s, simulation.now_s))
                    if outer_s := sum(exchanges.outer_s(*key) for key in value):
                        yield outer_s
                        told.add(Exposed(software_s=outer_s))
        yield (plan.steps - last_step) * step_s - last_s
        ends[number] = simulation.now_s

    for number, speed in enumerate(speeds):
        simulation.start(site(number, speed))
    simulation.run()
    steps = plan.steps
    if plan.measured is None:
        outer_s = math.fsum(exchanges.outer_s(*key) for key in left)
        account.mark_end(max(ends), ends[0], exchanges.last(), outer_s)
    else:
        steps = plan.measured[1] - plan.measured[0]
    exposed = account.total * (1 / steps)
    bits = _bits(plan, 0 if plan.measured is None else plan.measured[0])
    return Outcome(
        step_s=account.seconds / steps,
        compute_s=inputs.fastest_s,
        exposed=exposed,
        bits_per_step=bits[-1] / steps,
        peak_bps=0.0,
        formula="events",
        checkpoint_s=account.stopped_s / steps,
        bits_by_fiber=tuple(it / steps for it in bits),
    )


class _Account:
    """Where the time of the site that is accounted for goes, from the first mark, or the beginning, to the last."""

    def __init__(self) -> None:
        self.since_s = self.until_s = self.stopped_s = 0.0
        self.total = Exposed()
        self._marks = 0

    @property
    def seconds(self) -> float:
        return self.until_s - self.since_s

    def add(self, exposed: Exposed) -> None:
        self.total = self.total + exposed

    def mark(self, now_s: float) -> None:
        """Begin here, or end here."""
        self._marks += 1
        if self._marks == 1:
            self.since_s, self.stopped_s, self.total = now_s, 0.0, Exposed()
        self.until_s = now_s

    def mark_end(self, end_s: float, own_end_s: float, last: _Trip | None, outer_s: float) -> None:
        """End once all sites have computed, the last exchange has arrived, and ``outer_s`` of outer steps are over."""
        if end_s > own_end_s:  # the fastest site waits for the slowest at the latest in the exchange after these steps
            self.add(Exposed(waiting_s=end_s - own_end_s))
        if last is not None and _arrival_s(last) > end_s:
            self.add(last.during(end_s, _arrival_s(last)))
            end_s = _arrival_s(last)
        self.add(Exposed(software_s=outer_s))
        self.until_s = end_s + outer_s


def _at_s(point: float, layers: int, step_s: float) -> float:
    """Return the compute of a step up to a point of it."""
    forward, backward = min(point, layers), max(0.0, point - layers)
    return step_s * (forward * FORWARD_SHARE + backward * (1 - FORWARD_SHARE)) / layers


def _actions(
    inputs: Inputs, plan: Plan, checkpoints: Checkpoints | None
) -> tuple[list[tuple[int, list[tuple[float, int, Any]]]], list[tuple[int, int]]]:
    """Return what happens in each step, in order, and the operations that no step of the plan waits for.

    A step is (step, [(point, kind, operation, operations or seconds)]).
    """
    left: list[tuple[int, int]] = []
    by_step: dict[int, list[tuple[float, float, int, Any]]] = {}
    gates: dict[tuple[int, float], list[tuple[int, int]]] = {}
    for step, operations in plan.exchanges.items():
        for index, it in enumerate(operations):
            by_step.setdefault(step, []).append((it.ready, 2.0 * index, _SEND, index))
            if it.gate_steps == 0:
                by_step[step].append((it.gate, 2.0 * index + 1, _WAIT, [(step, index)]))
            elif step + it.gate_steps < plan.steps or (plan.measured and step + it.gate_steps == plan.steps):
                gates.setdefault((step + it.gate_steps, it.gate), []).append((step, index))
            else:
                left.append((step, index))
    for (step, gate), keys in gates.items():
        by_step.setdefault(step, []).append((gate, _FIRST, _WAIT, keys))
    for step in plan.measured or ():
        by_step.setdefault(step, []).append((0.0, _FIRST / 2, _MARK, None))
    if checkpoints is not None:
        for step in range(checkpoints.every - 1, plan.steps, checkpoints.every):
            by_step.setdefault(step, []).append((2.0 * inputs.layers, math.inf, _CHECKPOINT, checkpoints.seconds))
    actions = [
        (step, [(point, kind, value) for point, _, kind, value in sorted(things, key=lambda it: it[:2])])
        for step, things in sorted(by_step.items())
    ]
    return actions, left


def _bits(plan: Plan, since: int) -> list[float]:
    """Return the bits of each fiber and direction from step ``since`` on."""
    bits = [0.0] * max(1, len(plan.fibers))
    for step, operations in plan.exchanges.items():
        if step >= since:
            for it in operations:
                bits[it.fiber] += it.bits
    return bits
