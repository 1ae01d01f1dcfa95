"""Whole input of a rank in a validation case, as bytes."""

from __future__ import annotations

import numpy as np

from testbed.core.validation.elements import TYPES
from testbed.core.validation.values import encode, numerators


def input_bytes(name: str, count: int, *, seed: int, call: int, rank: int) -> bytes:
    """Return the input of a rank (its number in the group) in a call: ``count`` elements of the type ``name``."""
    kind = TYPES[name]
    indices = np.arange(count, dtype=np.uint64)
    return encode(kind, numerators(kind, indices, seed=seed, call=call, rank=rank)).tobytes()
