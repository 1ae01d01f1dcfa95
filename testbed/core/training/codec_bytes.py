"""Bytes of coded values: what the agents' codecs put on the wire, said a second time.

The formats are those of ``testbed_agents.exchange.codec``, blocks those of sparse-loco; no code is shared, so
tests compare the two for any length and shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from testbed.core.training.layout import Tensor

__all__ = ["CHUNK", "Run", "block_runs", "dense_bytes", "slice_runs", "top_k_bytes"]

Run = tuple[int, int]
"""Values of a block, and how many such blocks follow one another."""

BLOCK = 256
"""Values of 8 or 4 bits that share a float32 scale."""

SIDE = 64
"""Rows and columns of a block of a matrix."""

CHUNK = SIDE**2
"""Values of a block, among which the largest are selected."""

SCALE_BYTES = 4
POSITION_BITS = 12


def dense_bytes(elements: int, bits: int) -> int:
    """Return the bytes of ``elements`` values of ``bits`` each: 32, 16, 8 or 4. Raises ValueError for others.

    >>> dense_bytes(1_000_000, 8), dense_bytes(1_000_000, 4)
    (1015628, 515628)
    """
    if bits not in (32, 16, 8, 4):
        raise ValueError(f"expected 32, 16, 8 or 4 bits a value, got {bits}")
    scales = math.ceil(elements / BLOCK) if bits < 16 else 0
    return math.ceil(elements * bits / 8) + SCALE_BYTES * scales


def top_k_bytes(runs: Iterable[Run], keep: int = 64, bits: int = 2) -> int:
    """Return the bytes of the ``keep`` of 4096 largest values of each block. Raises ValueError.

    ``bits`` of each value: 2, or 32. A smaller block keeps its share, rounded up. Positions have 12 bits. With 2 bits,
    a block has two magnitudes of 16 bits: 116 bytes a block of 4096 with 64 kept, 0.2266 bits a value.

    >>> top_k_bytes([(4096, 1)]), 8 * top_k_bytes([(4096, 1)]) / 4096
    (116, 0.2265625)
    """
    if bits not in (2, 32):
        raise ValueError(f"expected 2 or 32 bits a value that is kept, got {bits}")
    kept = blocks = 0
    for length, count in runs:
        kept += count * math.ceil(keep * length / CHUNK)
        blocks += count
    magnitudes = 2 * 2 * blocks if bits == 2 else 0
    return magnitudes + (kept * POSITION_BITS + 7) // 8 + (kept * bits + 7) // 8


def block_runs(tensors: Iterable[Tensor]) -> Iterator[Run]:
    """Yield the blocks of ``tensors`` in their order: 64 x 64 of a matrix, 4096 of others, smaller ones at the edges.

    A tensor of unknown shape, and one of a single row or column, is cut as a vector.

    >>> list(block_runs([Tensor("m", 100 * 130, rows=100), Tensor("v", 5000, rows=5000)]))
    [(4096, 2), (128, 1), (2304, 2), (72, 1), (4096, 1), (904, 1)]
    """
    for tensor in tensors:
        columns = tensor.elements // tensor.rows if tensor.rows else 1
        if columns < 2 or tensor.rows < 2:
            runs = [(CHUNK, tensor.elements // CHUNK), (tensor.elements % CHUNK, 1)]
        elif columns % SIDE == 0:
            bands, lower, across = tensor.rows // SIDE, tensor.rows % SIDE, columns // SIDE
            runs = [(CHUNK, bands * across), (lower * SIDE, across)]
        else:
            heights = [SIDE] * (tensor.rows // SIDE) + [tensor.rows % SIDE]
            runs = [run for high in heights for run in ((high * SIDE, columns // SIDE), (high * (columns % SIDE), 1))]
        yield from ((length, count) for length, count in runs if length and count)


def slice_runs(runs: Iterable[Run], begin: int, end: int) -> Iterator[Run]:
    """Yield the blocks between two elements; one that is cut is two smaller blocks.

    >>> list(slice_runs([(4096, 3), (10, 1)], 4000, 9000))
    [(96, 1), (4096, 1), (808, 1)]
    """
    offset = 0
    for length, count in runs:
        low, high = max(offset, begin), min(offset + length * count, end)
        offset += length * count
        if low >= high:
            continue
        start = offset - length * count
        head = min(high, start + math.ceil((low - start) / length) * length) - low
        whole, cut = divmod(high - low - head, length)
        yield from ((size, number) for size, number in ((head, 1), (length, whole), (cut, 1)) if size and number)
