"""The noise inside a run. The oracle of its meaning is a count over all ways to deal ranks to two runs."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from testbed.core.analysis.noise.inside_noise import LEAST_IN_A_PART, PARTS, Range, apart, range_of_parts


def test_range_of_parts_is_that_of_eight_contiguous_parts() -> None:
    values = [random.Random(3).gauss(100, 5) + (50 if 40 <= index < 60 else 0) for index in range(163)]
    found = range_of_parts(values)
    # Contiguous: cut by hand at the same places, 163 = 3 x 21 + 5 x 20 in the order that rounding down gives.
    sizes = [20, 20, 21, 20, 20, 21, 20, 21]
    ends = list(itertools.accumulate(sizes))
    medians = [statistics.median(values[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    assert found == (min(medians), max(medians))
    assert found.high > 140 > 105 > found.low, "a slow stretch shows, as it would not in a standard error"


@pytest.mark.parametrize("count", [0, 1, PARTS * LEAST_IN_A_PART - 1])
def test_range_of_parts_of_too_few_values_is_none(count: int) -> None:
    assert range_of_parts([1.0] * count) is None
    assert range_of_parts([1.0] * PARTS * LEAST_IN_A_PART) == (1.0, 1.0)


def test_apart_only_if_no_part_of_one_reaches_into_the_other() -> None:
    assert apart(Range(1, 2), Range(2.1, 3)) and apart(Range(2.1, 3), Range(1, 2))
    assert not apart(Range(1, 2), Range(2, 3)) and not apart(Range(1, 9), Range(2, 3))


def test_apart_is_as_seldom_for_two_alike_runs_as_documented() -> None:
    dealt = list(itertools.combinations(range(2 * PARTS), PARTS))
    far = 0
    for ranks in dealt:
        rest = sorted(set(range(2 * PARTS)) - set(ranks))
        far += apart(Range(ranks[0], ranks[-1]), Range(rest[0], rest[-1]))
    assert (len(dealt), far) == (12_870, 2)
