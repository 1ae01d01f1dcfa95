"""Elements of the vectors of a validation: their types in numpy, and the input that every rank can compute.

The input is splitmix64 over seed, call, rank and index, as docs/validate.md ("Input") defines it. numpy has no
bfloat16: here it is the ``uint16`` of its bits, the upper half of a float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A flat vector, or whole blocks one after the other, as the library's buffer."""

TYPES: dict[str, np.dtype[Any]] = {
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # its bits
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}
INTEGERS = ("int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")

_SEED, _CALL, _RANK, _INDEX = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = {"int32": 44, "int64": 24, "float16": 53, "bfloat16": 56, "float32": 40, "float64": 11}
_CHUNK = 1 << 16  # elements at a time, so that the intermediate arrays stay in the cache


def generate(element_type: str, count: int, *, seed: int, call: int, rank: int) -> Array:
    """Return the ``count`` elements that ``rank`` (its number in the group) puts into ``call``."""
    elements = np.empty(count, TYPES[element_type])
    start = (seed * _SEED + call * _CALL + rank * _RANK) % 2**64
    steps = np.arange(min(count, _CHUNK), dtype=np.uint64) * np.uint64(_INDEX)
    for begin in range(0, count, _CHUNK):
        chunk = elements[begin : begin + _CHUNK]
        samples = steps[: chunk.size] + np.uint64((start + begin * _INDEX) % 2**64)
        _splitmix64(samples)
        samples >>= np.uint64(_SHIFTS[element_type])
        chunk[:] = _element(element_type, samples)
    return elements


def _splitmix64(samples: NDArray[np.uint64]) -> None:
    """Finalize in place (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        samples ^= samples >> np.uint64(shift)
        samples *= factor
    samples ^= samples >> np.uint64(31)


def _element(element_type: str, samples: NDArray[np.uint64]) -> Array:
    bits = 64 - _SHIFTS[element_type]
    if element_type in INTEGERS:
        return samples.astype(np.int64) - (1 << (bits - 1))
    # Half of the range is below zero; k / 2^(bits - 1) - 1 has no more than `bits` significant bits: exact.
    values = samples.astype(np.float64) / float(1 << (bits - 1)) - 1.0
    return narrow(values.astype(np.float32)) if element_type == "bfloat16" else values


def shares(count: int, size: int) -> list[slice]:
    """Divide ``count`` elements into ``size`` consecutive slices whose lengths differ by one at most."""
    return [slice(count * k // size, count * (k + 1) // size) for k in range(size)]


def split(blocks: Array, size: int) -> list[Array]:
    """Return one block for each rank, as views."""
    return list(blocks.reshape(size, -1))


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert the bits of bfloat16 to numbers."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even, of finite numbers: no others occur here."""
    bits32 = numbers.view(np.uint32)
    bits32 = bits32 + np.uint32(0x7FFF) + ((bits32 >> np.uint32(16)) & np.uint32(1))
    return (bits32 >> np.uint32(16)).astype(np.uint16)
