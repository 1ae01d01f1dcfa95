"""Calibration: two nodes see the fiber's delay and no more, though veths, bridges and routers take time as well.

What is *taken off* every delay of a direction is the least time from node to node over a zero-delay fiber, less half
the least RTT inside a site: two nodes of different sites are then as far apart as two of one site, plus the fiber. This
must make no packet early: where one crosses the shortened fiber sooner than the fiber's delay, less is taken off. And
where traffic may cross several links, each transit gateway is in two of their measurements: half comes off each link.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment

__all__ = ["ALIKE_S", "GUARD_S", "alike", "applied", "early_s", "share", "taken_off_s"]

GUARD_S = 3e-6
"""How far above the fiber's delay the earliest packet of a calibration stays: the minimum of thousands of packets is
about 1 us below that of a hundred."""

ALIKE_S = 3e-6
"""How far the minima of two directions of a lab differ, with enough packets."""


def taken_off_s(delay_s: float, across_s: float, inside_rtt_s: float) -> float:
    """Return what comes off a direction of ``delay_s`` seconds; 0 where the delay does not exceed it.

    Args:
        delay_s: the delay of the healthy direction.
        across_s: least time from node to node over a zero-delay fiber.
        inside_rtt_s: least RTT inside a site.
    """
    off = max(0.0, across_s - inside_rtt_s / 2)
    return off if delay_s > off else 0.0


def share(links: Iterable[tuple[str, str]]) -> float:
    """Return the share of :func:`taken_off_s` that comes off each link, given the two sites of each.

    A link's measurement is of two gateways and the plant, v = 2 g + p; a path over n links has n + 1 gateways and n
    times the plant. n v would be n - 1 gateways too much, n v / 2 never is.
    """
    neighbours: dict[str, set[str]] = {}
    for one, other in links:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    return 0.5 if any(len(sites) > 1 for sites in neighbours.values()) else 1.0


def early_s(off_s: float, beyond_s: float) -> float:
    """Return by how many seconds too much is taken off, where the earliest packet took ``beyond_s`` seconds more from
    node to node than the shortened fiber's delay."""
    return max(0.0, off_s + GUARD_S - beyond_s)


def alike(least_s: Mapping[str, float]) -> dict[str, float]:
    """Return the minima of paths that are built alike, none above the least of all by more than :data:`ALIKE_S`.

    The minimum of a few packets on a busy machine is above that of many, and what it exceeds must not be taken off.
    """
    bound = min(least_s.values(), default=0.0) + ALIKE_S
    return {name: min(value, bound) for name, value in least_s.items()}


def applied(impairment: Impairment, off_s: float) -> Impairment:
    """Return ``impairment`` with ``off_s`` seconds off its delay: at least 0, and as much as its jitter needs."""
    if not off_s:
        return impairment
    least = DISTRIBUTIONS.get(impairment.jitter_distribution, 0.0) * impairment.jitter_s
    return dataclasses.replace(impairment, delay_s=max(min(least, impairment.delay_s), impairment.delay_s - off_s))
