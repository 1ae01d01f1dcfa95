"""Decoupled learners and their merges as events on one heap. Pure.

A learner computes without a pause. It counts its next H steps from the merge that it took part in, and then delivers
what they changed. A merge happens once a quorum of learners has delivered, and all others or the grace is over. What
comes later was computed on an older version: it counts for no quorum, and its learner goes on from what is current.
"""

from __future__ import annotations

import functools
from collections import Counter

from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.event_heap import Fiber, Process, Signal, Simulation, Slots, Transfer
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Exposed, Outcome

__all__ = ["simulate_merges"]

MERGES = 20
"""Merges that are simulated; the mean of their distances is printed."""


def simulate_merges(inputs: Inputs, pattern: Pattern) -> Outcome:
    """Return the mean time between merges, and the bits that the fastest learner sends per step."""
    simulation = Simulation()
    # Learners that are alike collapse.
    classes = sorted(Counter(inputs.slowdowns).items()) if inputs.slowdowns else [(1.0, inputs.sites)]
    quorum = inputs.quorum or inputs.sites
    bits = pattern.wire_factor * inputs.payload_bits
    serial_s, propagation_s = bits / inputs.rate_bps, pattern.delays * inputs.delay_s
    merged = [Signal() for _ in range(MERGES)]
    delivered = [[0, 0] for _ in range(MERGES)]
    """Learners that have delivered for a merge, and classes of them."""
    sent = [0]

    def merge(version: int) -> None:
        if merged[version].at_s is None:
            simulation.fire(merged[version])

    def learner(number: int, speed: float, count: int) -> Process:
        fiber = Fiber(simulation, Slots(inputs.in_flight))
        while True:
            version = sum(it.at_s is not None for it in merged)  # counted from this merge on
            if version == MERGES:
                return
            yield inputs.every * inputs.step_s * speed
            transfer = Transfer(inputs.operation_s, (serial_s, 0.0), propagation_s)
            fiber.send(transfer)
            sent[0] += number == 0
            yield transfer.arrived
            if merged[version].at_s is not None:
                continue
            before = delivered[version][0]
            delivered[version][0] += count
            delivered[version][1] += 1
            if delivered[version][1] == len(classes):
                merge(version)
            elif before < quorum <= delivered[version][0]:
                simulation.at(simulation.now_s + inputs.grace_s, functools.partial(merge, version))
            if merged[version].at_s is None:
                yield merged[version]

    for number, (speed, count) in enumerate(classes):
        simulation.start(learner(number, speed, count))
    simulation.run()
    merge_s = (merged[-1].at_s or 0.0) / MERGES
    step_s = inputs.fastest_s
    per_step = bits * step_s / merge_s if merge_s else 0.0
    return Outcome(step_s, step_s, Exposed(), per_step, 0.0, "events", merge_s=merge_s)
