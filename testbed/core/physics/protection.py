"""Protection of a link by a second path in the optical layer, in the words of ITU-T G.808.1 and G.873.1. Pure.

The *working* path carries the traffic of a healthy link. When it is cut, the ends wait for the *hold-off* time, as
another layer may mend it first, then *switch* to the *protection* path: what is sent until then is lost, and the
link's latency is the second path's from then on. When the working path is mended, a *revertive* scheme waits for the
*wait-to-restore* time, so that a fiber that comes and goes is not followed each time, and switches back; a
non-revertive one stays.

``1+1``: both paths carry the signal and the receiver takes the better one: a switch takes at most 50 ms (G.808.1,
G.841). ``restoration``: a controller finds and lights the second path after the cut, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "DEFAULT_SWITCH_S",
    "DEFAULT_WAIT_TO_RESTORE_S",
    "MOST_SWITCH_S",
    "PROTECTIONS",
    "SWITCHED",
    "Path",
    "SecondPath",
    "chosen",
]

Path = Literal["working", "protection", "none"]
"""Which of its paths a link's traffic takes; none when both are cut."""

SWITCHED: Final = ("1+1", "restoration")
PROTECTIONS: Final = ("none", "route", *SWITCHED)

DEFAULT_SWITCH_S: Final = {"1+1": 0.050, "restoration": 3.0}
"""1+1: the most that G.808.1 and G.841 allow. Restoration: a controller's reckoning and the settling of amplifiers and
of coherent receivers; seconds to minutes are reported, the least of that is taken."""

DEFAULT_WAIT_TO_RESTORE_S: Final = 5.0
"""G.873.1 counts in minutes, 5 to 12 in steps of 1; in a lab, whose cuts last seconds, minutes pass as seconds."""

MOST_SWITCH_S: Final = 600.0


@dataclass(frozen=True)
class SecondPath:
    """The protection path of a link and how it is switched to; lengths in m, times in s.

    Attributes:
        via: ducts that it passes through, in order.
        length_m: the sum of theirs.
        switch_s: how long a switch takes, either way, once it is decided.
        hold_off_s: how long a cut stands before the switch is decided.
        wait_to_restore_s: how long the working path is sound before the switch back is decided.
        revertive: whether traffic goes back to the working path at all.
    """

    via: tuple[str, ...]
    length_m: float
    switch_s: float
    hold_off_s: float = 0.0
    wait_to_restore_s: float = DEFAULT_WAIT_TO_RESTORE_S
    revertive: bool = True

    @property
    def outage_s(self) -> float:
        """From a cut to the first light over the second path."""
        return self.hold_off_s + self.switch_s


def chosen(working: Set[str], protection: Set[str], cut: Set[str]) -> Path:
    """The path that carries traffic, once every switch is done, while the ducts in ``cut`` are cut."""
    if not working & cut:
        return "working"
    return "none" if protection & cut else "protection"
