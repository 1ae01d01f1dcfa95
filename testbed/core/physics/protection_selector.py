"""Protection of a link by a second path in the optical layer, in the terms of ITU-T G.808.1 and G.873.1. Pure.

The *working* path carries the traffic of a healthy link. When it is cut, the ends wait for the *hold-off* time, since
another layer may recover first, then *switch* to the *protection* path: packets sent until then are lost, and from
then on the link has the latency of the second path. After the repair of the working path, a *revertive* scheme waits
for the *wait-to-restore* time, so that it does not follow a flapping fiber, and switches back; a non-revertive one
stays.

Both directions of a link switch together (bidirectional switching, by the APS protocol). A cut of both paths cuts the
link. ``1+1``: both paths carry the signal and the receiver selects the better one; a switch takes at most 50 ms
(G.808.1, G.841). ``restoration``: a controller finds and lights the second path after the cut, which takes seconds.

Client ports: the equipment keeps them up during a switch of 50 ms, so that routing never notices. A restoration takes
so long that they lose the carrier, and routing uses another path, if any, until the light is back. ``carrier`` selects
one of the two behaviours.
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
"""1+1: the maximum of G.808.1 and G.841. Restoration: path computation by a controller, then settling of amplifiers and
coherent receivers; reports range from seconds to minutes, and this is the low end."""

DEFAULT_WAIT_TO_RESTORE_S: Final = 5.0
"""G.873.1 specifies 5 to 12 minutes; a lab, whose cuts last seconds, uses seconds."""

MOST_RETURN_S: Final = 0.050
"""Longest switch back: it is planned, and the working path is lit before traffic leaves the other path."""


@dataclass(frozen=True)
class SecondPath:
    """The protection path of a link and its switching parameters; lengths in m, times in s.

    Attributes:
        via: the ducts of the path, in order.
        length_m: the sum of their lengths.
        switch_s: duration of a switch once it is decided.
        hold_off_s: time from a cut to the decision to switch.
        wait_to_restore_s: time from the repair of the working path to the decision to switch back.
        revertive: whether traffic returns to the working path at all.
        carrier_kept: whether client ports keep the carrier during a switch.
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
        """Duration of the switch back."""
        return min(self.switch_s, MOST_RETURN_S)


@dataclass(frozen=True)
class PathCut:
    """A cut of one of the two paths of ``link``."""

    link: str
    path: Path


class Selector:
    """State machine that selects the path of one protected link from the cuts of its paths.

    Times are in seconds of any one monotonic clock.
    """

    def __init__(self, second: SecondPath) -> None:
        self._second = second
        self._cut: frozenset[Path] = frozenset()
        self._doing: Literal["settled", "dark", "switching", "waiting to restore", "returning"] = "settled"
        self.on: Path = "working"
        """The current path of traffic, or the last one before the link went dark."""
        self.due_t: float | None = None
        """Time of the next call of :meth:`advance`; None: no transition until the next :meth:`learn`."""

    @property
    def state(self) -> str:
        """``working``, ``protection``, ``switching`` (dark, in either direction) or ``dark`` (both paths cut)."""
        if self._doing in ("settled", "waiting to restore"):
            return self.on
        return "dark" if self._doing == "dark" else "switching"

    @property
    def carrier(self) -> bool:
        """Whether client ports have carrier."""
        return self._doing != "dark" and (self._doing != "switching" or self._second.carrier_kept)

    def learn(self, t: float, cut: Set[Path]) -> None:
        """Update the set of cut paths at ``t``."""
        self.advance(t)
        self._cut = frozenset(cut)
        self._decide(t)

    def advance(self, t: float) -> None:
        """Perform the transitions that are due by ``t``."""
        while self.due_t is not None and self.due_t <= t:
            due_t, self.due_t = self.due_t, None
            if self._doing == "waiting to restore":
                self._enter("returning", due_t + self._second.return_s)
            else:
                self.on, self._doing = _OTHER[self.on], "settled"
                self._decide(due_t)

    def restore(self, t: float) -> None:
        """Switch back to the working path now if it is not cut, regardless of wait and scheme: a manual switch."""
        self.advance(t)
        if self.on == "protection" and "working" not in self._cut and self._doing != "returning":
            self._enter("returning", t + self._second.return_s)

    def _decide(self, t: float) -> None:
        if self._cut == {"working", "protection"}:
            self._enter("dark", None)
        elif self.on in self._cut:
            if self._doing not in ("switching", "returning"):
                # After both paths were cut, the hold-off time has passed already.
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
