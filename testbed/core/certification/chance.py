"""Confidence intervals of counts: how many of n packets may be lost, and how long runs of losses may be.

Every interval fails once in a million: certificates have many of them, are made at each bring-up, and none may fail by
chance. The variance of losses in bursts is (1 + correlation) / (1 - correlation) times that of independent ones, and a
few long bursts vary more than any normal curve predicts: rare bursts are counted exactly, as a compound Poisson
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from testbed.core.physics.impairment import GilbertElliott, Impairment

__all__ = ["Interval", "binomial", "continuing", "lost", "needed", "needed_shares", "runs", "would_show"]

MISS: Final = 1e-6
"""Probability that an interval does not hold the true value, both sides together."""

_SIGMAS: Final = 4.9
"""Half width of a normal interval of that probability, in standard deviations."""

_EXACT: Final = 600.0
"""Expected events up to which counts are summed one by one; e^-600 is still a number, and 600 events are normal."""

_FAR: Final = 12.0
"""Standard deviations below the mean from which counts are summed: fewer have a probability below 1e-30. A sum from 0
would begin with a probability that underflows (0.5^1100)."""

_MOST: Final = 10**15
"""Packets beyond which none are said to be needed."""

_RARE: Final = 0.1
"""Share of lost packets up to which bursts begin independently."""


@dataclass(frozen=True)
class Interval:
    """A closed interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def binomial(count: int, share: float) -> Interval:
    """Return how many of ``count`` independent packets may be hit, each with the probability ``share`` (0..1)."""
    if count <= 0 or share <= 0:
        return Interval(0, 0)
    if share >= 1:
        return Interval(count, count)
    if share > 0.5:
        complement = binomial(count, 1.0 - share)
        return Interval(count - complement.high, count - complement.low)
    if count * share > _EXACT:
        deviation = math.sqrt(count * share * (1.0 - share))
        return _normal(count, count * share, deviation, (1.0 - 2.0 * share) / deviation)

    first = max(0, math.floor(count * share - _FAR * math.sqrt(count * share * (1.0 - share))))

    def chances() -> Iterator[float]:
        ways = math.fsum(math.log((count - index) / (index + 1)) for index in range(first))
        chance = math.exp(ways + first * math.log(share) + (count - first) * math.log1p(-share))
        for hit in range(first, count + 1):
            yield chance
            chance *= (count - hit) / (hit + 1) * share / (1.0 - share)

    return _summed(chances(), count, first)


def lost(count: int, impairment: Impairment) -> Interval:
    """Return how many of ``count`` consecutive packets may be lost."""
    chain = impairment.chain
    share = impairment.mean_loss
    if chain is None or share <= 0 or count <= 0:
        return binomial(count, share)
    corrupt = 0.0 if impairment.corrupt_survives else impairment.corrupt
    hit, correlation = (1.0 - chain.h) - (1.0 - chain.k), max(-0.999, chain.correlation)
    # Covariances of neighbours at every distance: bad (1 - bad) hit^2 correlation^distance, thinned by the corruption.
    together = chain.bad * (1.0 - chain.bad) * hit**2 * correlation / (1.0 - correlation) * (1.0 - corrupt) ** 2
    deviation = math.sqrt(max(0.0, count * (share * (1.0 - share) + 2.0 * together)))
    stays = count * chain.bad * chain.r
    # Geometric stays in the bad state, in numbers that vary like Poisson's, have a third moment of 6 m^3 against 2 m^2.
    wide = _normal(count, count * share, deviation, 2.12 / math.sqrt(stays))
    if stays > _EXACT:
        return wide
    bursts = _bursts(count, chain)
    if chain.k == 1.0 and not corrupt and share <= _RARE:
        return bursts
    return Interval(min(wide.low, bursts.low), max(wide.high, bursts.high))


def _bursts(count: int, chain: GilbertElliott) -> Interval:
    """Pólya and Aeppli's distribution: a Poisson number of bursts, each of a geometric length (Johnson, Kotz, Kemp,
    "Univariate Discrete Distributions", 9.7)."""
    hurts = (1.0 - chain.h) / (1.0 - chain.h * (1.0 - chain.r))  # probability that a stay loses anything at all
    if hurts <= 0:
        return Interval(0, 0)
    expected = count * chain.bad * chain.r * hurts
    goes_on = 1.0 - 1.0 / max(1.0, (1.0 - chain.h) / chain.r / hurts)

    def chances() -> Iterator[float]:
        before, chance = 0.0, math.exp(-expected)
        for hit in range(count + 1):
            yield chance
            following = (expected * (1.0 - goes_on) + 2.0 * goes_on * hit) * chance - goes_on**2 * (hit - 1) * before
            before, chance = chance, max(0.0, following / (hit + 1))

    return _summed(chances(), count)


def continuing(impairment: Impairment) -> float | None:
    """Return the probability that the packet after a lost one is lost too; None where runs are not geometric."""
    chain = impairment.chain
    if chain is None:
        return impairment.mean_loss
    if chain.k < 1.0 or (impairment.corrupt and not impairment.corrupt_survives):
        return None  # then a loss does not reveal the state, and how a run goes on depends on how it began
    return (1.0 - chain.r) * (1.0 - chain.h)


def runs(number: int, goes_on: float) -> Interval:
    """Return the mean length that ``number`` runs may have, each geometric with the probability ``goes_on``."""
    if number <= 0 or goes_on >= 1:
        return Interval(1, math.inf)
    if goes_on <= 0:
        return Interval(1, 1)
    extra = number * goes_on / (1.0 - goes_on)
    if number * -math.log1p(-goes_on) > _EXACT:
        deviation = math.sqrt(extra / (1.0 - goes_on))
        total = _normal(math.inf, extra, deviation, (1.0 + goes_on) / math.sqrt(number * goes_on))
    else:

        def chances() -> Iterator[float]:
            chance, index = math.exp(number * math.log1p(-goes_on)), 0
            while True:
                yield chance
                chance *= (number + index) / (index + 1) * goes_on
                index += 1

        total = _summed(chances(), math.inf)
    return Interval(1.0 + total.low / number, 1.0 + total.high / number)


def would_show(count: int, accepted: float = 0.0) -> float:
    """Return the least share (0..1) of independent packets of which ``count`` hold more than ``accepted``, except with
    a probability of half of :data:`MISS`; to three digits."""
    low, high = 0.0, 1.0
    while high - low > 1e-3 * high and high > 1e-12:
        middle = math.sqrt(max(low, 1e-12) * high)
        low, high = (low, middle) if binomial(count, middle).low > accepted else (middle, high)
    return high


def needed(impairment: Impairment) -> int | None:
    """Return the least number of consecutive packets of which some must be lost: as many distinguish the impairment's
    loss from none. None where it loses nothing, or no number of packets tells."""
    return None if impairment.mean_loss <= 0 else _least(lambda count: lost(count, impairment).low > 0)


def needed_shares(share: float) -> int | None:
    """Return the least number of packets of which some must be hit, each with the probability ``share`` (0..1)."""
    return None if share <= 0 else _least(lambda count: binomial(count, share).low > 0)


def _least(tells: Callable[[int], bool]) -> int | None:
    high = 1
    while not tells(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tells(middle) else (middle, high)
    return high


def _summed(chances: Iterator[float], most: float, first: int = 0) -> Interval:
    """Return the ends beyond each of which at most half of :data:`MISS` lies, from the probabilities of ``first`` and
    the counts that follow; those of smaller counts must be negligible."""
    below, low, value = 0.0, None, first
    for value, chance in enumerate(chances, first):
        below += chance
        if low is None and below > MISS / 2:
            low = value
        if 1.0 - below < MISS / 2 or value >= most:
            break
    return Interval(low or 0, value)


def _normal(most: float, mean: float, deviation: float, skew: float) -> Interval:
    """Return a normal interval, its ends moved by the skewness (Cornish and Fisher's first term), and a count wider."""
    moved = skew * (_SIGMAS**2 - 1.0) / 6.0
    low = mean - (_SIGMAS - min(moved, _SIGMAS)) * deviation - 1.0
    return Interval(max(0.0, low), min(most, mean + (_SIGMAS + moved) * deviation + 1.0))
