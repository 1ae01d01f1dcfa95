"""Parts of tensors: this rank's shard of a DTensor, and the mean gradient of what a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["exchange_tokens", "gather_slices", "local", "reduce_gradients"]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, which shares its memory; any other tensor as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():  # else a view for autograd
        shard: Tensor = tensor.to_local()
    return shard


def reduce_gradients(parameters: Sequence[nn.Parameter], reduce: Callable[[Tensor], Tensor]) -> None:
    """Replace the gradients, or this rank's shards of them, by ``reduce`` of all of them as one vector."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


def gather_slices(mine: Tensor, size: int, group: Any, ranks: int) -> Tensor:
    """Return the first ``size`` elements of the slices of all ``ranks`` of ``group``, one after the other."""
    if ranks == 1:
        return mine[:size]
    whole = mine.new_empty(ranks * mine.numel())
    dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
    return whole[:size]


def exchange_tokens(inputs: Tensor, targets: Tensor, group: Any, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the windows of all ``ranks`` of ``group`` in their order: each (ranks × batch, time), sent as int32."""
    if ranks == 1:
        return inputs, targets
    mine = torch.stack((inputs, targets)).to(torch.int32)
    every = gather_slices(mine.reshape(-1), ranks * mine.numel(), group, ranks).view(ranks, *mine.shape)
    both = every.to(inputs.dtype).transpose(0, 1).flatten(1, 2)
    return both[0], both[1]
