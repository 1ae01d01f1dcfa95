"""Bytes of coded values: what the agents' codecs put on the wire, said a second time.

The formats are those of ``testbed_agents.codec``; no code is shared, so tests compare the two for any length.
"""

from __future__ import annotations

import math

__all__ = ["CHUNK", "dense_bytes", "top_k_bytes"]

BLOCK = 256
"""Values of 8 or 4 bits that share a float32 scale."""

CHUNK = 4096
"""Values among which the largest are selected."""

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


def top_k_bytes(elements: int, keep: int = 64, bits: int = 2) -> int:
    """Return the bytes of the ``keep`` largest of each 4096 values, ``bits`` each: 2, or 32. Raises ValueError.

    A shorter last chunk keeps its share, rounded up. Positions have 12 bits. With 2 bits, a chunk has two magnitudes of
    16 bits: 116 bytes a chunk with 64 kept, 0.2266 bits a value.

    >>> top_k_bytes(4096), 8 * top_k_bytes(4096) / 4096
    (116, 0.2265625)
    """
    if bits not in (2, 32):
        raise ValueError(f"expected 2 or 32 bits a value that is kept, got {bits}")
    whole_chunks, rest = elements // CHUNK, elements % CHUNK
    kept = whole_chunks * keep + (keep * rest + CHUNK - 1) // CHUNK
    magnitudes = 2 * 2 * (whole_chunks + (rest > 0)) if bits == 2 else 0
    return magnitudes + (kept * POSITION_BITS + 7) // 8 + (kept * bits + 7) // 8
