"""The simulation of a paper, as far as its tables show it: one profile, for figures that others published. Pure.

arXiv:2501.18512, Table 4. Layers are exchanged one by one beside the last backward pass, over a lane without latency;
a layer's forward pass waits for its own exchange only. Fragment p of P has the layers p, p + P, p + 2 P, ... It is sent
in step round(H p / P), halves to even. 84 % of the payload is sent: fitted to all 75 cells, and not explained by the
paper. Time is measured over 20 data-parallel steps, or three cycles, until the last exchange has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.simulator import Cost, Simulated, simulate
from testbed.core.training.exchange import Exchange
from testbed.core.training.site_process import FORWARD_SHARE, Await, Begin, Compute, Process, StepDone
from testbed.core.training.strategy_operation import Operation

__all__ = ["BITS", "Published", "simulate_published"]

PAYLOAD_FACTOR: Final = 0.84
BITS: Final = 16
DATA_PARALLEL_STEPS: Final = 20
CYCLES: Final = 3
_SITE: Final = "all sites"


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
        """Return the layers that each step of a cycle sends, from 0."""
        if self.fragments is None:
            return {self.every - 1: list(range(self.layers))}
        found: dict[int, list[int]] = {}
        for fragment in range(self.fragments):
            step = round(self.every * fragment / self.fragments) % self.every
            found.setdefault(step, []).extend(range(fragment, self.layers, self.fragments))
        return found

    def process(self) -> Process:
        """Do all steps; of steps that neither send nor wait all layers are one."""
        operation = Operation("all_reduce", (0, 1), self.parameters * self.bits / 8 * PAYLOAD_FACTOR / self.layers, "")
        exchange, sent = Exchange((operation,), (_SITE,)), self.sent()
        forward, backward = FORWARD_SHARE / self.layers, (1 - FORWARD_SHARE) / self.layers
        for step in range(self.steps):
            before = step - 1 - self.overlap
            awaited = sent.get(before % self.every, []) if before >= 0 else []
            begun = sent.get(step % self.every, [])
            passed = 0
            for layer in sorted(awaited):
                yield Compute(forward * (layer - passed))
                yield Await(((before, layer),))
                passed = layer
            left = self.layers
            yield Compute(forward * (self.layers - passed))
            for layer in sorted(begun, reverse=True):
                yield Compute(backward * (left - layer))
                yield Begin((step, layer), exchange)
                left = layer
            yield Compute(backward * left)
            if step == self.steps - 1:
                late = range(max(0, step - self.overlap), self.steps)
                yield Await(tuple((it, layer) for it in late for layer in sent.get(it % self.every, [])))
            yield StepDone()


@dataclass(frozen=True)
class _Lane:
    """Costs of a lane without latency."""

    step: float
    rate_bps: float
    name: str

    def of(self, exchange: Exchange) -> Cost:
        byte_count = exchange.byte_count
        return Cost(0.0, 0.0, {self.name: 8 * byte_count / self.rate_bps}, {self.name: byte_count})

    def step_s(self, site: str) -> float:
        return self.step


def simulate_published(of: Published) -> Simulated:
    """Return what a mean step takes in the paper's simulation."""
    return simulate({_SITE: of.process()}, _Lane(of.step_s, of.rate_bps, of.lane), cycle=None, site=_SITE)
