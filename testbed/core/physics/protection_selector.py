"""Protection of a link by a second path in the optical layer, in the words of ITU-T G.808.1 and G.873.1. Pure.

The *working* path carries the traffic of a healthy link. When it is cut, the ends wait for the *hold-off* time, as
another layer may mend it first, then *switch* to the *protection* path: what is sent until then is lost, and the
link's latency is the second path's from then on. When the working path is mended, a *revertive* scheme waits for the
*wait-to-restore* time, so that a fiber that comes and goes is not followed each time, and switches back; a
non-revertive one stays.

The two directions of a link move together (bidirectional switching, by the APS protocol). A cut of both paths is one
of the link. ``1+1``: both paths carry the signal and the receiver takes the better one: a switch takes at most 50 ms
(G.808.1, G.841). ``restoration``: a controller finds and lights the second path after the cut, which takes seconds.

Client ports: the equipment keeps them lit through a switch of 50 ms, so that routing never sees it; a restoration takes
so long that they lose the carrier and routing leads around, where it can, until there is light again. ``carrier`` says
which of the two a link does.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "DEFAULT_SWITCH_S",
    "DEFAULT_WAIT_TO_RESTORE_S",
    "MOST_RETURN_S",
    "PROTECTIONS",
    "SWITCHED",
    "Path",
    "PathCut",
    "SecondPath",
    "Selector",
]

Path = Literal["working", "protection"]
_OTHER: Final[dict[Path, Path]] = {"working": "protection", "protection": "working"}

SWITCHED: Final = ("1+1", "restoration")
PROTECTIONS: Final = ("none", "route", *SWITCHED)

DEFAULT_SWITCH_S: Final = {"1+1": 0.050, "restoration": 3.0}
"""1+1: the most that G.808.1 and G.841 allow. Restoration: a controller's reckoning and the settling of amplifiers and
of coherent receivers; seconds to minutes are reported, the least of that is taken."""

DEFAULT_WAIT_TO_RESTORE_S: Final = 5.0
"""G.873.1 counts in minutes, 5 to 12 of them; in a lab, whose cuts last seconds, minutes pass as seconds."""

MOST_RETURN_S: Final = 0.050
"""The way back is planned and the working path is lit before traffic leaves the other: no switch back takes longer."""


@dataclass(frozen=True)
class SecondPath:
    """The protection path of a link and how it is switched to; lengths in m, times in s.

    Attributes:
        via: ducts that it passes through, in order.
        length_m: the sum of theirs.
        switch_s: how long a switch takes once it is decided.
        hold_off_s: how long a cut stands before the switch is decided.
        wait_to_restore_s: how long the working path is sound before the switch back is decided.
        revertive: whether traffic goes back to the working path at all.
        carrier_kept: whether client ports keep the carrier while they wait for the switch.
    """

    via: tuple[str, ...]
    length_m: float
    switch_s: float
    hold_off_s: float = 0.0
    wait_to_restore_s: float = DEFAULT_WAIT_TO_RESTORE_S
    revertive: bool = True
    carrier_kept: bool = True

    @property
    def return_s(self) -> float:
        """How long the switch back takes."""
        return min(self.switch_s, MOST_RETURN_S)


@dataclass(frozen=True)
class PathCut:
    """One of the two paths of the link named is dark."""

    link: str
    path: Path


class Selector:
    """Which path the traffic of one protected link is on: told what is cut, it says what stands and until when.

    Times are of any one clock, in s, and never go back.
    """

    def __init__(self, second: SecondPath) -> None:
        self._second = second
        self._cut: frozenset[Path] = frozenset()
        self._doing: Literal["settled", "dark", "switching", "waiting to restore", "returning"] = "settled"
        self.on: Path = "working"
        """The path that traffic is on, or was on last before it went dark."""
        self.due_t: float | None = None
        """When :meth:`advance` is to be called next; None: something must be learned before anything happens."""

    @property
    def state(self) -> str:
        """``working``, ``protection``, ``switching`` (either way, dark meanwhile) or ``dark``: both paths are cut."""
        if self._doing in ("settled", "waiting to restore"):
            return self.on
        return "dark" if self._doing == "dark" else "switching"

    @property
    def carrier(self) -> bool:
        """Whether client ports see light."""
        return self._doing != "dark" and (self._doing != "switching" or self._second.carrier_kept)

    def learn(self, t: float, cut: Set[Path]) -> None:
        """From ``t`` on exactly these paths are cut."""
        self.advance(t)
        self._cut = frozenset(cut)
        self._decide(t)

    def advance(self, t: float) -> None:
        """Do what is due by ``t``."""
        while self.due_t is not None and self.due_t <= t:
            due_t, self.due_t = self.due_t, None
            if self._doing == "waiting to restore":
                self._enter("returning", due_t + self._second.return_s)
            else:
                self.on, self._doing = _OTHER[self.on], "settled"
                self._decide(due_t)

    def restore(self, t: float) -> None:
        """Back to the working path now, if it is sound, whatever the wait or the scheme says: a manual switch."""
        self.advance(t)
        if self.on == "protection" and "working" not in self._cut and self._doing != "returning":
            self._enter("returning", t + self._second.return_s)

    def _decide(self, t: float) -> None:
        if self._cut == {"working", "protection"}:
            self._enter("dark", None)
        elif self.on in self._cut:
            if self._doing not in ("switching", "returning"):
                # From darkness: what there was to hold off for has been waited for already.
                hold_off_s = 0.0 if self._doing == "dark" else self._second.hold_off_s
                self._enter("switching", t + hold_off_s + self._second.switch_s)
        elif self.on == "working" or self._cut or not self._second.revertive:
            if self._doing != "returning" or self._cut:
                self._enter("settled", None)
        elif self._doing not in ("waiting to restore", "returning"):
            self._enter("waiting to restore", t + self._second.wait_to_restore_s)

    def _enter(
        self,
        doing: Literal["settled", "dark", "switching", "waiting to restore", "returning"],
        due_t: float | None,
    ) -> None:
        self._doing, self.due_t = doing, due_t
