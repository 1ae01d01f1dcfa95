"""Propagation delay: kilometres of a fiber type to seconds, one way.

===============  ===========  ==============================================================================
type             us per km    source
===============  ===========  ==============================================================================
``smf``          5            rule of thumb in network planning: group index 1.499, an upper bound for any
                              solid-core fiber including slack, splices and detours
``g652``         4.897        ITU-T G.652.D single-mode fiber, group index 1.468 at 1550 nm (data sheets of such
                              fibers, as Corning SMF-28 Ultra: 1.4682), over c = 299 792 458 m/s
``hollow-core``  3.5          light travels in air, at nearly c (3.34 us/km; Poletti et al., Nature Photonics 7,
                              279, 2013); 30 % below ``smf`` is what operators quote for cables as laid
===============  ===========  ==============================================================================
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_FIBER", "FIBERS", "HUT_DELAY_S", "SPEED_OF_LIGHT_M_PER_S", "propagation_s"]

SPEED_OF_LIGHT_M_PER_S: Final = 299_792_458.0

DEFAULT_FIBER: Final = "smf"

FIBERS: Final = {
    "smf": 5.0,
    "g652": 1.468 / SPEED_OF_LIGHT_M_PER_S * 1e9,
    "hollow-core": 3.5,
}
"""Microseconds per kilometre of each fiber type."""

HUT_DELAY_S: Final = 0.1e-6
"""One-way delay of the amplifiers in one hut: about 20 m of erbium-doped fiber and patch cords, at 5 us/km."""


def propagation_s(length_m: float, fiber: str, huts: int = 0) -> float:
    """Return the one-way delay in seconds over ``length_m`` of ``fiber`` (a key of :data:`FIBERS`) and ``huts`` huts.

    >>> propagation_s(40_000, "smf")
    0.0002
    """
    return length_m * FIBERS[fiber] / 1e9 + huts * HUT_DELAY_S
