"""The simulation of a paper, as far as its tables show it: one profile, for figures that others published. Pure.

arXiv:2501.18512, Table 4. Layers are exchanged one by one beside the last backward pass, over a lane without latency;
a layer's forward pass waits for its own exchange only. Fragment p of P has the layers p, p + P, p + 2 P, ... It is sent
in step round(H p / P), halves to even. 84 % of the payload is sent: fitted to all 75 cells, and not explained by the
paper. Time is measured over 20 data-parallel steps, or three cycles, until the last exchange has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.simulator import Parts, Simulated
from testbed.core.training.site_process import FORWARD_SHARE

__all__ = ["BITS", "Published", "simulate_published"]

PAYLOAD_FACTOR: Final = 0.84
BITS: Final = 16
DATA_PARALLEL_STEPS: Final = 20
CYCLES: Final = 3


@dataclass(frozen=True)
class Published:
    """A model and how it is trained.

    Attributes:
        step_s: compute of a step in seconds; rate_bps: payload rate between sites.
        every, overlap: H and tau; data-parallel training with ``every`` 1.
        fragments: P; None for an exchange of the whole model after the last step of a cycle.
        bits: of a value.
    """

    step_s: float
    parameters: float
    layers: int
    rate_bps: float
    lane: str = "fiber"
    every: int = 1
    fragments: int | None = None
    overlap: int = 0
    bits: float = BITS

    @property
    def steps(self) -> int:
        return CYCLES * self.every if self.every > 1 else DATA_PARALLEL_STEPS

    def sent(self) -> dict[int, list[int]]:
        """Return the layers that each step of a cycle sends, from 0, in the order of the backward pass."""
        if self.fragments is None:
            return {self.every - 1: list(reversed(range(self.layers)))}
        layers_by_step: dict[int, list[int]] = {}
        for fragment in range(self.fragments):
            step = round(self.every * fragment / self.fragments) % self.every
            layers_by_step.setdefault(step, []).extend(range(fragment, self.layers, self.fragments))
        return {step: sorted(layers, reverse=True) for step, layers in layers_by_step.items()}


def simulate_published(of: Published) -> Simulated:
    """Return what a mean step takes in the paper's simulation: one site, whose lane sends first in, first out."""
    sent, byte_count = of.sent(), of.parameters * of.bits / 8 * PAYLOAD_FACTOR / of.layers
    serial_s, forward_s = 8 * byte_count / of.rate_bps, of.step_s * FORWARD_SHARE / of.layers
    backward_s = of.step_s * (1 - FORWARD_SHARE) / of.layers
    now_s = lane_free_s = serialization_s = queueing_s = 0.0
    arrivals: dict[int, list[tuple[int, float]]] = {}
    count = 0

    def wait(until_s: float) -> None:
        nonlocal now_s, serialization_s, queueing_s
        wait_s = until_s - now_s
        if wait_s > 0:
            now_s = until_s
            serialization_s += min(wait_s, serial_s)
            queueing_s += max(0.0, wait_s - serial_s)

    for step in range(of.steps):
        begun, awaited = sent.get(step % of.every, ()), arrivals.pop(step - 1 - of.overlap, ())
        passed, left = 0, of.layers
        for layer, arrives_s in reversed(awaited):
            now_s += forward_s * (layer - passed)
            wait(arrives_s)
            passed = layer
        now_s += forward_s * (of.layers - passed)
        if begun:
            arrivals[step] = []
        for layer in begun:
            now_s += backward_s * (left - layer)
            lane_free_s = max(lane_free_s, now_s) + serial_s
            arrivals[step].append((layer, lane_free_s))
            left = layer
        now_s += backward_s * left
        count += len(begun)
    wait(lane_free_s)
    return Simulated(
        step_s=now_s / of.steps,
        compute_s=of.step_s,
        parts=Parts(serialization_s=serialization_s, queueing_s=queueing_s) * (1 / of.steps),
        lane_bytes={of.lane: byte_count * count / of.steps},
        steps=of.steps,
        steady=True,
        samples={},
    )
