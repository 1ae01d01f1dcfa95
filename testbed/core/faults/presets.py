"""Presets of ``impair`` for common faults: jitter, a rate squeeze, corruption, an MTU black hole.

Each states a few values; the link's others, and those of other faults, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.overlap import judge_change
from testbed.core.physics.change import Change, stated
from testbed.core.physics.impairment import LEAST_LARGEST_BYTES, Impairment
from testbed.core.physics.parameters import PARAMETERS
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, parse_probability
from testbed.core.user_text import expected

__all__ = ["CORRUPTION", "JITTER", "MTU_BLACK_HOLE", "PRESETS", "RATE_SQUEEZE"]

_TARGETS: Final = "a link, one direction of it (north:west), or a duct"

Stated = Callable[[Impairment], Change]
"""What a fault states of a direction whose own impairment is this."""


def _preset(topology: Topology, target: str, name: str, of: Stated, reader: Reader, key: str) -> Compiled:
    """State ``of`` for each direction of ``target``; contradictions are reported for the parameter ``key``."""
    reader.finish()
    steps = []
    for link, direction in target_directions(topology, target):
        change = of(link.impairment(direction))
        steps.append(Changed(direction, change))
        for it in judge_change(link, direction, change):
            reader.note(key, f"{it.key}: {it.why}")
    reader.finish()
    return Compiled.at_once(name, tuple(steps), target_links(topology, target)[0])


def jitter(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Vary the delay around its mean, by a tenth of it by default. Raises UserError."""
    reader = Reader(parameters)
    amount_s = reader.read("amount", PARAMETERS["delay"].parse, None)
    distribution = reader.read("distribution", PARAMETERS["distribution"].parse, "normal")
    if amount_s == 0:
        reader.note("amount", "expected a time greater than 0; write a time such as 20us")

    def change(own: Impairment) -> Change:
        spread_s = own.delay_s / 10 if amount_s is None else amount_s
        return stated({"jitter_s": spread_s, "jitter_distribution": distribution}, own)

    return _preset(topology, target, "jitter", change, reader, "amount")


def rate_squeeze(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Reduce the rate to a share of the link's own, or to an absolute rate. The queue stays: it is the router's.

    Raises UserError.
    """
    reader = Reader(parameters)
    share, rate_bps = reader.read("to", _share_or_rate, (0.1, 0.0))

    def change(own: Impairment) -> Change:
        return Change(rate_bps=rate_bps or own.rate_bps * share)

    for link, direction in target_directions(topology, target):
        own = link.impairment(direction)
        if not rate_bps and not own.rate_bps:
            reader.note("to", f"the rate of {direction} is unlimited; write a rate such as 50M")
        if rate_bps and own.rate_bps and rate_bps >= own.rate_bps:
            reader.note("to", f"the rate of {direction} is {own.rate_bps / 1e6:g} Mb/s; write less than that")
    return _preset(topology, target, "squeezed", change, reader, "to")


def corruption(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Flip bits; Ethernet's frame check drops the frame unless ``survives`` is set. Raises UserError."""
    reader = Reader(parameters)
    share = reader.read("share", parse_probability, 1e-3)
    survives = reader.read("survives", PARAMETERS["corrupt_survives"].parse, False)
    if not share:
        reader.note("share", "expected a share greater than 0; write a share such as 0.1%")

    def change(own: Impairment) -> Change:
        return Change(corrupt_surviving=share) if survives else Change(corrupt=share)

    return _preset(topology, target, "corrupt", change, reader, "share")


def mtu_black_hole(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Drop packets above a size without an ICMP error: pings pass, transfers hang (RFC 2923). Raises UserError."""
    reader = Reader(parameters)
    largest = reader.read("largest", PARAMETERS["largest"].parse, 1400)
    if not largest:
        reader.note("largest", f"expected at least {LEAST_LARGEST_BYTES} B; write a size such as 1400B")
    for link, direction in target_directions(topology, target):
        if largest >= link.mtu:
            reader.note("largest", f"the MTU of {direction} is {link.mtu} B; write less than that")
    return _preset(topology, target, "black hole", lambda own: Change(largest_bytes=largest), reader, "largest")


def _share_or_rate(value: object) -> tuple[float, float]:
    """Parse a share or a rate to (share of the link's rate, 0) or (0, bits per second)."""
    text = str(value).strip()
    if text.endswith("%"):
        share = parse_probability(text)
        if not 0 < share < 1:
            raise Unreadable(*expected("a share above 0% and below 100%", value, "write 10%, or a rate such as 50M"))
        return share, 0.0
    rate_bps = PARAMETERS["rate"].parse(value)
    if not rate_bps:
        raise Unreadable(*expected("a rate greater than 0", value, "write a rate such as 50M, or a share such as 10%"))
    return 0.0, rate_bps


JITTER = FaultKind(
    "jitter",
    "the delay of packets varies",
    _TARGETS,
    jitter,
    {"amount": "its spread (a tenth of the delay)", "distribution": PARAMETERS["distribution"].words + " (normal)"},
)

RATE_SQUEEZE = FaultKind(
    "rate-squeeze",
    "reduced rate, as after the loss of some of a link's waves",
    _TARGETS,
    rate_squeeze,
    {"to": "remaining rate: a share of the link's own, or 50M (10%)"},
)

CORRUPTION = FaultKind(
    "corruption",
    "bits are flipped in transit",
    _TARGETS,
    corruption,
    {
        "share": "share of corrupted packets (0.1%)",
        "survives": "true: Ethernet's frame check misses the flipped bit, TCP and UDP see it (false)",
    },
)

MTU_BLACK_HOLE = FaultKind(
    "mtu-black-hole",
    "large packets are dropped without an ICMP error: pings pass, transfers hang",
    _TARGETS,
    mtu_black_hole,
    {"largest": "largest IP packet that passes (1400 B)"},
)

PRESETS: Final = (JITTER, RATE_SQUEEZE, CORRUPTION, MTU_BLACK_HOLE)
