"""What each step of a strategy exchanges, for the event model. Pure.

Strategies whose sites go through steps alike have a :class:`Plan` here; a pipeline and learners that are merged have
events of their own (``pipeline_events.py``, ``merge_events.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.event_heap import MOST_EVENTS, TooMany
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.merge_events import simulate_merges
from testbed.core.prediction.pipeline_events import simulate_pipeline
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.prediction.training_events import Checkpoints, Operation, Plan, simulate

__all__ = ["PLANS", "predict_events"]

CYCLES: Final = 3
"""Cycles of a strategy that exchanges every H steps, as in the simulation of arXiv:2501.18512, Table 4."""
DATA_PARALLEL_STEPS: Final = 20
FEWEST_ROUNDS: Final = 20
"""Of asynchronous rounds, at least, between the two marks of a measurement."""


def _each_bucket(inputs: Inputs, pattern: Pattern, gate_steps: int = 1) -> tuple[Operation, ...]:
    """Exchange the payload bucket by bucket in the order of the backward pass; the next forward pass waits for all.

    With one bucket per layer, a layer's forward pass waits for its own bucket only.
    """
    count, layers = inputs.bucket_count, inputs.layers
    bits = pattern.wire_factor * inputs.payload_bits / count
    return tuple(
        Operation(bits, pattern.delays, 2 * layers - layers * it / count, gate_steps, it if count == layers else 0)
        for it in reversed(range(count))
    )


def _data_parallel(inputs: Inputs, pattern: Pattern) -> Plan:
    operations = _each_bucket(inputs, pattern)
    cycles = max(1, DATA_PARALLEL_STEPS // inputs.accumulate)
    return _periodic(inputs.accumulate, {inputs.accumulate - 1: operations}, cycles)


def _periodic(every: int, exchanges: dict[int, tuple[Operation, ...]], cycles: int = CYCLES) -> Plan:
    """Repeat ``exchanges``, by step, every ``every`` steps."""
    steps = {cycle * every + step: it for cycle in range(cycles) for step, it in exchanges.items()}
    return Plan(cycles * every, steps)


def _sharded(inputs: Inputs, pattern: Pattern) -> Plan:
    """Gather each layer before its forward and its backward pass, one layer ahead; scatter the gradients by bucket.

    The gradients of a layer ask for the fiber before the parameters of the layer after next. A gather and a scatter are
    half an all-reduce each.
    """
    layers, half = inputs.layers, Pattern(pattern.delays / 2, pattern.wire_factor / 2)
    layer_bits = half.wire_factor * inputs.payload_bits / layers

    def gathered(begins: int) -> list[Operation]:
        """Gather what each of ``layers`` parts of a pass needs that begins at the point ``begins``."""
        return [
            Operation(layer_bits, half.delays, max(begins, begins + part - 1), 0, begins + part)
            for part in range(layers)
        ]

    scattered = (Operation(it.bits, it.delays, it.ready, 1, 0) for it in _each_bucket(inputs, half))
    operations = (*scattered, *gathered(0), *gathered(layers))
    return Plan(CYCLES, dict.fromkeys(range(CYCLES), operations))  # which all begin alike: nothing is on its way


def _blocking(inputs: Inputs, pattern: Pattern) -> Plan:
    count = inputs.buckets or 1
    bits = pattern.wire_factor * inputs.payload_bits / count
    operations = (
        _each_bucket(inputs, pattern)
        if inputs.overlap_last_backward
        else (Operation(bits, pattern.delays, 2 * inputs.layers, 1, 0),) * count
    )
    return _periodic(inputs.every, {inputs.every - 1: _with_outer_step(inputs, operations)})


def _with_outer_step(inputs: Inputs, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Share the outer step among the ``operations`` that bring the whole model."""
    if not inputs.outer_step_s:
        return operations
    whole = math.fsum(it.bits for it in operations) or 1.0
    return tuple(
        Operation(it.bits, it.delays, it.ready, it.gate_steps, it.gate, outer_s=inputs.outer_step_s * it.bits / whole)
        for it in operations
    )


def _streaming(inputs: Inputs, pattern: Pattern) -> Plan:
    """Exchange fragment p, the layers p, p + P, p + 2 P, ..., after step round(H p / P) of each cycle.

    With more fragments than steps a step sends several, in this order.
    """
    at: dict[int, tuple[Operation, ...]] = {}
    gate_steps, end = 1 + inputs.overlap, 2 * inputs.layers
    bits = pattern.wire_factor * inputs.payload_bits
    for fragment in range(inputs.fragments):
        layers = range(fragment, inputs.layers, inputs.fragments)
        step = round(inputs.every * fragment / inputs.fragments) % inputs.every
        share = len(layers) / inputs.layers
        found = (
            [
                Operation(bits / inputs.layers, pattern.delays, end - layer, gate_steps, layer)
                for layer in reversed(layers)
            ]
            if inputs.overlap_last_backward
            else [Operation(bits * share, pattern.delays, end, gate_steps, 0)]
        )
        outer_s = inputs.outer_step_s * share / len(found)
        at[step] = at.get(step, ()) + tuple(
            Operation(it.bits, it.delays, it.ready, it.gate_steps, it.gate, outer_s=outer_s) for it in found
        )
    return _periodic(inputs.every, at)


def _asynchronous(inputs: Inputs, pattern: Pattern) -> Plan:
    """Push after each round, pull what was merged; begin a round once all but ``staleness`` rounds have come back.

    The measurement begins when the fastest site is as far ahead of the slowest as it may be.
    """
    lag = inputs.staleness + 1
    behind = inputs.slowest_s / inputs.fastest_s - 1
    ahead = math.ceil(inputs.staleness * (1 + 1 / behind)) if behind > 0 else 0
    first = 2 * lag + ahead
    rounds = first + lag * math.ceil(FEWEST_ROUNDS / lag)
    classes = len(set(inputs.slowdowns)) or 1
    if rounds * classes > MOST_EVENTS:
        raise TooMany(f"{rounds * classes} rounds until the lag is reached, at most {MOST_EVENTS}")
    one = Operation(
        pattern.wire_factor * inputs.payload_bits, pattern.delays, 2 * inputs.layers,
        inputs.staleness * inputs.every + 1, 0, together=False, outer_s=inputs.outer_step_s,
    )  # fmt: skip
    exchanges = {number * inputs.every + inputs.every - 1: (one,) for number in range(rounds)}
    return Plan(rounds * inputs.every, exchanges, measured=(first * inputs.every, rounds * inputs.every))


def _tiers(inputs: Inputs, pattern: Pattern) -> Plan:
    """Exchange over the fiber of each tier after its number of steps, from near to far, one after the other."""
    steps = math.lcm(*(tier.every for tier in inputs.tiers))
    count = sum(steps // tier.every for tier in inputs.tiers)
    if count > MOST_EVENTS:
        raise TooMany(f"{count} exchanges until the tiers meet again, at most {MOST_EVENTS}")
    bits, end = pattern.wire_factor * inputs.payload_bits, 2 * inputs.layers
    exchanges: dict[int, tuple[Operation, ...]] = {}
    for number, tier in enumerate(inputs.tiers):
        outer_s = inputs.outer_step_s if tier.every > 1 else 0.0
        one = Operation(bits, pattern.delays, end, 0, end, fiber=number, outer_s=outer_s)
        for step in range(tier.every - 1, steps, tier.every):
            exchanges[step] = (*exchanges.get(step, ()), one)
    return Plan(steps, exchanges, fibers=tuple((tier.rate_bps, tier.delay_s) for tier in inputs.tiers))


def _experts(inputs: Inputs, pattern: Pattern) -> Plan:
    """Send tokens to the experts of other sites and back, in either pass of each layer that has experts."""
    bits = inputs.token_bits * (inputs.sites - 1) / inputs.sites * pattern.wire_factor
    layers, count = inputs.layers, inputs.expert_layers
    chosen = [layers * it // count for it in range(count)]  # evenly
    points = sorted(
        begins + half for layer in chosen for begins in (layer, 2 * layers - 1 - layer) for half in (0.5, 1)
    )
    operations = tuple(Operation(bits, pattern.delays, point, 0, point) for point in points)
    return Plan(CYCLES, dict.fromkeys(range(CYCLES), operations))


PLANS: Final[dict[str, Callable[[Inputs, Pattern], Plan]]] = {
    "ddp": _data_parallel,
    "hierarchical": _data_parallel,
    "hsdp": _data_parallel,
    "fsdp": _sharded,
    "local-sgd": _blocking,
    "diloco": _blocking,
    "streaming-diloco": _streaming,
    "sparse-loco": _blocking,
    "async-diloco": _asynchronous,
    "tiers": _tiers,
    "moe": _experts,
}
"""Strategies whose sites go through steps alike."""

_OTHERS: Final[dict[str, Callable[[Inputs, Pattern], Outcome]]] = {
    "decoupled": simulate_merges,
    "pipeline": simulate_pipeline,
}


def predict_events(strategy: str, inputs: Inputs, checkpoints: Checkpoints | None = None) -> Outcome:
    """Return the event model's outcome. ``inputs`` have no mistakes.

    Args:
        checkpoints: stop compute, of the strategies in :data:`PLANS`; None for none.

    Raises:
        TooMany: of events.
    """
    pattern = STRATEGIES[strategy].exchanged(inputs)
    if strategy in _OTHERS:
        return _OTHERS[strategy](inputs, pattern)
    return simulate(inputs, PLANS[strategy](inputs, pattern), checkpoints)
