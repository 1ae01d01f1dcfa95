"""Classes of optics: line rate per wave, reach, and the standard that defines them.

Reach is the design target of the standard, over a compliant line; a vendor's module may do better. A link longer than
its reach is a mistake in a topology, and the message suggests a class with enough reach. Without a standard the reach
is our assumption, marked in ``source``; docs/physics.md gives the reasons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = [
    "DEFAULT_OPTICS",
    "OPTICS",
    "REGENERATED_M",
    "SPAN_M",
    "SUBMARINE_SPAN_M",
    "Optics",
    "rate_bps",
    "that_reach",
]

SPAN_M: Final = 80e3
"""Length of fiber between two amplifiers on land: every 80 to 100 km (EDFA; docs/physics.md)."""

SUBMARINE_SPAN_M: Final = 60e3
"""Length of fiber between two repeaters of a submarine cable: every 40 to 80 km."""

REGENERATED_M: Final = 2e6
"""Length of fiber between 3R regenerators, for regenerated classes: our assumption."""


@dataclass(frozen=True)
class Optics:
    """One class of optics: ``line_rate_bps`` is the client rate of one wave, ``reach_m`` the longest supported link.

    ``span_m`` is the distance between amplifiers; None: a single span, amplified at its ends if at all.
    ``regenerated_m`` is the distance between 3R regenerators; None: no regeneration.
    """

    name: str
    line_rate_bps: float
    reach_m: float
    source: str
    span_m: float | None = None
    regenerated_m: float | None = None
    submarine: bool = False

    def spans(self, length_m: float) -> int:
        """Return the number of spans between amplifiers, at least 1; the number of amplifier huts is one less.

        >>> OPTICS["OpenZR+"].spans(400e3), OPTICS["800ZR"].spans(100e3)
        (5, 1)
        """
        return _sections(length_m, self.span_m)

    def regenerators(self, length_m: float) -> int:
        """Return the number of 3R regenerators on ``length_m``."""
        return _sections(length_m, self.regenerated_m) - 1


def _sections(length_m: float, each_m: float | None) -> int:
    return max(1, math.ceil(length_m / each_m)) if each_m else 1


_CLASSES: Final = (
    Optics("400G-DR4", 400e9, 500.0, "IEEE 802.3bs-2017, 400GBASE-DR4"),
    Optics("800G-DR8", 800e9, 500.0, "IEEE 802.3df-2024, 800GBASE-DR8"),
    Optics("400G-FR4", 400e9, 2e3, "IEEE 802.3cu-2021, 400GBASE-FR4"),
    Optics("400G-LR4", 400e9, 6e3, "IEEE 802.3cu-2021, 400GBASE-LR4-6"),
    Optics("400G-ER8", 400e9, 40e3, "IEEE 802.3cn-2019, 400GBASE-ER8"),
    Optics("400ZR", 400e9, 120e3, "OIF-400ZR-01.0 (2020), amplified point-to-point DWDM"),
    Optics("800ZR", 800e9, 120e3, "OIF-800ZR-01.0 (2024), single amplified span of DWDM"),
    Optics("OpenZR+", 400e9, 480e3, "OpenZR+ MSA, 400G 16QAM with open FEC over amplified DWDM", SPAN_M),
    Optics(
        "400G-LH", 400e9, 2e6, "amplified long haul by transponders of one vendor; the reach is our assumption", SPAN_M
    ),
    Optics(
        "OTN", 400e9, 4e7, "ITU-T G.709 (OTUCn), regenerated along the way as often as it takes", SPAN_M, REGENERATED_M
    ),
    Optics(
        "SLTE",
        400e9,
        12e6,
        "submarine line terminals over repeatered cable (ITU-T G.977): 600G crossed 12 469 km of Amitié (2024)",
        SUBMARINE_SPAN_M,
        submarine=True,
    ),
)

OPTICS: Final = {optics.name: optics for optics in _CLASSES}

DEFAULT_OPTICS: Final = "800ZR"


def rate_bps(optics: str, waves: int, scale: float) -> float:
    """Return the bits per second of a link at ``scale``: waves x line rate / scale.

    >>> rate_bps("800ZR", 1, 1000)
    800000000.0
    """
    return waves * OPTICS[optics].line_rate_bps / scale


def that_reach(length_m: float, least_bps: float) -> tuple[Optics, ...]:
    """Return the classes for a link of ``length_m``: those with ``least_bps`` per wave first, then by reach.

    Submarine classes come last, because a topology does not mark submarine links.
    """
    fit = [optics for optics in _CLASSES if optics.reach_m >= length_m]
    return tuple(sorted(fit, key=lambda optics: (optics.line_rate_bps < least_bps, optics.submarine, optics.reach_m)))
