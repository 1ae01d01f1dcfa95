"""Causes of damage to outside plant: the effect of each on a fiber, and its repair time.

A cause does not change the emulation: a cut is a cut. It is recorded with the fault
(``inject cut north cause=excavator``), defines the repair time (``for: repair``), and random schedules draw from the
table. Repair time is from the loss of light until the fiber carries light again: locate, drive, dig, splice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.core.faults.fault_kind import Parameter
from testbed.core.units import parse_choice

__all__ = ["CAUSE", "CAUSES", "COMPRESSION", "CUTS_PER_1000_KM_YEAR", "YEAR_S", "Cause", "parse_cause", "repair_s"]

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
YEAR_S: Final = 365.25 * _DAY

CUTS_PER_1000_KM_YEAR: Final = 2.73
"""Cuts of buried cable on land: 4.39 per year and 1000 sheath *miles* (carriers' figures for the United States, in
M. To, P. Neusy: Unavailability Analysis of Long-Haul Networks, IEEE JSAC 12(1), 1994), or 2.73 per 1000 km. Often
quoted without its unit; 4.39 per 1000 km would be 1.6 times as many."""

COMPRESSION: Final = 3600.0
"""Default compression of repair times: an hour in a second of the experiment (our choice)."""


@dataclass(frozen=True)
class Cause:
    """One cause. ``repair_s`` is (low, median, high): 90 % of repairs lie between low and high.

    ``fault`` is the name of its effect on the fiber, with ``parameters`` as written. ``weight`` is its default share
    in random schedules. ``source`` has the origin of the repair time; unpublished figures are marked as ours.
    """

    name: str
    summary: str
    repair_s: tuple[float, float, float]
    weight: float
    source: str
    fault: str = "cut"
    parameters: tuple[tuple[str, str], ...] = ()


CAUSES: Final = {
    cause.name: cause
    for cause in (
        Cause(
            "excavator",
            "an excavator tears the cable; the most frequent cause by far",
            (5 * _HOUR, 12 * _HOUR, 24 * _HOUR),
            0.6,
            "12 h to repair: To and Neusy 1994. More than half of all cuts are dig-ups: D. E. Crawford, Fiber"
            " Optic Cable Dig-ups: Causes and Cures, 1993, for the FCC. The range is ours",
        ),
        Cause(
            "bullet",
            "a shot into an aerial cable, often in several places of one span",
            (6 * _HOUR, 12 * _HOUR, 36 * _HOUR),
            0.05,
            "ours: as for a dig-up, with a longer search; no splice case is near",
        ),
        Cause(
            "arrow",
            "a hunter's arrow in an aerial cable breaks some of its fibers",
            (4 * _HOUR, 8 * _HOUR, 24 * _HOUR),
            0.0,
            "ours: one location, visible from the ground",
        ),
        Cause(
            "rodent",
            "rodents chew the sheath; squirrels caused 17 % of all damage to one carrier's plant in a year",
            (4 * _HOUR, 10 * _HOUR, 24 * _HOUR),
            0.17,
            "the share: F. Lawler, Level 3, The 10 Most Bizarre and Annoying Causes of Fiber Cuts, 2011."
            " The time is ours",
        ),
        Cause(
            "pinch",
            "a cable bent too tightly, in a hut or a manhole: light and frames are lost, but the carrier stays up",
            (1 * _HOUR, 3 * _HOUR, 12 * _HOUR),
            0.1,
            "ours: found by OTDR and opened by hand, nothing is spliced",
            "brown-out",
            (("loss", "1%"), ("over", "1s")),
        ),
        Cause(
            "landslide",
            "the ground moves and tears the cable; no digging before the site is safe",
            (1 * _DAY, 3 * _DAY, 14 * _DAY),
            0.08,
            "ours: days rather than hours, because a new route must be found",
        ),
        Cause(
            "ship-anchor",
            "an anchor drags a submarine cable; repair needs a ship",
            (5 * _DAY, 14 * _DAY, 40 * _DAY),
            0.0,
            "cable owners give one to several weeks (International Cable Protection Committee); the figures are ours",
        ),
    )
}


def parse_cause(value: object) -> str:
    """Parse the name of a cause. Raises Unreadable."""
    return parse_choice(str(value).strip(), CAUSES, "cause")


def repair_s(cause: str, compression: float = COMPRESSION) -> float:
    """Return the median repair time of ``cause`` in seconds of the experiment, divided by ``compression``."""
    return CAUSES[cause].repair_s[1] / compression


CAUSE: Final = {"cause": Parameter(f"cause, for the record: {', '.join(CAUSES)}", parse_cause, "")}
"""The parameter of faults that have causes: it is recorded, and does not change the fault."""
