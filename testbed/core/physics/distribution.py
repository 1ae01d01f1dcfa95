"""Delay tables: quantiles of the jitter distributions, combined with reordered packets.

An emulator that draws table entries uniformly delays packets according to the impairment. The distributions are those
of :data:`~testbed.core.physics.impairment.DISTRIBUTIONS`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from statistics import NormalDist
from typing import Final

from testbed.core.physics.impairment import Impairment

__all__ = ["ENTRIES", "offsets_s", "quantiles", "share_of_table"]

_BITS: Final = 14
ENTRIES: Final = 2**_BITS
"""Maximum number of table entries: netem's limit (NETEM_DIST_MAX of linux/pkt_sched.h)."""

CUT_OFF: Final = 4.0
SHARE_TOLERANCE: Final = 0.01
"""Tolerance of a share in the table, relative to the smaller of the requested share and its complement."""


def quantiles(distribution: str, count: int = ENTRIES) -> tuple[float, ...]:
    """Return the quantiles of ``distribution`` at (i + 1/2) / ``count``, i = 0.. ``count`` - 1, in units of the jitter.

    ``count`` is at most :data:`ENTRIES`; the values ascend.
    """
    table = _table(distribution)
    return table if count == ENTRIES else tuple(table[(2 * i + 1) * ENTRIES // (2 * count)] for i in range(count))


def share_of_table(share: float) -> tuple[int, int] | None:
    """Return (entries, table size) closest to ``share`` (0..1), in the largest table of at most :data:`ENTRIES`.

    None if the share is too fine for any table.
    """
    nearest = Fraction(share).limit_denominator(ENTRIES)
    if abs(float(nearest) - share) > SHARE_TOLERANCE * min(share, 1 - share) + 1e-15:
        return None
    times = ENTRIES // nearest.denominator
    return nearest.numerator * times, nearest.denominator * times


def offsets_s(impairment: Impairment) -> tuple[float, ...]:
    """Return equally likely deviations from ``delay_s``, in seconds; empty without jitter and reordering.

    Reordered packets have jitter, too. Raises ValueError if the share is too fine for a table. A table cannot express
    correlation.
    """
    if not impairment.jitter_s and not impairment.reorder:
        return ()
    shares = share_of_table(impairment.reorder)
    if shares is None:
        raise ValueError(
            f"reorder: {impairment.reorder:g} is too fine for a table of {ENTRIES} delays;"
            f" expected {1 / ENTRIES:.3g} to {1 - 1 / ENTRIES:.7g}, or 1"
        )
    held, total = shares
    return tuple(
        later + impairment.jitter_s * quantile
        for later, count in ((0.0, total - held), (impairment.reorder_by_s, held))
        if count
        for quantile in (quantiles(impairment.jitter_distribution, count) if impairment.jitter_s else (0.0,) * count)
    )


@cache
def _table(distribution: str) -> tuple[float, ...]:
    ranks = [(i + 0.5) / ENTRIES for i in range(ENTRIES)]
    if distribution == "uniform":
        return tuple(2 * rank - 1 for rank in ranks)
    if distribution == "normal":
        return tuple(_normal(rank) for rank in ranks)
    if distribution == "pareto":
        return tuple(_pareto(rank) for rank in ranks)
    # The sum of two independent variables: Hammersley's points use each rank of both once, and each pair of ranges as
    # often as independence requires (J. M. Hammersley, Ann. N.Y. Acad. Sci. 86 (1960)).
    return tuple(sorted(0.25 * _normal(rank) + 0.75 * _pareto(ranks[_mirrored(i)]) for i, rank in enumerate(ranks)))


def _normal(rank: float) -> float:
    return max(-CUT_OFF, min(CUT_OFF, NormalDist().inv_cdf(rank)))


def _pareto(rank: float) -> float:
    """Return the standardized Pareto quantile of shape 3 and minimum 1 (mean 3/2, variance 3/4), cut off."""
    return min(CUT_OFF, (1 / math.cbrt(1 - rank) - 1.5) / math.sqrt(0.75))


def _mirrored(number: int) -> int:
    """Reverse the :data:`_BITS` bits of ``number``."""
    return int(f"{number:0{_BITS}b}"[::-1], 2)
