"""Optics by class: line rate of a wave, reach, and the standard that says so.

Reach is what the standard is made for, over a line that fits it; a vendor's module may do better. A link that is
longer than its class reaches is a mistake in a topology, and the message names a class that would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_OPTICS", "OPTICS", "Optics", "rate_bps", "that_reach"]


@dataclass(frozen=True)
class Optics:
    """``line_rate_bps`` is the client rate of one wave, ``reach_m`` the longest link it is made for."""

    name: str
    line_rate_bps: float
    reach_m: float
    source: str


_CLASSES: Final = (
    Optics("400G-DR4", 400e9, 500.0, "IEEE 802.3bs-2017, 400GBASE-DR4"),
    Optics("800G-DR8", 800e9, 500.0, "IEEE 802.3df-2024, 800GBASE-DR8"),
    Optics("400G-FR4", 400e9, 2e3, "IEEE 802.3cu-2021, 400GBASE-FR4"),
    Optics("400G-LR4", 400e9, 6e3, "IEEE 802.3cu-2021, 400GBASE-LR4-6"),
    Optics("400G-ER8", 400e9, 40e3, "IEEE 802.3cn-2019, 400GBASE-ER8"),
    Optics("400ZR", 400e9, 120e3, "OIF-400ZR-01.0 (2020), amplified point-to-point DWDM"),
    Optics("800ZR", 800e9, 120e3, "OIF-800ZR-01.0 (2024), single amplified span of DWDM"),
    Optics("OpenZR+", 400e9, 480e3, "OpenZR+ MSA, 400G 16QAM with open FEC over amplified DWDM"),
    Optics("OTN", 400e9, 4e7, "ITU-T G.709 (OTUCn), regenerated along the way as often as it takes"),
)

OPTICS: Final = {optics.name: optics for optics in _CLASSES}

DEFAULT_OPTICS: Final = "800ZR"


def rate_bps(optics: str, waves: int, scale: float) -> float:
    """Bits per second of a link at ``scale``: waves x line rate / scale.

    >>> rate_bps("800ZR", 1, 1000)
    800000000.0
    """
    return waves * OPTICS[optics].line_rate_bps / scale


def that_reach(length_m: float, least_bps: float) -> tuple[Optics, ...]:
    """The classes for a link of ``length_m``: those with ``least_bps`` a wave first, and the shortest reach first."""
    fit = [optics for optics in _CLASSES if optics.reach_m >= length_m]
    return tuple(sorted(fit, key=lambda optics: (optics.line_rate_bps < least_bps, optics.reach_m)))
