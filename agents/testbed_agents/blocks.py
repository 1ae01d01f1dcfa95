"""Blocks of tensors: matrices in 64 x 64, all others in chunks of 4096 values. Blocks at the edges are smaller.

In a flat vector of parameters the values of a block are apart, because the rows of a matrix follow one another. In
*block order* the values of each block are consecutive, row by row; blocks are in the order of tensors, then of rows of
blocks, then of columns. A slice of a vector in this order consists of whole blocks, except at its ends. Two slices may
share a block there: each codes its part as a smaller block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["SIDE", "between", "block_order"]

SIDE = 64
"""Rows and columns of a block."""


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
    parts = (min(it, end) - max(it - length, begin) for it, length in zip(ends, lengths, strict=True))
    return tuple(part for part in parts if part > 0)
