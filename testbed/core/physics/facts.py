"""Facts that follow from a distance: its radius class, and the bytes in flight over it. Pure.

No standard defines the classes. The boundaries are ours, where the optics change; docs/physics.md gives the reasons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["RADIUS_CLASSES", "RadiusClass", "bandwidth_delay_bytes", "radius_class"]


@dataclass(frozen=True)
class RadiusClass:
    """A class of distances; ``up_to_m`` is the longest fiber between two sites, included."""

    name: str
    up_to_m: float


RADIUS_CLASSES: Final = (
    RadiusClass("intra-metro", 10e3),  # grey optics without an amplifier reach it
    RadiusClass("metro", 120e3),  # one amplified span: 400ZR and 800ZR
    RadiusClass("regional", 600e3),  # amplified pluggables: OpenZR+ and its successors
    RadiusClass("long-haul", 2000e3),  # amplified, not regenerated
    RadiusClass("continental", 6000e3),  # regenerated on the way
    RadiusClass("intercontinental", math.inf),  # over the sea
)


def radius_class(length_m: float) -> RadiusClass:
    """Return the class of a distance along the fiber.

    >>> radius_class(40e3).name, radius_class(120e3).name
    ('metro', 'metro')
    """
    return next(radius for radius in RADIUS_CLASSES if length_m <= radius.up_to_m)


def bandwidth_delay_bytes(rate_bps: float, rtt_s: float) -> float:
    """Return the bandwidth-delay product: the bytes in flight that fill a link of ``rate_bps``.

    >>> bandwidth_delay_bytes(800e9, 400e-6)
    40000000.0
    """
    return rate_bps * rtt_s / 8
