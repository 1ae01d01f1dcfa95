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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.impair import silenced
from testbed.core.physics.protection_selector import Path, PathCut
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier
from testbed.core.plan.step import Property
from testbed.core.topology.model import Link, Topology
from testbed.core.units import Unreadable, parse_choice, parse_duration_s, parse_number
from testbed.core.user_text import expected, shown

__all__ = ["CUT", "FLAP", "LEAST_S", "cut", "flap"]

LEAST_S: Final = 0.02
"""The shortest time that a flapping fiber is dark or lit: well above the kernel's delay to report a carrier."""

_CARRIERS: Final = ("both", "receiver", "silent")
_TARGETS: Final = "a link, one direction of it (north:west), or a duct for every link in it"
_CARRIER_WORDS: Final = (
    "port that loses carrier: both; receiver, the one of the dark fiber (default for one direction); silent, none"
)

_PATH_WORDS: Final = "which path of a protected link is cut: working (default), protection, both"


def cut(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Take the light from ``target``. Raises UserError."""
    reader = Reader(parameters)
    dark, links = _darkness(topology, target, reader)
    reader.finish()
    return Compiled((Phase(0.0, dark.name, dark.steps, dark.cuts),), links)


def flap(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Alternate between dark for ``down`` and lit for ``up``, ``times`` times. Raises UserError."""
    reader = Reader(parameters)
    dark, links = _darkness(topology, target, reader)
    down_s, up_s = reader.read("down", _while, 0.2), reader.read("up", _while, 0.8)
    times = reader.read("times", _times, None)
    reader.finish()
    period_s = down_s + up_s
    return Compiled(
        (Phase(0.0, dark.name, dark.steps, dark.cuts), Phase(down_s, "lit", ())),
        links,
        period_s,
        None if times is None else (times - 1) * period_s + down_s,
    )


@dataclass(frozen=True)
class _Darkness:
    """The Steps that make unprotected links dark, and the cut paths of protected links."""

    steps: tuple[Property, ...]
    cuts: tuple[PathCut, ...]

    @property
    def name(self) -> str:
        """Name of the phase; with one path cut, the protection decides whether the link is dark."""
        return "dark" if self.steps else "path cut"


def _darkness(topology: Topology, target: str, reader: Reader) -> tuple[_Darkness, tuple[str, ...]]:
    """Return the darkness and the names of the affected links."""
    cuts = _path_cuts(topology, target, reader)
    directions: tuple[tuple[Link, str], ...] = ()
    if not cuts or any(target in link.via for link in topology.links if link.second_path is None):
        directions = tuple(it for it in target_directions(topology, target) if it[0].second_path is None)
    carrier = reader.read("carrier", _carrier, "receiver" if ":" in target else "both")
    touched = {it.link for it in cuts} | {link.name for link, _ in directions}
    links = tuple(link.name for link in topology.links if link.name in touched)
    if carrier == "silent":
        return _Darkness(silenced(directions), cuts), links
    ends = [
        end
        for link, direction in directions
        for end, site in zip(topology.interfaces.ends(link.name), link.between, strict=True)
        # The plant end that faces the destination of the direction removes the carrier of the receiving port.
        if carrier == "both" or direction == f"{link.name}:{site}"
    ]
    return _Darkness(tuple(Carrier(PLANT, end, False) for end in dict.fromkeys(ends)), cuts), links


def _path_cuts(topology: Topology, target: str, reader: Reader) -> tuple[PathCut, ...]:
    """Return the cut paths of protected links: those in the duct ``target``, or the chosen ones of a named link."""
    name = target.partition(":")[0]
    default: tuple[Path, ...] = ("working",)
    paths = reader.read("path", _paths, default)
    found: list[PathCut] = []
    named = [link for link in topology.links if link.name == name]
    for link in named or topology.links:
        if link.second_path is None:
            continue
        if named:
            target_links(topology, target)  # validates the direction
            found += [PathCut(link.name, path) for path in paths]
        elif name == target:
            found += [PathCut(link.name, "working")] if name in link.via else []
            found += [PathCut(link.name, "protection")] if name in link.second_path.via else []
    if "path" in reader and not (named and found):
        reader.note("path", "applies to a link with a second path (protection: 1+1 or restoration); remove it")
    return tuple(found)


def _paths(value: object) -> tuple[Path, ...]:
    choices: dict[str, tuple[Path, ...]] = {
        "working": ("working",),
        "protection": ("protection",),
        "both": ("working", "protection"),
    }
    return choices[parse_choice(value, choices)]


def _carrier(value: object) -> str:
    return parse_choice(value, _CARRIERS)


def _while(value: object) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < LEAST_S:
        raise Unreadable(f"{shown(value)} is out of range", f"expected at least {LEAST_S * 1e3:g} ms")
    return duration_s


def _times(value: object) -> int | None:
    times = parse_number(value, low=1, high=1e6)
    if times != math.floor(times):
        raise Unreadable(*expected("a whole number", value, "write the number of outages, such as 10"))
    return int(times)


CUT = FaultKind(
    "cut",
    "fiber cut: the link is dark, or switches to its second path",
    _TARGETS,
    cut,
    {"carrier": _CARRIER_WORDS, "path": _PATH_WORDS},
)

FLAP = FaultKind(
    "flap",
    "a fiber alternates between dark and lit",
    _TARGETS,
    flap,
    {
        "down": "duration of each outage (200ms)",
        "up": "time between outages (800ms)",
        "times": "number of outages [until healed]",
        "carrier": _CARRIER_WORDS,
        "path": _PATH_WORDS,
    },
    frozenset({"times"}),
)
