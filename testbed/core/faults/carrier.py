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
from typing import Final

from testbed.core.faults.fault import Compiled, FaultKind, Phase, Reader, target_directions, target_links
from testbed.core.faults.impair import silenced
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.step import Carrier, Setting
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, parse_duration_s, parse_number
from testbed.core.words import nearest, shown

__all__ = ["CUT", "FLAP", "LEAST_S", "cut", "flap"]

LEAST_S: Final = 0.02
"""The shortest time a flapping fiber is dark or lit: well above what the kernel takes to tell of a carrier."""

_CARRIERS: Final = ("both", "receiver", "silent")
_TARGETS: Final = "a link, one direction of it (north:west), or a duct for every link in it"
_CARRIER_WORDS: Final = (
    "whose port loses it: both; receiver, of the fiber that is dark (the default for one direction); silent, nobody's"
)


def cut(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The light of what ``target`` names is gone. Raises UserError."""
    reader = Reader(parameters)
    steps = _darkness(topology, target, reader)
    reader.finish()
    return Compiled.at_once("dark", steps, target_links(topology, target)[0])


def flap(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Dark for ``down``, lit for ``up``, and again; over when it was dark ``times`` times. Raises UserError."""
    reader = Reader(parameters)
    steps = _darkness(topology, target, reader)
    down_s, up_s = reader.read("down", _while, 0.2), reader.read("up", _while, 0.8)
    times = reader.read("times", _times, None)
    reader.finish()
    period_s = down_s + up_s
    return Compiled(
        (Phase(0.0, "dark", steps), Phase(down_s, "lit", ())),
        target_links(topology, target)[0],
        period_s,
        None if times is None else (times - 1) * period_s + down_s,
    )


def _darkness(topology: Topology, target: str, reader: Reader) -> tuple[Setting, ...]:
    directions = target_directions(topology, target)
    one_way = bool(target_links(topology, target)[1])
    carrier = reader.read("carrier", _carrier, "receiver" if one_way else "both")
    if carrier == "silent":
        return silenced(directions)
    ends = [
        end
        for link, direction in directions
        for end, site in zip(link.ends, link.between, strict=True)
        # The end that faces the site that the direction leads to takes the carrier from the port that receives it.
        if carrier == "both" or direction == f"{link.name}:{site}"
    ]
    return tuple(Carrier(PLANT, end, False) for end in dict.fromkeys(ends))


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


CUT = FaultKind("cut", "fiber cut: the light is gone", _TARGETS, cut, {"carrier": _CARRIER_WORDS})

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
    },
    frozenset({"times"}),
)
