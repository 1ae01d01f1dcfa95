"""``fabric:`` of a site: the rate of each node's access port, and how far the core between the nodes is oversubscribed.

``fabric: {rate: 400G, oversubscription: 2}``; without ``oversubscription`` the core carries all ports at once. Node,
core and fiber are three tiers with a rate each: a node sends and receives ``rate``; all nodes of a site together send
``nodes x rate / oversubscription`` through the core, to each other and to the gateway, and receive as much. Without the
key a fabric has no limit, as before.

Rates are divided by the topology's scale, as those of fibers are. They are those of full-sized frames on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.units import Unreadable, parse_number, parse_rate_bps
from testbed.core.user_text import expected, unknown

__all__ = ["KEYS", "MOST_OVERSUBSCRIPTION", "FabricText", "core_bps", "parse"]

KEYS: Final = ("rate", "oversubscription")
MOST_OVERSUBSCRIPTION: Final = 1000.0
_EXAMPLE: Final = "write fabric: {rate: 400G, oversubscription: 2}"


@dataclass(frozen=True)
class FabricText:
    """The parsed text: bit/s of an access port at full scale, and the ports' rates together over the core's."""

    rate: float
    oversubscription: float = 1.0


def parse(value: object) -> FabricText:
    """Parse ``fabric:``. Raises Unreadable for the first mistake."""
    if not isinstance(value, Mapping):
        raise Unreadable(*expected("a mapping", value, _EXAMPLE))
    for key in value:
        if key not in KEYS:
            message, fix = unknown("key", str(key), KEYS)
            raise Unreadable(message, fix)
    if "rate" not in value:
        raise Unreadable("missing rate", _EXAMPLE)
    return FabricText(_rate(value["rate"]), _oversubscription(value.get("oversubscription", 1)))


def core_bps(nodes: int, rate_bps: float, oversubscription: float) -> float:
    """Return the rate of a site's core, each way, from that of an access port, both in bit/s.

    >>> core_bps(4, 400e6, 2) / 1e6
    800.0
    """
    return nodes * rate_bps / oversubscription


def _rate(value: object) -> float:
    try:
        return parse_rate_bps(value)
    except Unreadable as error:
        raise Unreadable(f"rate: {error.message}", error.fix) from error


def _oversubscription(value: object) -> float:
    low, high = 1.0, MOST_OVERSUBSCRIPTION
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(*expected("an oversubscription of 1 or more", value, "write 2 for a core of half the ports"))
    try:
        return parse_number(value, low=low, high=high)
    except Unreadable as error:
        raise Unreadable(f"oversubscription: {error.message}", error.fix) from error
