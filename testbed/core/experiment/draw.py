"""Draw random faults from fiber statistics: cuts by length and time, causes by weight, repair times by spread.

Cuts are a Poisson process with a rate proportional to length. The kilometres are those of ducts, so that all links in
a duct are cut at once, and a kilometre shared by two links counts once. Repair times are log-normal around the median
of their cause. The same seed gives the same faults on every machine.
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
"""Width of the central 90 % of a normal distribution, in standard deviations."""
_DIGITS: Final = 3
"""Times are rounded to milliseconds, so that a saved schedule equals the drawn one."""


@dataclass(frozen=True)
class Compression:
    """Real-world seconds per second of the experiment: ``time`` between faults, ``repair`` during repairs."""

    time: float = YEAR_S / 60
    repair: float = COMPRESSION


@dataclass(frozen=True)
class Outages:
    """What to draw, from ``from_s`` to ``to_s`` after the start of the job.

    ``causes`` are weights with any sum; if empty, those of the table. ``seed`` None: the workload's.
    """

    to_s: float
    from_s: float = 0.0
    cuts_per_1000_km_year: float = CUTS_PER_1000_KM_YEAR
    causes: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True)
class Drawn:
    """One drawn fault; ``target`` is a duct, or a link with a private duct."""

    at_s: float
    target: str
    cause: str
    lasts_s: float


def expected(outages: Outages, topology: Topology, compression: Compression) -> float:
    """Return the mean number of drawn faults."""
    return _per_s(outages, topology, compression) * (outages.to_s - outages.from_s)


def draw(outages: Outages, topology: Topology, compression: Compression, seed: int) -> tuple[Drawn, ...]:
    """Return the faults, ordered by time. A duct is not cut again before its repair."""
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
        # Draw everything even for a skipped fault, so that skipping it does not change the later ones.
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
