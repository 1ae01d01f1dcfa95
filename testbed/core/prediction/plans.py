"""What each step of a strategy exchanges, for the event model: the strategies whose steps wait for a fiber. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.prediction.training_events import AFTER_BACKWARD, Operation, simulate

__all__ = ["PLANS", "predict_events"]

CYCLES: Final = 3
"""Cycles of a strategy that exchanges every H steps, as in the simulation of arXiv:2501.18512, Table 4."""
DATA_PARALLEL_STEPS: Final = 20

Exchange = Callable[[int], Iterable[Operation]]


@dataclass(frozen=True)
class Plan:
    """``steps`` steps, a whole number of cycles, and what each of them exchanges."""

    steps: int
    exchange: Exchange


def predict_events(strategy: str, inputs: Inputs) -> Outcome:
    """Return the event model's outcome. ``inputs`` have no mistakes; ``strategy`` is one of :data:`PLANS`."""
    pattern = STRATEGIES[strategy].exchanged(inputs)
    plan = PLANS[strategy](inputs, pattern)
    return simulate(inputs, plan.exchange, plan.steps)


def _each_bucket(inputs: Inputs, pattern: Pattern, gate_steps: int = 1) -> tuple[Operation, ...]:
    """Exchange the payload bucket by bucket in the order of the backward pass; the next forward pass waits for all.

    With one bucket per layer, a layer's forward pass waits for its own bucket only.
    """
    count = inputs.bucket_count
    bits = pattern.wire_factor * inputs.payload_bits / count
    return tuple(
        Operation(bits, pattern.delays, inputs.layers * it / count, gate_steps, it if count == inputs.layers else 0)
        for it in reversed(range(count))
    )


def _data_parallel(inputs: Inputs, pattern: Pattern) -> Plan:
    operations = _each_bucket(inputs, pattern)
    cycles = max(1, DATA_PARALLEL_STEPS // inputs.accumulate)
    last = inputs.accumulate - 1
    return Plan(cycles * inputs.accumulate, lambda step: operations if step % inputs.accumulate == last else ())


def _blocking(inputs: Inputs, pattern: Pattern) -> Plan:
    count = inputs.buckets or 1
    bits = pattern.wire_factor * inputs.payload_bits / count
    operations = (
        _each_bucket(inputs, pattern)
        if inputs.overlap_last_backward
        else (Operation(bits, pattern.delays, AFTER_BACKWARD, 1, 0),) * count
    )
    return Plan(CYCLES * inputs.every, lambda step: operations if step % inputs.every == inputs.every - 1 else ())


def _streaming(inputs: Inputs, pattern: Pattern) -> Plan:
    """Exchange fragment p, the layers p, p + P, p + 2 P, ..., after step round(H p / P) of each cycle.

    With more fragments than steps a step sends several, in this order.
    """
    at: dict[int, list[Operation]] = {}
    gate_steps = 1 + inputs.overlap
    bits = pattern.wire_factor * inputs.payload_bits
    for fragment in range(inputs.fragments):
        layers = range(fragment, inputs.layers, inputs.fragments)
        operations = at.setdefault(round(inputs.every * fragment / inputs.fragments) % inputs.every, [])
        if inputs.overlap_last_backward:
            operations += [
                Operation(bits / inputs.layers, pattern.delays, layer, gate_steps, layer) for layer in reversed(layers)
            ]
        else:
            share = len(layers) / inputs.layers
            operations.append(Operation(bits * share, pattern.delays, AFTER_BACKWARD, gate_steps, 0))
    return Plan(CYCLES * inputs.every, lambda step: at.get(step % inputs.every, ()))


PLANS: Final[dict[str, Callable[[Inputs, Pattern], Plan]]] = {
    "ddp": _data_parallel,
    "hierarchical": _data_parallel,
    "hsdp": _data_parallel,
    "local-sgd": _blocking,
    "diloco": _blocking,
    "streaming-diloco": _streaming,
    "sparse-loco": _blocking,
}
