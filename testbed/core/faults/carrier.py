"""The faults ``cut`` and ``flap``: loss of signal on a fiber, once or repeatedly.

A port that receives no light detects it (IEEE 802.3, 46.3.4, link fault signalling: *local fault*), and a port with a
local fault sends no data either. So the cut of one fiber of a pair, ``north:west``, takes west's port down: west
neither receives nor sends. Over plain Ethernet west would signal the other end (*remote fault*), whose port stops as
well: ``carrier=both``. Line systems in between may not forward that signal: then east keeps sending into the dark,
which is the harder case for routing, and the default here for a single direction.

In the plant, the end that faces a site is the peer of its port: taking that end down removes the port's carrier.
Equipment that keeps the client port up when the line is dark (transponders without client shutdown) hides the cut from
both sites: ``silent``.
"""

from __future__ import annotations

import math
from typing import Final

from testbed.core.faults.causes import CAUSE
from testbed.core.faults.fault_kind import Compiled, FaultKind, Given, Parameter, Phase
from testbed.core.faults.fault_target import LINKS, Aim
from testbed.core.faults.impair import silenced
from testbed.core.physics.protection_selector import Path, PathCut
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Link
from testbed.core.units import Unreadable, parse_choice, parse_duration_s, parse_number
from testbed.core.user_text import expected, shown

__all__ = ["CUT", "FLAP", "LEAST_S"]

LEAST_S: Final = 0.02
"""The shortest time that a flapping fiber is dark or lit: well above the kernel's delay to report a carrier."""

_PATHS: Final[dict[str, tuple[Path, ...]]] = {
    "working": ("working",),
    "protection": ("protection",),
    "both": ("working", "protection"),
}


def _cut(aim: Aim, given: Given) -> Compiled:
    """Take the light from the target."""
    return Compiled((_dark(aim, given),), _touched(aim))


def _flap(aim: Aim, given: Given) -> Compiled:
    """Alternate between dark for ``down`` and lit for ``up``, ``times`` times."""
    down_s, times = given["down"], given["times"]
    period_s = down_s + given["up"]
    lasts_s = None if times is None else (times - 1) * period_s + down_s
    return Compiled((_dark(aim, given), Phase(down_s, "lit", ())), _touched(aim), period_s, lasts_s)


def _touched(aim: Aim) -> tuple[str, ...]:
    return tuple(link.name for link in aim.links())


def _dark(aim: Aim, given: Given) -> Phase:
    """Return the phase in which unprotected links are dark, and paths of protected ones are cut.

    With only a path cut, the protection decides whether the link is dark.
    """
    cuts = tuple(PathCut(link.name, path) for link in aim.links() for path in _paths_cut(aim, given, link))
    if "path" in given.written and not any(cut.link == aim.name.partition(":")[0] for cut in cuts):
        given.note("path", "applies to a link with a second path (protection: 1+1 or restoration); remove it")
    unprotected = any(link.second_path is None for link in aim.links())
    directions = [pair for pair in aim.directions() if pair[0].second_path is None] if unprotected else []
    steps = _unlit(aim, directions, given["carrier"] or ("receiver" if ":" in aim.name else "both"))
    return Phase(0.0, "dark" if steps else "path cut", steps, cuts)


def _paths_cut(aim: Aim, given: Given, link: Link) -> tuple[Path, ...]:
    """Return which paths of a protected link are cut: those in the duct, or the chosen ones of a link that is named."""
    if link.second_path is None:
        return ()
    if link.name == aim.name.partition(":")[0]:
        return _PATHS[given["path"]]
    inside = {"working": link.via, "protection": link.second_path.via}
    return tuple(path for path in _PATHS["both"] if aim.name in inside[path])


def _unlit(aim: Aim, directions: list[tuple[Link, str]], carrier: str) -> Plan:
    if carrier == "silent":
        return silenced(directions)
    ends = (
        end
        for link, direction in directions
        for end, site in zip(aim.topology.interfaces.ends(link.name), link.between, strict=True)
        # The plant end that faces the destination of the direction removes the carrier of the receiving port.
        if carrier == "both" or direction == f"{link.name}:{site}"
    )
    return tuple(Carrier(PLANT, end, False) for end in dict.fromkeys(ends))


def _while(value: str) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < LEAST_S:
        raise Unreadable(f"{shown(value)} is out of range", f"expected at least {LEAST_S * 1e3:g} ms")
    return duration_s


def _times(value: str) -> int:
    times = parse_number(value, low=1, high=1e6)
    if times != math.floor(times):
        raise Unreadable(*expected("a whole number", value, "write the number of outages, such as 10"))
    return int(times)


_TARGETS: Final = f"{LINKS} for every link in it"
_DARKNESS: Final = {
    "carrier": Parameter(
        "port that loses carrier: both; receiver, the one of the dark fiber (default for one direction); silent, none",
        lambda value: parse_choice(value, ("both", "receiver", "silent")),
    ),
    "path": Parameter(
        "which path of a protected link is cut: working (default), protection, both",
        lambda value: parse_choice(value, _PATHS),
        "working",
    ),
}

CUT: Final = FaultKind(
    "cut",
    "fiber cut: the link is dark, or switches to its second path",
    _TARGETS,
    _cut,
    _DARKNESS | CAUSE,
    Aim.links,
)

FLAP: Final = FaultKind(
    "flap",
    "a fiber alternates between dark and lit",
    _TARGETS,
    _flap,
    {
        "down": Parameter("duration of each outage (200ms)", _while, 0.2),
        "up": Parameter("time between outages (800ms)", _while, 0.8),
        "times": Parameter("number of outages [until healed]", _times),
        **_DARKNESS,
        **CAUSE,
    },
    Aim.links,
    frozenset({"times"}),
)
