"""Arithmetic of float32 in Python, whose numbers are float64."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

__all__ = ["float32", "in_order", "same"]


def float32(value: float) -> float:
    """Round to float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def in_order(values: Sequence[float]) -> float:
    """Return the float32 sum, added one after the other.

    The float64 sum of two float32 numbers, rounded to float32, is their float32 sum (Figueroa 1995).
    """
    total = values[0] if values else 0.0
    for value in values[1:]:
        total = float32(total + value)
    return total


def same(one: float, other: float) -> bool:
    """Whether two numbers are equal, or both are not a number."""
    return one == other or (math.isnan(one) and math.isnan(other))
