"""Intervals of counts against an independent oracle: exact integers, without logarithms or floating point."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache

import pytest

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


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("count", COUNTS)
def test_binomial_interval_is_that_of_exact_integers(count: int, share: Fraction) -> None:
    low, high = exact(count, share)
    found = chance.binomial(count, float(share))
    if count * min(share, 1 - share) <= 600:
        assert (found.low, found.high) == (low, high)
    else:  # a normal interval, which is a little wider than it must be
        assert low - 4 <= found.low <= low
        assert high <= found.high <= high + 4


@pytest.mark.parametrize("count", [1_100, 10_000, 10_000_000])
@pytest.mark.parametrize("expected", [250, 450, 550, 599, 601])
def test_binomial_interval_of_rare_events_is_nearly_poissons(count: int, expected: int) -> None:
    """Where integers get too long: the interval holds all but MISS of the mass, by the logarithm of the gamma function,
    and one count less at either end does not."""
    share = expected / count

    def mass(hits: int) -> float:
        ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
        return math.exp(ways + hits * math.log(share) + (count - hits) * math.log1p(-share))

    found = chance.binomial(count, share)
    far = range(max(0, expected - 300), min(count, expected + 400) + 1)
    below = math.fsum(mass(it) for it in far if it < found.low)
    above = math.fsum(mass(it) for it in far if it > found.high)
    assert max(below, above) <= 0.51e-6
    if expected < 600:
        assert below + mass(int(found.low)) > 0.49e-6
        assert above + mass(int(found.high)) > 0.49e-6


def test_losing_nothing_of_many_is_outside_a_loss_of_a_half() -> None:
    assert 0 not in chance.binomial(1100, 0.5)
    assert 0 not in chance.lost(1100, Impairment(loss=0.5))


@pytest.mark.parametrize(("count", "share"), [(1100, 0.5), (900, 0.6), (2000, 0.45), (5_000, 0.1)])
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

    found = chance.runs(number, goes_on)
    low, high = round((found.low - 1) * number), math.floor((found.high - 1) * number + 1e-6)
    assert math.fsum(mass(it) for it in range(low)) <= 0.51e-6
    inside = math.fsum(mass(it) for it in range(low, high + 1))
    assert inside == pytest.approx(1.0, abs=1.1e-6)
    assert 1.0 - inside < 1.1e-6


@pytest.mark.parametrize(
    ("count", "loss", "burst"),
    [(300, 0.5, 4.0), (600, 0.5, 2.0), (1400, 0.3, 2.0), (1400, 0.5, 2.0), (1100, 0.9, 20.0), (1400, 0.02, 8.0)],
)
def test_interval_of_lost_packets_holds_the_chains_own_distribution(count: int, loss: float, burst: float) -> None:
    """Packet by packet; the chain enters a burst so that its share of lost packets is ``loss``."""
    r = 1 / burst
    p = loss * r / (1 - loss)
    if p > 1:
        pytest.skip("no chain has so many losses in so short bursts")
    good, hurt = [1 - loss] + [0.0] * count, [loss] + [0.0] * count
    for _ in range(count):
        lost = [0.0, *hurt[:-1]]
        good, hurt = (
            [g * (1 - p) + b * r for g, b in zip(good, lost, strict=True)],
            [g * p + b * (1 - r) for g, b in zip(good, lost, strict=True)],
        )
    chances = [g + b for g, b in zip(good, hurt, strict=True)]
    found = chance.lost(count, Impairment(loss=loss, burst=burst))
    outside = math.fsum(chances[: math.ceil(found.low)]) + math.fsum(chances[math.floor(found.high) + 1 :])
    assert outside < 3e-6
    if chances[0] < 1e-9:
        assert 0 not in found


@pytest.mark.parametrize("loss", [0.5, 0.1, 0.01, 0.0005, 1e-6])
def test_packets_that_would_tell_are_just_enough(loss: float) -> None:
    target = Impairment(loss=loss)
    count = chance.needed(target)
    assert chance.lost(count, target).low >= 1
    # All of them passing has then a probability of half of MISS, and with a hundredth fewer a larger one.
    assert math.exp(count * math.log1p(-loss)) <= 0.5e-6
    fewer = min(count - 1, round(0.98 * count))
    assert math.exp(fewer * math.log1p(-loss)) > 0.5e-6
    assert chance.lost(fewer, target).low == 0


def test_packets_that_would_tell_of_bursts_tell() -> None:
    for loss, burst in ((0.02, 8.0), (0.001, 4.0), (0.004, 30.0)):
        target = Impairment(loss=loss, burst=burst)
        count = chance.needed(target)
        assert chance.lost(count, target).low > 0
        assert chance.lost(round(0.9 * count), target).low == 0
    assert chance.needed(Impairment()) is None
