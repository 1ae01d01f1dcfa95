"""Impairments by the name of what happened: jitter, a rate squeeze, corruption, an MTU black hole.

Each is ``impair`` with values of its own, in place of the link's; what is not named stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.physics.impairment import LEAST_LARGEST_BYTES, Impairment
from testbed.core.physics.parameters import PARAMETERS, judge, lay
from testbed.core.plan.properties import Shape
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, parse_probability
from testbed.core.user_text import shown

__all__ = ["CORRUPTION", "JITTER", "MTU_BLACK_HOLE", "PRESETS", "RATE_SQUEEZE"]

_TARGETS: Final = "a link, one direction of it (north:west), or a duct"

Change = Callable[[Impairment], Impairment]


def _preset(topology: Topology, target: str, name: str, change: Change, reader: Reader, key: str) -> Compiled:
    """Each direction that ``target`` names as ``change`` makes it; what cannot be is said of ``key``."""
    reader.finish()
    steps = []
    for link, direction in target_directions(topology, target):
        impairment = change(link.impairment(direction))
        steps.append(Shape(direction, impairment))
        for it in judge(impairment, link.mtu):
            reader.note(key, f"{it.key}: {it.why}")
    reader.finish()
    return Compiled.at_once(name, tuple(steps), target_links(topology, target)[0])


def jitter(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Packets take longer or shorter around the delay, a tenth of it by default. Raises UserError."""
    reader = Reader(parameters)
    amount_s = reader.read("amount", PARAMETERS["delay"].parse, None)
    distribution = reader.read("distribution", PARAMETERS["distribution"].parse, "normal")
    if amount_s == 0:
        reader.note("amount", "that is no jitter; write a time such as 20us")

    def change(own: Impairment) -> Impairment:
        spread_s = own.delay_s / 10 if amount_s is None else amount_s
        return lay({"jitter": spread_s, "distribution": distribution}, own)

    return _preset(topology, target, "jitter", change, reader, "amount")


def rate_squeeze(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Less rate than the link's own: a share of it, or so much. The queue stays: it is the router's.

    Raises UserError.
    """
    reader = Reader(parameters)
    share, rate_bps = reader.read("to", _share_or_rate, (0.1, 0.0))

    def change(own: Impairment) -> Impairment:
        return dataclasses.replace(own, rate_bps=rate_bps or own.rate_bps * share)

    for link, direction in target_directions(topology, target):
        own = link.impairment(direction)
        if rate_bps and own.rate_bps and rate_bps >= own.rate_bps:
            reader.note("to", f"{direction} has {own.rate_bps / 1e6:g} Mb/s; write less than that")
    return _preset(topology, target, "squeezed", change, reader, "to")


def corruption(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Bits are flipped on the way; Ethernet's check drops the frame unless told that it misses it. Raises UserError."""
    reader = Reader(parameters)
    share = reader.read("share", parse_probability, 1e-3)
    survives = reader.read("survives", PARAMETERS["corrupt_survives"].parse, False)
    if not share:
        reader.note("share", "that hits no packet; write a share such as 0.1%")

    def change(own: Impairment) -> Impairment:
        return lay({"corrupt": share, "corrupt_survives": survives}, own)

    return _preset(topology, target, "corrupt", change, reader, "share")


def mtu_black_hole(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Packets above a size vanish and nobody is told: pings pass, transfers hang (RFC 2923). Raises UserError."""
    reader = Reader(parameters)
    largest = reader.read("largest", PARAMETERS["largest"].parse, 1400)
    if not largest:
        reader.note("largest", f"that is no black hole; write a size from {LEAST_LARGEST_BYTES} B, such as 1400B")
    for link, direction in target_directions(topology, target):
        if largest >= link.mtu:
            reader.note("largest", f"{direction} has an MTU of {link.mtu} B: nothing is larger; write less than that")
    return _preset(topology, target, "black hole", lambda own: lay({"largest": largest}, own), reader, "largest")


def _share_or_rate(value: object) -> tuple[float, float]:
    """(share of the own rate, 0) or (0, bits per second)."""
    text = str(value).strip()
    if text.endswith("%"):
        share = parse_probability(text)
        if not 0 < share < 1:
            raise Unreadable(f"{shown(value)} is no squeeze", "write a share above 0% and below 100%, or a rate")
        return share, 0.0
    rate_bps = PARAMETERS["rate"].parse(value)
    if not rate_bps:
        raise Unreadable(f"{shown(value)} is no limit", "write a rate such as 50M, or a share such as 10%")
    return 0.0, rate_bps


JITTER = FaultKind(
    "jitter",
    "packets take longer and shorter by turns",
    _TARGETS,
    jitter,
    {"amount": "its spread (a tenth of the delay)", "distribution": PARAMETERS["distribution"].words + " (normal)"},
)

RATE_SQUEEZE = FaultKind(
    "rate-squeeze",
    "less rate than usual, as when waves of a link are lost",
    _TARGETS,
    rate_squeeze,
    {"to": "what is left: 10% of the link's own, or 50M (10%)"},
)

CORRUPTION = FaultKind(
    "corruption",
    "bits are flipped on the way",
    _TARGETS,
    corruption,
    {
        "share": "of packets that are hit (0.1%)",
        "survives": "true: Ethernet's check misses it, and TCP's and UDP's see the wrong bit (false)",
    },
)

MTU_BLACK_HOLE = FaultKind(
    "mtu-black-hole",
    "large packets vanish and nobody is told: pings pass, transfers hang",
    _TARGETS,
    mtu_black_hole,
    {"largest": "IP packet that still passes (1400 B)"},
)

PRESETS: Final = (JITTER, RATE_SQUEEZE, CORRUPTION, MTU_BLACK_HOLE)
