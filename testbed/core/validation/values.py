"""The input of every call, as docs/validate.md defines it, and the encoding of the six element types.

An element is kept as its **numerator**: the whole number k of a value k / 2**scale. All inputs, and all their sums over
fewer than 1024 ranks, are such numbers below 2**63, also those of ``float64``. So everything here is computed without
rounding, in 64-bit integers, and no reference of higher precision is needed.

Written from the document alone. The rank programs' helper implements the same document independently: if both shared
one implementation, a mistake in it would make a wrong library look right.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from testbed.core.validation.elements import ElementType

__all__ = ["decode", "encode", "numerators", "words"]

Words = npt.NDArray[np.uint64]
Numerators = npt.NDArray[np.int64]

_MASK: Final = 2**64 - 1
_OF_SEED, _OF_CALL, _OF_RANK, _OF_INDEX = (
    0x9E3779B97F4A7C15,
    0xD1B54A32D192ED03,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
)
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64's (Steele, Lea and Flood, OOPSLA 2014)


_STORED: Final[dict[str, npt.DTypeLike]] = {
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}


def words(indices: Words, *, seed: int, call: int, rank: int) -> Words:
    """Return w of the elements with these ``indices`` (uint64), for a rank's number in its group."""
    base = (seed * _OF_SEED + call * _OF_CALL + rank * _OF_RANK) & _MASK
    z = indices * np.uint64(_OF_INDEX)  # a new array; numpy's unsigned arrays wrap, as the document requires
    z += np.uint64(base)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_FIRST)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_SECOND)
    z ^= z >> np.uint64(31)
    return z


def numerators(kind: ElementType, indices: Words, *, seed: int, call: int, rank: int) -> Numerators:
    """Return the numerators of the input elements with these ``indices``."""
    w = words(indices, seed=seed, call=call, rank=rank)
    w >>= np.uint64(kind.shift)
    shifted = w.view(np.int64)  # every shift is above 0, so that no bit is taken for a sign
    shifted -= np.int64(1 << (63 - kind.shift))
    return shifted


def encode(kind: ElementType, exact_values: Numerators) -> npt.NDArray[np.uint8]:
    """Return the bytes of values that the type holds exactly, little-endian, as in an output file."""
    if kind.is_integer:
        stored: npt.NDArray[Any] = exact_values.astype(_STORED[kind.name])
    elif kind.name == "bfloat16":
        # The upper half of a float32; the bits cut off are 0, because eight bits of significand hold every input.
        single = (exact_values.astype(np.float64) * 2.0**-kind.scale).astype("<f4")
        stored = (single.view("<u4") >> np.uint32(16)).astype("<u2")
    else:
        stored = (exact_values.astype(np.float64) * 2.0**-kind.scale).astype(_STORED[kind.name])
    return stored.view(np.uint8)


def decode(kind: ElementType, data: bytes | memoryview) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """Return the elements in ``data``, whose length is a multiple of the size, as int64 or float64."""
    if kind.is_integer:
        return np.frombuffer(data, _STORED[kind.name]).astype(np.int64)
    if kind.name == "bfloat16":
        upper = np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)
        stored: npt.NDArray[Any] = upper.view("<f4")
    else:
        stored = np.frombuffer(data, _STORED[kind.name])
    with np.errstate(invalid="ignore"):  # no warning for a signalling NaN: the comparison rejects it
        return stored.astype(np.float64)
