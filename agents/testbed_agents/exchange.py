"""The sum of a tensor over the replicas, equal bit for bit on all of them.

Two replicas send their tensors to each other directly: one one-way delay, and each adds both in the order of replicas.
More replicas use gloo's all-reduce: a ring moves 2 (S - 1) / S of the tensor over each hop where sending all to all
would move S - 1 times as much; each chunk is added at one rank and then copied, so all ranks have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents import watched

__all__ = ["Exchange", "begin_sum", "gather_into", "reduce_scatter_into"]

# torch 2.13 renamed both, and warns about the former names.
gather_into = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_into = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Exchange:
    """A sum that is on its way. ``wait`` returns it; call it once."""

    def __init__(self, works: Sequence[Any], parts: Sequence[Tensor], group: Any = None) -> None:
        self._works, self._parts, self._group = works, parts, group

    def wait(self) -> Tensor:
        """Return the sum, (elements,), in the order of replicas. Raises RuntimeError if a peer is gone."""
        for work in self._works:
            work.wait()
        total = self._parts[0]
        for part in self._parts[1:]:
            total = total + part
        if len(self._parts) > 1:
            watched.added(self._group, self._parts, total)
        return total


def begin_sum(tensor: Tensor, group: Any, ranks: Sequence[int]) -> Exchange:
    """Begin to sum ``tensor``, (elements,), over ``ranks`` of ``group``; it must not change until then."""
    if len(ranks) == 1:
        return Exchange((), (tensor,))
    if len(ranks) > 2:
        total = tensor.clone()
        return Exchange((dist.all_reduce(total, group=group, async_op=True),), (total,))
    mine = ranks.index(dist.get_rank())
    other = torch.empty_like(tensor)
    # gloo sends nothing before the receiver has announced the receipt: first, or that would come behind its own data.
    works = [dist.irecv(other, ranks[1 - mine], group), dist.isend(tensor, ranks[1 - mine], group)]
    return Exchange(works, (tensor, other) if mine == 0 else (other, tensor), group)
