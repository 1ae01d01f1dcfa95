"""The stall log: its lines, and the union of stalls over cores."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.intervals import Intervals
from testbed.core.records.stalls import Stall, read_stalls, stalled_s

TICKS = st.integers(0, 60)
STALLS = st.lists(st.builds(Stall, st.integers(0, 3), TICKS.map(float), st.integers(0, 12).map(float)), max_size=12)


@given(STALLS, TICKS, TICKS)
def test_the_union_is_that_of_every_tick(stalls, one, other):
    """Against the definition: a tick counts if any core was stalled in it."""
    began, ended = min(one, other), max(one, other)
    expected = sum(any(stall.began_t <= tick < stall.ended_t for stall in stalls) for tick in range(began, ended))
    assert stalled_s(stalls, began, ended) == pytest.approx(expected)
    union = Intervals.union((stall.began_t, stall.ended_t) for stall in stalls)
    assert sum(end - begin for begin, end in union.within(began, ended)) == pytest.approx(expected)


@pytest.mark.parametrize("stall", [Stall(0, 5.0, 1e17), Stall(0, 0.0, 1e17), Stall(0, 0.0, 1e9)])
def test_a_stall_longer_than_a_job_is_at_most_the_job(stall):
    summary = StallLog((stall,), (), True).summary(2.0, 6.3)
    assert summary.longest_s == summary.stalled_s == 6.3 - max(2.0, stall.began_t)
    assert summary.stalled_share <= 1


def test_a_hundred_thousand_stalls_answer_many_queries():
    random.seed(1)
    union = Intervals.union((t := random.uniform(0, 3600), t + random.expovariate(200)) for _ in range(100_000))
    parts = sum(union.length_s(second, second + 1) for second in range(3600))
    assert parts == pytest.approx(union.length_s(0, 3600))


def test_lines_are_read_in_the_order_of_time_and_damage_is_counted():
    lines = [
        {"core": 1, "t": 7.5, "s": 0.0123},
        {"core": 0, "t": 7.25, "s": 0.0004},
        {"core": 0, "t": 8.0},
        {"core": 0, "t": 8.0, "s": -1.0},
        {"core": 0, "t": -8.0, "s": 1.0},
        {"core": -1, "t": 8.0, "s": 1.0},
        "torn",
    ]
    stalls, malformed = read_stalls(lines)
    assert stalls == (Stall(0, 7.25, 0.0004), Stall(1, 7.5, 0.0123))
    assert malformed == 5
    assert [Stall.from_dict(json.loads(json.dumps(stall.to_dict()))) for stall in stalls] == list(stalls)
