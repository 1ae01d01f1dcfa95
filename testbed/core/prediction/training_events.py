"""Level 2: training as events on one heap, for what closed forms leave out. Pure.

Sites compute layer by layer, forward and in reverse backward; an exchange is ready when the slowest site has computed
what it sends; it holds a slot of the library, then the lane of the fiber, then propagates; a later forward pass waits
for it. Sites of equal speed are one process, so that 100,000 accelerators cost as much as two.

Utilization is n T / time until the last exchange of step n - 1 has arrived, for n steps, a whole number of cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE
from testbed.core.prediction.event_heap import Lane, Process, Simulation, Transfer
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Exposed, Outcome

__all__ = ["AFTER_BACKWARD", "Operation", "simulate"]

AFTER_BACKWARD: Final = -1
"""As ``ready_layer``: once the whole backward pass is done."""


@dataclass(frozen=True)
class Operation:
    """One operation of a step's exchange.

    Attributes:
        bits: on the fiber, each direction, wire factor included.
        delays: one-way delays in sequence.
        ready_layer: the layer whose backward pass it waits for, or :data:`AFTER_BACKWARD`.
        gate_steps: the forward pass that waits for it is that many steps later, 1 or more.
        gate_layer: the layer of that forward pass.
    """

    bits: float
    delays: float
    ready_layer: float
    gate_steps: int
    gate_layer: int


class _Meeting:
    """An operation that every site must reach before it is ready."""

    __slots__ = ("arrivals", "first_s", "transfer")

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.arrivals = 0


def simulate(inputs: Inputs, exchange: Callable[[int], Iterable[Operation]], steps: int) -> Outcome:
    """Return what ``steps`` steps cost at a site of the usual speed, if step s sends ``exchange(s)``.

    The site that is accounted for is the first of the fastest sites.
    """
    speeds = tuple(sorted(set(inputs.slowdowns))) or (1.0,)  # sites that are alike collapse
    simulation = Simulation()
    lane = Lane(simulation, inputs.in_flight)
    meetings: dict[tuple[int, int], _Meeting] = {}
    gates: dict[int, dict[int, list[Transfer]]] = {}
    plan = {step: tuple(exchange(step)) for step in range(steps)}
    for step, operations in plan.items():
        for index, it in enumerate(operations):
            transfer = Transfer(
                inputs.operation_s, it.bits / inputs.rate_bps if it.bits else 0.0, it.delays * inputs.delay_s
            )
            meetings[step, index] = _Meeting(transfer)
            gates.setdefault(step + it.gate_steps, {}).setdefault(it.gate_layer, []).append(transfer)
    ends = [0.0] * len(speeds)
    exposed: list[Exposed] = []

    def reach(step: int, index: int) -> None:
        meeting = meetings[step, index]
        meeting.arrivals += 1
        if meeting.arrivals == len(speeds):
            lane.send(meeting.transfer)

    def site(number: int, speed: float) -> Process:
        layer_s = inputs.step_s * speed / inputs.layers
        forward_s, backward_s = layer_s * FORWARD_SHARE, layer_s * (1 - FORWARD_SHARE)
        for step in range(steps):
            position = 0.0
            waits = gates.get(step, {})
            for layer in sorted(waits):
                yield (layer - position) * forward_s
                position = layer
                since_s = simulation.now_s
                for transfer in waits[layer]:
                    if transfer.arrived.at_s is None:
                        yield transfer.arrived
                if number == 0 and simulation.now_s > since_s:
                    last = max(waits[layer], key=_arrival_s)  # what the pass waited for in the end
                    exposed.append(_during(last, since_s, simulation.now_s))
            yield (inputs.layers - position) * forward_s
            position = inputs.layers
            ready: dict[float, list[int]] = {}
            for index, it in enumerate(plan[step]):
                ready.setdefault(max(0, it.ready_layer), []).append(index)
            for done in sorted(ready, reverse=True):
                yield (position - done) * backward_s
                position = done
                for index in ready[done]:
                    reach(step, index)
            yield position * backward_s
        ends[number] = simulation.now_s

    for number, speed in enumerate(speeds):
        simulation.start(site(number, speed))
    simulation.run()
    last = max((it.transfer for it in meetings.values()), key=_arrival_s, default=None)
    end_s = max(ends)
    if end_s > ends[0]:  # the fastest site waits for the slowest at the latest in the exchange after these steps
        exposed.append(Exposed(waiting_s=end_s - ends[0]))
    if last is not None and _arrival_s(last) > end_s:
        exposed.append(_during(last, end_s, _arrival_s(last)))
        end_s = _arrival_s(last)
    total = sum(exposed, Exposed()) * (1 / steps)
    compute_s = inputs.step_s * speeds[0]
    bits = sum(it.bits for operations in plan.values() for it in operations) / steps
    return Outcome(end_s / steps, compute_s, total, bits, 0.0, "events")


def _arrival_s(transfer: Transfer) -> float:
    return transfer.arrived.at_s or 0.0


def _during(transfer: Transfer, since_s: float, until_s: float) -> Exposed:
    software_until_s = min(transfer.sent_from_s, transfer.started_s + transfer.software_s)
    return Exposed.during(since_s, until_s, transfer.ready_s, software_until_s, transfer.sent_s)
