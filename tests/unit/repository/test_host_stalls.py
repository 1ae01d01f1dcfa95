"""Bounds of tests are extended by stalls of any core, each moment once, and not at all without a log."""

from __future__ import annotations

import time

import host_stalls
import pytest
from oracles import oracle


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stalls of two cores: from 10 to 10.030 and, overlapping, from 10.020 to 10.040; then from 20 to 20.010."""
    monkeypatch.setattr(host_stalls, "_watch", None)
    monkeypatch.setattr(host_stalls, "_stalls", [(10.0, 10.03), (10.02, 10.04), (20.0, 20.01)])


@pytest.mark.usefixtures("logged")
def test_each_stalled_moment_of_an_interval_counts_once() -> None:
    assert host_stalls.stalls(0.0, 30.0) == [(10.0, 10.04), (20.0, 20.01)]
    assert host_stalls.stalled_s(0.0, 30.0) == pytest.approx(0.05)
    assert host_stalls.stalled_s(10.01, 10.025) == pytest.approx(0.015)
    assert host_stalls.stalled_s(11.0, 19.0) == 0.0
    assert host_stalls.elapsed_s(9.0, 11.0) == pytest.approx(1.96)
    assert host_stalls.elapsed_s(11.0, 19.0) == 8.0


@pytest.mark.usefixtures("logged")
def test_the_longest_gap_is_less_the_stalls_in_it() -> None:
    assert host_stalls.longest_gap_s([9.99, 10.045, 10.06, 10.07]) == pytest.approx(0.015)
    assert host_stalls.longest_gap_s([9.9, 10.045, 10.06]) == pytest.approx(0.105)
    assert host_stalls.longest_gap_s([1.0, 2.0, 5.0]) == 3.0


@pytest.mark.usefixtures("logged")
def test_what_overlaps_a_stall_or_follows_at_once_is_delayed() -> None:
    after = 10.04 + host_stalls.AFTER_S
    intervals = [(9.9, 9.99), (9.99, 10.01), (10.041, 10.05), (after + 0.001, 10.06), (9.0, 11.0)]
    assert host_stalls.undelayed(intervals) == [True, False, False, True, False]


@pytest.mark.usefixtures("logged")
def test_a_wait_is_no_longer_than_its_bound_where_nothing_stalls() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: never"):
        oracle.until(lambda: False, 0.05, "never")
    assert time.monotonic() - began < 5.0


def test_a_wait_is_extended_by_the_stalls_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    monkeypatch.setattr(host_stalls, "_watch", None)
    monkeypatch.setattr(host_stalls, "_stalls", [(began, began + 0.3)])
    with pytest.raises(AssertionError, match="never"):
        oracle.until(lambda: False, 0.05, "never")
    assert time.monotonic() - began >= 0.3
