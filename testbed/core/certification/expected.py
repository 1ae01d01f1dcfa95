"""The expected sample of packets behind an impairment: delays with jitter, and how many packets can be overtaken.

Jitter that keeps the order of packets (one that would overtake leaves with its predecessor) has no closed form for what
probes observe, nor has its correlation. So samples are drawn with a fixed seed, of the same number of packets at the
same spacing, and the measurement is compared with the mean and the spread of many of those.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from testbed.core.certification.spread import median_deviation
from testbed.core.physics.distribution import quantiles
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment

__all__ = ["MOST_PACKETS", "Expected", "expected", "overtakable"]

_SAMPLES: Final = 40
MOST_PACKETS: Final = 1000
"""Size of a drawn sample; a longer measurement has less spread, and the spread of this size is allowed to it."""


@dataclass(frozen=True)
class Expected:
    """Statistics of the drawn samples, in seconds around the impairment's own delay.

    Attributes:
        median_s, median_sigma_s: mean of the samples' medians, and their standard deviation.
        deviation_s, deviation_sigma_s: the same for their median absolute deviations.
        least_s: lower bound on every packet.
    """

    median_s: float = 0.0
    median_sigma_s: float = 0.0
    deviation_s: float = 0.0
    deviation_sigma_s: float = 0.0
    least_s: float = 0.0


@lru_cache(maxsize=1024)
def expected(impairments: tuple[Impairment, ...], interval_s: float, places: tuple[int, ...]) -> Expected:
    """Return the statistics of packets, sent one each ``interval_s`` seconds, through all ``impairments`` in turn.

    ``places`` are the positions of the packets that count among those sent, in ascending order. Pass one impairment for
    a direction, two for a round trip. If nothing varies the delay, nothing is drawn and all values are zero.
    """
    if not any(impairment.jitter_s or impairment.reorder for impairment in impairments) or not places:
        return Expected()
    chance = random.Random(1)
    counted = [place for place in places if place - places[0] < MOST_PACKETS]
    number = counted[-1] - places[0] + 1
    medians, deviations = [], []
    for _ in range(_SAMPLES):
        late = [0.0] * number
        for impairment in impairments:
            late = [a + b for a, b in zip(late, _drawn(impairment, interval_s, number, chance), strict=True)]
        late = [late[place - places[0]] for place in counted]
        medians.append(statistics.median(late))
        deviations.append(median_deviation(late))
    return Expected(
        statistics.fmean(medians),
        statistics.stdev(medians),
        statistics.fmean(deviations),
        statistics.stdev(deviations),
        -sum(
            DISTRIBUTIONS.get(impairment.jitter_distribution, 0.0) * impairment.jitter_s for impairment in impairments
        ),
    )


def _drawn(impairment: Impairment, interval_s: float, count: int, chance: random.Random) -> list[float]:
    """Return by how many seconds each of ``count`` packets exceeds the delay."""
    table = quantiles(impairment.jitter_distribution) if impairment.jitter_s else ()
    kept = impairment.jitter_correlation
    late: list[float] = []
    last_chance, last_out = chance.random(), float("-inf")
    for number in range(count):
        held = impairment.reorder_by_s if impairment.reorder and chance.random() < impairment.reorder else 0.0
        value = held
        if table:
            last_chance = kept * last_chance + (1.0 - kept) * chance.random()
            value += impairment.jitter_s * table[int(last_chance * len(table))]
        if impairment.keeps_order:
            last_out = max(last_out, number * interval_s + value)
            value = last_out - number * interval_s
        late.append(value)
    return late


def overtakable(sent_s: Sequence[float], frame_s: float, by_s: float) -> float:
    """Return the share (0..1) of packets that another one overtakes if they are delayed by ``by_s`` seconds.

    Args:
        sent_s: when each was sent, ascending, in seconds.
        frame_s: seconds that each takes at the rate; 0 for an unlimited rate.
    """
    if len(sent_s) < 2:
        return 0.0
    out, due = [], float("-inf")
    for sent in sent_s:
        due = max(sent, due) + frame_s
        out.append(due)
    return sum(after - before < by_s for before, after in pairwise(out)) / len(out)
