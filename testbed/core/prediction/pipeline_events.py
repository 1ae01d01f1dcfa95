"""A pipeline across sites as events on one heap: GPipe's two passes, a lane for each direction between stages. Pure.

Every stage computes all micro-batches forward, and then all backward once their gradients come. Activations go out,
gradients come back. What a step exposes is split along its critical path: the messages that were waited for.
"""

from __future__ import annotations

from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE
from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.event_heap import (
    BACK,
    MOST_EVENTS,
    OUT,
    Fiber,
    Process,
    Simulation,
    Slots,
    TooMany,
    Transfer,
)
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Exposed, Outcome
from testbed.core.prediction.training_events import parts_of

__all__ = ["simulate_pipeline"]


def simulate_pipeline(inputs: Inputs, pattern: Pattern) -> Outcome:
    """Return what a step costs.

    Raises:
        TooMany: of messages.
    """
    stages, micros = inputs.stages, inputs.micro_batches
    if 2 * stages * micros > MOST_EVENTS:
        raise TooMany(f"{2 * stages * micros} messages, at most {MOST_EVENTS}")
    simulation = Simulation()
    bits = pattern.wire_factor * inputs.activation_bits
    serial_s = bits / inputs.rate_bps
    fibers = [Fiber(simulation, Slots(None)) for _ in range(stages - 1)]
    paths = [Exposed() for _ in range(stages)]
    """What each stage waited for on the longest way to its latest computation."""
    ends = [0.0] * stages
    messages = {
        (direction, boundary, micro): Transfer(
            inputs.operation_s,
            (serial_s, 0.0) if direction == OUT else (0.0, serial_s),
            pattern.delays * inputs.delay_s,
        )
        for direction in (OUT, BACK)
        for boundary in range(stages - 1)
        for micro in range(micros)
    }
    sent_after: dict[int, Exposed] = {}

    def stage(number: int) -> Process:
        for direction, share in ((OUT, FORWARD_SHARE), (BACK, 1 - FORWARD_SHARE)):
            source, target = (number - 1, number) if direction == OUT else (number, number - 1)
            for micro in range(micros):
                if 0 <= source < stages - 1:
                    message = messages[direction, source, micro]
                    since_s = simulation.now_s
                    if message.arrived.at_s is None:
                        yield message.arrived
                    if simulation.now_s > since_s:
                        on_way = parts_of([message], message.ready_s, simulation.now_s)
                        paths[number] = sent_after[id(message)] + on_way
                yield share * inputs.slowest_s / micros
                if 0 <= target < stages - 1:
                    message = messages[direction, target, micro]
                    sent_after[id(message)] = paths[number]
                    fibers[target].send(message)
        ends[number] = simulation.now_s

    for number in range(stages):
        simulation.start(stage(number))
    simulation.run()
    step_s = max(ends)
    path = paths[ends.index(step_s)]
    waiting_s = max(0.0, step_s - inputs.fastest_s - path.total_s)
    sent = micros * bits if stages > 1 else 0.0
    return Outcome(step_s, inputs.fastest_s, path + Exposed(waiting_s=waiting_s), sent, 0.0, "events")
