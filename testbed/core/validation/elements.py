"""The six element types of the protocol, without numpy: code that only names operations does not need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["TYPES", "ElementType"]


@dataclass(frozen=True)
class ElementType:
    """One type of the protocol.

    Attributes:
        size: bytes of an element.
        shift: an input's numerator is ``(w >> shift) - 2**(63 - shift)``: 64 - ``shift`` bits of its word remain.
        scale: the value is ``numerator / 2**scale``; 0 for integers.
        precision: bits of the significand, the leading one included (IEEE 754's p); 0 for integers.
        smallest_exponent: 2 to this is the least positive (subnormal) value; 0 for integers.
    """

    name: str
    size: int
    shift: int
    scale: int = 0
    precision: int = 0
    smallest_exponent: int = 0

    @property
    def is_integer(self) -> bool:
        return self.precision == 0

    @property
    def unit_roundoff(self) -> float:
        """u: largest relative error of one rounding to nearest; 0 for integers."""
        return 2.0**-self.precision if self.precision else 0.0


TYPES: Final = {
    element_type.name: element_type
    for element_type in (
        ElementType("int32", 4, 44),
        ElementType("int64", 8, 24),
        ElementType("float16", 2, 53, 10, 11, -24),
        ElementType("bfloat16", 2, 56, 7, 8, -133),
        ElementType("float32", 4, 40, 23, 24, -149),
        ElementType("float64", 8, 11, 52, 53, -1074),
    )
}
"""By name, in the order of the protocol."""
