"""Intervals of counts against an independent oracle: exact integers, without logarithms or floating point."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache

import pytest
from builders.inputs import by_input
from builders.tables import table

from testbed.core.certification import chance
from testbed.core.physics.impairment import Impairment

HALF = Fraction(chance.MISS).limit_denominator(10**9) / 2

COUNTS = (1, 2, 10, 100, 599, 745, 1024, 1074, 1075, 1100, 1200, 1500, 2100)
SHARES = tuple(
    Fraction(it) for it in ("1/100000", "1/2000", "1/100", "1/10", "3/10", "49/100", "1/2", "51/100", "9/10")
)


@lru_cache
def at_most(count: int, share: Fraction) -> tuple[int, ...]:
    """How many of the ``denominator ** count`` equally likely outcomes have at most 0, 1, 2, … hits."""
    hit, miss = share.numerator, share.denominator - share.numerator
    powers = [1]
    for _ in range(count):
        powers.append(powers[-1] * miss)
    total, so_far = 0, []
    ways = 1
    for hits in range(count + 1):
        total += ways * powers[count - hits]
        so_far.append(total)
        ways = ways * (count - hits) // (hits + 1) * hit if hit == 1 else math.comb(count, hits + 1) * hit ** (hits + 1)
    return tuple(so_far)


def exact(count: int, share: Fraction) -> tuple[int, int]:
    """The least count that is not below all but half of MISS, and the largest not above."""
    so_far = at_most(count, share)
    every = share.denominator**count
    assert so_far[-1] == every
    low = bisect_right(so_far, every * HALF)
    high = next(it for it in range(count + 1) if every - so_far[it] < every * HALF)
    return low, high


def binomial_mass(count: int, share: float, hits: int) -> float:
    ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return math.exp(ways + hits * math.log(share) + (count - hits) * math.log1p(-share))


@pytest.mark.parametrize(
    "count, share",
    [
        *itertools.product(COUNTS, SHARES),
        *((2000, Fraction(1, 1000)), (5000, Fraction(1, 100)), (3000, Fraction(9, 10))),
    ],
    ids=str,
)
def test_binomial_interval_is_that_of_exact_integers(count: int, share: Fraction) -> None:
    low, high = exact(count, share)
    interval = chance.binomial(count, float(share))
    if count * min(share, 1 - share) <= 600:
        assert (interval.low, interval.high) == (low, high)
    else:  # a normal interval, which is a little wider than it must be
        assert low - 4 <= interval.low <= low
        assert high <= interval.high <= high + 4


@pytest.mark.parametrize("count", [1_100, 10_000, 10_000_000])
@pytest.mark.parametrize("expected", [250, 450, 550, 599, 601])
def test_binomial_interval_of_rare_events_is_nearly_poissons(count: int, expected: int) -> None:
    """Where integers get too long: the interval holds all but MISS of the mass, by the logarithm of the gamma function,
    and one count less at either end does not."""
    share = expected / count
    interval = chance.binomial(count, share)
    far = range(max(0, expected - 300), min(count, expected + 400) + 1)
    below = math.fsum(binomial_mass(count, share, hits) for hits in far if hits < interval.low)
    above = math.fsum(binomial_mass(count, share, hits) for hits in far if hits > interval.high)
    assert max(below, above) <= 0.51e-6
    if expected < 600:
        assert below + binomial_mass(count, share, int(interval.low)) > 0.49e-6
        assert above + binomial_mass(count, share, int(interval.high)) > 0.49e-6


def test_losing_nothing_of_many_is_outside_a_loss_of_a_half() -> None:
    assert 0 not in chance.binomial(1100, 0.5)
    assert 0 not in chance.lost(1100, Impairment(loss=0.5))


@by_input("count, share", {1100: 0.5, 900: 0.6, 2000: 0.45, 5_000: 0.1})
def test_the_interval_of_the_misses_mirrors_that_of_the_hits(count: int, share: float) -> None:
    hits, misses = chance.binomial(count, share), chance.binomial(count, 1.0 - share)
    assert hits.low == pytest.approx(count - misses.high, abs=1.0)
    assert hits.high == pytest.approx(count - misses.low, abs=1.0)


@pytest.mark.parametrize("number", [1, 20, 400, 1500, 4000])
@pytest.mark.parametrize("goes_on", [0.01, 0.3, 0.5, 0.9])
def test_interval_of_runs_is_that_of_the_negative_binomial(number: int, goes_on: float) -> None:
    """``number`` runs go on ``extra`` times in all; the mass by the logarithm of the gamma function."""

    def mass(extra: int) -> float:
        ways = math.lgamma(number + extra) - math.lgamma(number) - math.lgamma(extra + 1)
        return math.exp(ways + number * math.log1p(-goes_on) + extra * math.log(goes_on))

    interval = chance.runs(number, goes_on)
    low, high = round((interval.low - 1) * number), math.floor((interval.high - 1) * number + 1e-6)
    assert math.fsum(map(mass, range(low))) <= 0.51e-6
    inside = math.fsum(map(mass, range(low, high + 1)))
    assert inside == pytest.approx(1.0, abs=1.1e-6)
    assert 1.0 - inside < 1.1e-6


def chain(count: int, loss: float, burst: float) -> list[float]:
    """Return the exact distribution of the chain's count of lost packets, packet by packet.

    The chain enters a burst so that its share of lost packets is ``loss``.
    """
    r = 1 / burst
    p = loss * r / (1 - loss)
    assert p <= 1
    good, hurt = [1 - loss] + [0.0] * count, [loss] + [0.0] * count
    for _ in range(count):
        # A packet in the bad state is lost, then the state may change.
        lost = [0.0, *hurt[:-1]]
        pairs = list(zip(good, lost, strict=True))
        good, hurt = [g * (1 - p) + b * r for g, b in pairs], [g * p + b * (1 - r) for g, b in pairs]
    return [g + b for g, b in zip(good, hurt, strict=True)]


SHORT_CHAINS = ((400, 0.02, 5.0), (400, 0.02, 20.0), (300, 0.1, 4.0))
LONG_CHAINS = (
    *((300, 0.5, 4.0), (600, 0.5, 2.0), (1400, 0.3, 2.0)),
    *((1400, 0.5, 2.0), (1100, 0.9, 20.0), (1400, 0.02, 8.0)),
)


@pytest.mark.parametrize("count, loss, burst", SHORT_CHAINS + LONG_CHAINS)
def test_interval_of_lost_packets_holds_the_chains_own_distribution(count: int, loss: float, burst: float) -> None:
    chances = chain(count, loss, burst)
    assert sum(chances) == pytest.approx(1.0)
    interval = chance.lost(count, Impairment(loss=loss, burst=burst))
    outside = math.fsum(chances[: math.ceil(interval.low)]) + math.fsum(chances[math.floor(interval.high) + 1 :])
    assert outside < 3e-6
    if chances[0] < 1e-9:
        assert 0 not in interval
    if (count, loss, burst) in SHORT_CHAINS:
        upper = next(lost for lost in itertools.count() if sum(chances[lost:]) < 1e-9)
        assert interval.high <= upper, "wider than a chance in a thousand millions"
        independent = chance.binomial(count, loss)
        assert interval.high - interval.low > 1.3 * (independent.high - independent.low)


def test_interval_of_many_bursts_has_the_variance_of_bursts() -> None:
    interval = chance.lost(1_000_000, Impairment(loss=0.02, burst=10.0))
    correlation = 1 - 0.1 - 0.02 * 0.1 / 0.98
    sigma = math.sqrt(1e6 * 0.02 * 0.98 * (1 + correlation) / (1 - correlation))
    for distance in (interval.high - 20_000, 20_000 - interval.low):
        assert distance == pytest.approx(4.9 * sigma, rel=0.1)


@table(
    "impairment, share",
    {
        # A packet in the bad state passes half of the time and ends the run.
        "a raw chain": (Impairment(p=0.01, r=0.25, h=0.5), 0.75 * 0.5),
        "losses in the good state": (Impairment(p=0.01, r=0.25, h=0.5, k=0.99), None),
        "independent losses": (Impairment(loss=0.1), 0.1),
    },
)
def test_share_of_continuing_runs(impairment: Impairment, share: float | None) -> None:
    continuing = chance.continuing(impairment)
    assert continuing == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize("loss", [0.5, 0.1, 0.01, 0.0005, 1e-6])
def test_packets_needed_to_tell_are_just_enough(loss: float) -> None:
    target = Impairment(loss=loss)
    count = chance.needed(target)
    assert chance.lost(count, target).low >= 1
    # All of them passing has then a probability of half of MISS, and with a hundredth fewer a larger one.
    assert math.exp(count * math.log1p(-loss)) <= 0.5e-6
    fewer = min(count - 1, round(0.98 * count))
    assert math.exp(fewer * math.log1p(-loss)) > 0.5e-6
    assert chance.lost(fewer, target).low == 0


@by_input("loss, burst", {0.02: 8.0, 0.001: 4.0, 0.004: 30.0})
def test_packets_needed_to_tell_bursts_tell(loss: float, burst: float) -> None:
    target = Impairment(loss=loss, burst=burst)
    count = chance.needed(target)
    assert chance.lost(count, target).low > 0
    assert chance.lost(round(0.9 * count), target).low == 0


def test_no_number_of_packets_is_needed_without_loss() -> None:
    assert chance.needed(Impairment()) is None
