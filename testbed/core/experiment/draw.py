"""Faults drawn from what is known of fibers: cuts by length and time, causes by their weights, repairs by their spread.

Cuts are a Poisson process: independent of each other, as many as a fiber is long. The kilometres are those of ducts,
so that what lies in one duct is cut at once, and a kilometre that two links share counts once. Repairs are
log-normal around the median of their cause. The same seed gives the same faults, on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.core.faults.carrier import LEAST_S
from testbed.core.faults.causes import CAUSES, COMPRESSION, CUTS_PER_1000_KM_YEAR, YEAR_S
from testbed.core.topology.model import Topology

__all__ = ["Compression", "Drawn", "Outages", "draw", "expected"]

_NINE_OF_TEN: Final = 2 * 1.6449
"""Standard deviations between the ends of the middle nine tenths of a normal distribution."""
_DIGITS: Final = 3
"""Times are whole milliseconds, so that a schedule that was written down is the one that was drawn."""


@dataclass(frozen=True)
class Compression:
    """Seconds of the world in one of the experiment: between faults, and while they are repaired."""

    time: float = YEAR_S / 60
    repair: float = COMPRESSION


@dataclass(frozen=True)
class Outages:
    """What to draw, ``from_s`` to ``to_s`` after the job began. ``causes`` are weights, of any sum; of the table where
    it is empty. ``seed`` None: the workload's."""

    to_s: float
    from_s: float = 0.0
    cuts_per_1000_km_year: float = CUTS_PER_1000_KM_YEAR
    causes: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True)
class Drawn:
    """One fault: ``target`` is a duct, or the link that has one of its own."""

    at_s: float
    target: str
    cause: str
    lasts_s: float


def expected(outages: Outages, topology: Topology, compression: Compression) -> float:
    """How many faults are drawn on average."""
    return _per_s(outages, topology, compression) * (outages.to_s - outages.from_s)


def draw(outages: Outages, topology: Topology, compression: Compression, seed: int) -> tuple[Drawn, ...]:
    """The faults, in the order of time. A duct that is cut already is not cut again before its repair."""
    per_s = _per_s(outages, topology, compression)
    if per_s == 0:
        return ()
    chance = random.Random(f"outages {seed if outages.seed is None else outages.seed}")
    ducts = [duct.name for duct in topology.ducts]
    lengths_m = [duct.length_m for duct in topology.ducts]
    weights = dict(outages.causes) or {cause.name: cause.weight for cause in CAUSES.values()}
    repaired_t = dict.fromkeys(ducts, 0.0)
    drawn: list[Drawn] = []
    t = outages.from_s
    while True:
        t += chance.expovariate(per_s)
        if t >= outages.to_s:
            return tuple(drawn)
        # All is drawn for each, taken or not: whether one is left out must not change those after it.
        (duct,) = chance.choices(ducts, lengths_m)
        (cause,) = chance.choices(list(weights), list(weights.values()))
        lasts_s = _repair_s(chance, cause) / compression.repair
        if t < repaired_t[duct]:
            continue
        at_s, lasts_s = round(t, _DIGITS), round(max(LEAST_S, lasts_s), _DIGITS)
        repaired_t[duct] = at_s + lasts_s
        drawn.append(Drawn(at_s, duct, cause, lasts_s))


def _per_s(outages: Outages, topology: Topology, compression: Compression) -> float:
    length_km = sum(duct.length_m for duct in topology.ducts) / 1e3
    return outages.cuts_per_1000_km_year / 1000 * length_km / YEAR_S * compression.time


def _repair_s(chance: random.Random, cause: str) -> float:
    low, median, high = CAUSES[cause].repair_s
    return chance.lognormvariate(math.log(median), math.log(high / low) / _NINE_OF_TEN)
