"""Tables of what is added to a delay: the quantiles of jitter's distributions, and packets held back among them.

An emulator that draws an entry of a table by chance, each equally likely, delays packets as the impairment says. The
distributions are those of :data:`~testbed.core.physics.impairment.DISTRIBUTIONS`.
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
"""Most entries of a table: as many as netem takes (NETEM_DIST_MAX of linux/pkt_sched.h)."""

CUT_OFF: Final = 4.0
SHARE_TOLERANCE: Final = 0.01
"""How far a share of the table may be from the one asked for, relative to the smaller of it and the rest."""


def quantiles(distribution: str, count: int = ENTRIES) -> tuple[float, ...]:
    """The values below which (i + 1/2) / ``count`` of the jitter lies, i = 0.. ``count`` - 1: ascending, in units of
    the jitter, at most :data:`ENTRIES` of them."""
    table = _table(distribution)
    return table if count == ENTRIES else tuple(table[(2 * i + 1) * ENTRIES // (2 * count)] for i in range(count))


def share_of_table(share: float) -> tuple[int, int] | None:
    """(entries, of how many), nearest to ``share`` (0..1) in a table of at most :data:`ENTRIES`, as large as can be;
    None where it is finer than that."""
    nearest = Fraction(share).limit_denominator(ENTRIES)
    if abs(float(nearest) - share) > SHARE_TOLERANCE * min(share, 1 - share) + 1e-15:
        return None
    times = ENTRIES // nearest.denominator
    return nearest.numerator * times, nearest.denominator * times


def offsets_s(impairment: Impairment) -> tuple[float, ...]:
    """Equally likely deviations from ``delay_s``, in seconds; none where there is neither jitter nor holding back.

    Those held back (``reorder``) have jitter too. Raises ValueError for a share that no table has; correlation is not
    in a table.
    """
    if not impairment.jitter_s and not impairment.reorder:
        return ()
    shares = share_of_table(impairment.reorder)
    if shares is None:
        raise ValueError(
            f"reorder: {impairment.reorder:g} is finer than a table of {ENTRIES} delays;"
            f" the least is {1 / ENTRIES:.3g}, and the most below 1 is {1 - 1 / ENTRIES:.7g}"
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
    # The sum of two independent ones: Hammersley's points have each rank of both once, and every pair of ranges of
    # them as often as independence asks (J. M. Hammersley, Ann. N.Y. Acad. Sci. 86 (1960)).
    return tuple(sorted(0.25 * _normal(rank) + 0.75 * _pareto(ranks[_mirrored(i)]) for i, rank in enumerate(ranks)))


def _normal(rank: float) -> float:
    return max(-CUT_OFF, min(CUT_OFF, NormalDist().inv_cdf(rank)))


def _pareto(rank: float) -> float:
    """Of shape 3 and least value 1: mean 3/2, variance 3/4."""
    return min(CUT_OFF, (1 / math.cbrt(1 - rank) - 1.5) / math.sqrt(0.75))


def _mirrored(number: int) -> int:
    """Its :data:`_BITS` bits in reverse."""
    return int(f"{number:0{_BITS}b}"[::-1], 2)
