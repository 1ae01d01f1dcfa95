"""What harms fibers outside: one table of causes, what each does to a fiber, and how long its repair takes.

A cause changes nothing of what is emulated: a cut is a cut. It is written into the fault's record
(``inject cut north cause=excavator``), it gives a repair time (``for: repair``), and random schedules draw from it.
Repair is from the loss of light until the fiber carries light again: find the place, drive there, dig, splice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Reader
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable
from testbed.core.user_text import nearest, shown

__all__ = ["CAUSES", "COMPRESSION", "CUTS_PER_1000_KM_YEAR", "YEAR_S", "Cause", "parse_cause", "repair_s", "with_cause"]

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
YEAR_S: Final = 365.25 * _DAY

CUTS_PER_1000_KM_YEAR: Final = 2.73
"""Cuts of buried cable on land: 4.39 a year and 1000 sheath *miles* (carriers' figures for the United States, in
M. To, P. Neusy: Unavailability Analysis of Long-Haul Networks, IEEE JSAC 12(1), 1994), which is 2.73 for 1000 km. Often
quoted without its unit; 4.39 for 1000 km would be 1.6 times as many."""

COMPRESSION: Final = 3600.0
"""An hour of repair in a second of experiment, where a file does not say otherwise (ours)."""


@dataclass(frozen=True)
class Cause:
    """``repair_s`` is (a short one, the median, a long one): nine of ten repairs on land lie between first and last.

    ``fault`` is what it does to the fiber, by the name of the fault; ``parameters`` as written. ``weight`` is its share
    among the harms that random schedules draw, where a file does not weigh causes itself. ``source``: of the
    repair time; what nobody published is said to be ours.
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
            "a digger tears the cable; the most frequent by far",
            (5 * _HOUR, 12 * _HOUR, 24 * _HOUR),
            0.6,
            "12 h to repair: To and Neusy 1994. That more than half of all cuts are dig-ups: D. E. Crawford, Fiber"
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
            "a hunter's arrow in an aerial cable: some fibers of it break",
            (4 * _HOUR, 8 * _HOUR, 24 * _HOUR),
            0.0,
            "ours: one place, seen from the ground",
        ),
        Cause(
            "rodent",
            "teeth in the sheath; squirrels were 17 % of all damage to one carrier's plant in a year",
            (4 * _HOUR, 10 * _HOUR, 24 * _HOUR),
            0.17,
            "the share: F. Lawler, Level 3, The 10 Most Bizarre and Annoying Causes of Fiber Cuts, 2011."
            " The time is ours",
        ),
        Cause(
            "pinch",
            "a cable bent too tightly, in a hut or a manhole: light is lost, frames are, and nothing goes dark",
            (1 * _HOUR, 3 * _HOUR, 12 * _HOUR),
            0.1,
            "ours: found by OTDR and opened by hand, nothing is spliced",
            "brown-out",
            (("loss", "1%"), ("over", "1s")),
        ),
        Cause(
            "landslide",
            "the ground goes, and the cable with it; nobody may dig before it is safe",
            (1 * _DAY, 3 * _DAY, 14 * _DAY),
            0.08,
            "ours: days rather than hours, because a new way must be found",
        ),
        Cause(
            "ship-anchor",
            "an anchor drags a submarine cable; a ship must come",
            (5 * _DAY, 14 * _DAY, 40 * _DAY),
            0.0,
            "one to several weeks is what cable owners give (International Cable Protection Committee);"
            " the figures are ours",
        ),
    )
}


def parse_cause(value: object) -> str:
    """A cause by its name. Raises Unreadable."""
    name = str(value).strip()
    if name not in CAUSES:
        raise Unreadable(f"{shown(value)} is no known cause", nearest(name, CAUSES))
    return name


def repair_s(cause: str, compression: float = COMPRESSION) -> float:
    """The median repair after ``cause``, in seconds of an experiment that is ``compression`` times as fast."""
    return CAUSES[cause].repair_s[1] / compression


def with_cause(kind: FaultKind) -> FaultKind:
    """``kind`` with a parameter ``cause``, which is for the record: the fault is what it is without."""

    def compile(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
        reader = Reader(parameters)
        reader.read("cause", parse_cause, "")
        reader.finish()
        return kind.compile(topology, target, {key: value for key, value in parameters.items() if key != "cause"})

    words = f"why, for the record: {', '.join(CAUSES)}"
    return replace(kind, compile=compile, parameters={**kind.parameters, "cause": words})
