"""sparse-loco: diloco without momentum that sends the largest values only, and remembers what it has not sent.

Every H steps: e ← 0.95 e + Δ, Δ = Θ - θ; Q = the largest 64 of each block of 64 x 64 values of e, with 2 bits each;
e ← e - Q; Θ ← Θ - mean Q; θ ← Θ (Sarfi et al. 2025, SparseLoCo, arXiv:2508.15706). Each replica has an e of its own.

Parameters are put into block order (``blocks.py``) before they are cut into slices, so Θ and e are in this order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from testbed_agents.blocks import between, block_order
from testbed_agents.codec import TopK
from testbed_agents.coded_exchange import CodedExchange, added
from testbed_agents.outer import Nesterov, Slice
from testbed_agents.strategies.diloco import LocalSgd
from testbed_agents.strategies.strategy import Context

__all__ = ["SparseLoco"]


class SparseLoco(LocalSgd):
    """``top``: values kept of each 4096, a block; ``bits`` of each: 2, or 32; ``decay`` of e. Raises ValueError."""

    def __init__(
        self,
        every: int = 50,
        top: int = 64,
        bits: int = 2,
        decay: float = 0.95,
        outer_rate: float = 1.0,
        replica: str = "site",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(every, replica, "", pace, weigh)
        self._codec, self._decay, self._rate = TopK(top, bits), decay, outer_rate

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        self.residual = torch.zeros_like(self.outer.values)
        return trained

    def make_slice(self, trained: list[nn.Parameter], at: int | None) -> Slice:
        order, lengths = block_order(trained)
        made = Slice(trained, self.replicas, at, order)
        begin = 0 if self.replicas.slice is None else self.replicas.slice * made.size
        # Padding is no part of a block, and is not sent.
        blocks = between(lengths, begin, begin + made.size) if made.holds else ()
        self._codec = replace(self._codec, blocks=blocks)
        return made

    def make_outer(self, values: Tensor) -> Nesterov:
        return Nesterov(values, self._rate, 0.0, self.replicas.hooks)

    def combine(self, local: Tensor) -> None:
        before, delta = self.residual.clone(), self.outer.values - local
        accumulated = self._decay * before + delta
        decoded = CodedExchange(accumulated, self._codec, self.replicas).wait()
        shares = self.exchange_shares if self.slice.holds else ()
        total = added(decoded, shares)
        own = self.slice.own
        self.residual.copy_(accumulated - decoded[own])
        if self.context.failpoint("dropped-residual"):
            self.residual.zero_()
        if self.slice.holds:
            self.context.checks.encoded(
                "sparse",
                fragment=None,
                inputs=accumulated,
                decoded=decoded,
                ranks=self.replicas.across_ranks,
                own=own,
                total=total,
                bound=lambda positions: self._codec.bound(accumulated)[positions],
                residual=self.residual,
                before=before,
                added=delta,
                decay=self._decay,
                weights=shares or None,
            )
        self.outer.step(self.slice.mean_of("outer", total, decoded[own], shares))

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "residual": self.residual}
