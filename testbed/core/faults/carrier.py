"""Faults of the carrier: a fiber cut, and one that comes and goes.

A port that receives no light knows it (IEEE 802.3, 46.3.4, link fault signalling: *local fault*), and a port with a
local fault sends no data either. So the cut of one fiber of a pair, ``north:west``, takes west's port down: west
receives nothing and sends nothing. Over plain Ethernet it would tell the other end (*remote fault*), whose port stops
as well: ``carrier=both``. Line systems in between may not pass that on: then east goes on sending into the dark, which
is the harder case for whoever routes, and what one direction does by itself here.

In the plant the end that faces a site is the other side of its port: taking that end down takes the carrier from the
port. Between sites whose equipment keeps the client port up when the line is dark (transponders without client
shutdown) nobody sees anything: ``silent``.
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
from testbed.core.units import Unreadable, parse_duration_s, parse_number
from testbed.core.user_text import nearest, shown

__all__ = ["CUT", "FLAP", "LEAST_S", "cut", "flap"]

LEAST_S: Final = 0.02
"""The shortest time a flapping fiber is dark or lit: well above what the kernel takes to tell of a carrier."""

_CARRIERS: Final = ("both", "receiver", "silent")
_TARGETS: Final = "a link, one direction of it (north:west), or a duct for every link in it"
_CARRIER_WORDS: Final = (
    "whose port loses it: both; receiver, of the fiber that is dark (the default for one direction); silent, nobody's"
)

_PATH_WORDS: Final = "of a link with a second path, which is cut: working (default), protection, both"


def cut(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The light of what ``target`` names is gone. Raises UserError."""
    reader = Reader(parameters)
    dark, links = _darkness(topology, target, reader)
    reader.finish()
    return Compiled((Phase(0.0, dark.name, dark.steps, dark.cuts),), links)


def flap(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Dark for ``down``, lit for ``up``, and again; over when it was dark ``times`` times. Raises UserError."""
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
    """Ends that go dark, of links that nothing protects; paths that do, of the others."""

    steps: tuple[Property, ...]
    cuts: tuple[PathCut, ...]

    @property
    def name(self) -> str:
        """Of the phase; whether a link of which one path is cut is dark its protection knows."""
        return "dark" if self.steps else "path cut"


def _darkness(topology: Topology, target: str, reader: Reader) -> tuple[_Darkness, tuple[str, ...]]:
    """And the names of the links that it touches."""
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
        for end, site in zip(link.ends, link.between, strict=True)
        # The end that faces the site that the direction leads to takes the carrier from the port that receives it.
        if carrier == "both" or direction == f"{link.name}:{site}"
    ]
    return _Darkness(tuple(Carrier(PLANT, end, False) for end in dict.fromkeys(ends)), cuts), links


def _path_cuts(topology: Topology, target: str, reader: Reader) -> tuple[PathCut, ...]:
    """Paths of protected links that pass through the duct ``target``; of such a link by its name the path asked for."""
    name = target.partition(":")[0]
    default: tuple[Path, ...] = ("working",)
    paths = reader.read("path", _paths, default)
    found: list[PathCut] = []
    named = [link for link in topology.links if link.name == name]
    for link in named or topology.links:
        if link.second_path is None:
            continue
        if named:
            target_links(topology, target)  # the direction is one of the link's
            found += [PathCut(link.name, path) for path in paths]
        elif name == target:
            found += [PathCut(link.name, "working")] if name in link.via else []
            found += [PathCut(link.name, "protection")] if name in link.second_path.via else []
    if "path" in reader and not (named and found):
        reader.note("path", "only a link with a second path (protection: 1+1, restoration), by its name, has a choice")
    return tuple(found)


def _paths(value: object) -> tuple[Path, ...]:
    choices: dict[str, tuple[Path, ...]] = {
        "working": ("working",),
        "protection": ("protection",),
        "both": ("working", "protection"),
    }
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise Unreadable(f"{shown(value)} is not known here", nearest(str(value), choices))


def _carrier(value: object) -> str:
    if isinstance(value, str) and value in _CARRIERS:
        return value
    raise Unreadable(f"{shown(value)} is not known here", nearest(str(value), _CARRIERS))


def _while(value: object) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < LEAST_S:
        raise Unreadable(f"{shown(value)} is too short", f"the least is {LEAST_S * 1e3:g} ms")
    return duration_s


def _times(value: object) -> int | None:
    times = parse_number(value, low=1, high=1e6)
    if times != math.floor(times):
        raise Unreadable(f"{shown(value)} is no whole number", "write how often the light goes, as in 10")
    return int(times)


CUT = FaultKind(
    "cut",
    "fiber cut: the light is gone, or the link goes over to its second path",
    _TARGETS,
    cut,
    {"carrier": _CARRIER_WORDS, "path": _PATH_WORDS},
)

FLAP = FaultKind(
    "flap",
    "a fiber that is dark and lit in turn",
    _TARGETS,
    flap,
    {
        "down": "how long it is dark (200ms)",
        "up": "how long it is lit in between (800ms)",
        "times": "how often it goes dark; without it, until it is healed",
        "carrier": _CARRIER_WORDS,
        "path": _PATH_WORDS,
    },
    frozenset({"times"}),
)
