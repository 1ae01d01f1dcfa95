"""sparse-loco: diloco without momentum that sends the largest values only, and remembers what it has not sent.

Every H steps: e ← 0.95 e + Δ, Δ = Θ - θ; Q = the largest 64 of each block of 64 x 64 values of e, with 2 bits each;
e ← e - Q; Θ ← Θ - mean Q; θ ← Θ (Sarfi et al. 2025, SparseLoCo, arXiv:2508.15706). Each replica has an e of its own.

A matrix is cut into blocks of 64 x 64 values, all others into chunks of 4096. Blocks at the edges are smaller. In a
flat vector of parameters the values of a block are apart, because the rows of a matrix follow one another. In *block
order* the values of each block are consecutive, row by row; blocks are in the order of tensors, then of rows of blocks,
then of columns. Parameters are put into this order before they are cut into slices, so Θ and e are in this order. A
slice consists of whole blocks, except at its ends. Two slices may share a block there: each codes its part as a smaller
block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from testbed_agents.exchange.codec import TopK
from testbed_agents.exchange.slices import Slice
from testbed_agents.groups import Replicas
from testbed_agents.strategies.periodic_exchange import FragmentExchange, PeriodicExchange, Update
from testbed_agents.strategies.strategy import Context

__all__ = ["SIDE", "SparseLoco", "between", "block_order"]

SIDE = 64
"""Rows and columns of a block."""


class SparseLoco(PeriodicExchange):
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
        super().__init__(every, codec=TopK(top, bits), rate=outer_rate, replica=replica, pace=pace, weigh=weigh)
        self._top, self._bits, self._decay = top, bits, decay

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        self.residual = torch.zeros_like(self.fragments[0].outer.values)
        """e."""
        return trained

    def make_slice(self, parameters: list[nn.Parameter], replicas: Replicas, aggregator: int | None) -> Slice:
        order, lengths = block_order(parameters)
        part = Slice(parameters, replicas, aggregator, order)
        begin = 0 if replicas.slice is None else replicas.slice * part.size
        # Padding is no part of a block, and is not sent.
        blocks = between(lengths, begin, begin + part.size) if part.holds else ()
        self.codec = TopK(self._top, self._bits, blocks)
        return part

    def update(self, fragment: FragmentExchange) -> Update:
        """e ← decay e + Δ; Q = the largest values of e; e ← e - Q; Θ ← Θ - rate × mean Q."""
        before, delta = self.residual.clone(), fragment.pseudo_gradient()
        accumulated = self._decay * before + delta
        received = yield accumulated
        self.residual.copy_(accumulated - received.own)
        if self.context.failpoint("dropped-residual"):
            self.residual.zero_()
        feedback = {"residual": self.residual, "before": before, "added": delta, "decay": self._decay}
        fragment.record_codes("sparse", accumulated, received, **feedback)
        fragment.outer.step(received.mean())

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "residual": self.residual}


def block_order(tensors: Iterable[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
    """Return the place of each element of the block order in the flat vector, (elements,) int64, and lengths of blocks.

    A matrix of one row or one column counts as a vector.
    """
    order, lengths, begin = [torch.zeros(0, dtype=torch.int64)], list[int](), 0
    for tensor in tensors:
        place = torch.arange(tensor.numel())
        block = place // SIDE**2
        if tensor.dim() == 2 and min(tensor.shape) > 1:
            columns = tensor.shape[1]
            block = place // columns // SIDE * -(-columns // SIDE) + place % columns // SIDE
        order.append(begin + block.argsort(stable=True))
        lengths += block.bincount().tolist()
        begin += tensor.numel()
    return torch.cat(order), tuple(lengths)


def between(lengths: Sequence[int], begin: int, end: int) -> tuple[int, ...]:
    """Return the lengths of blocks, or of their parts, from ``begin`` to ``end`` of a vector in block order."""
    ends = itertools.accumulate(lengths)
    parts = (min(stop, end) - max(stop - length, begin) for stop, length in zip(ends, lengths, strict=True))
    return tuple(part for part in parts if part > 0)
