"""Failures: formulas against events, availability against enumeration, TCP's limits against their definitions."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import pytest
from builders.predicted_jobs import job, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction import prediction
from testbed.core.prediction.energy import exchange_j, waiting_j
from testbed.core.prediction.failure_costs import (
    availability,
    daly_interval_s,
    goodput_elastic,
    goodput_synchronous,
    route_availability,
    time_per_work,
    waste,
    young_interval_s,
)
from testbed.core.prediction.failure_events import simulate_failures
from testbed.core.prediction.similarity import full_scale
from testbed.core.prediction.tcp_limits import cold_start_s, loss_limit_bps, usable_rate_bps, window_limit_bps


@pytest.mark.parametrize(
    ("checkpoint_s", "interval_s", "restart_s", "mtbf_s"),
    [(30, 800, 300, 11_000), (30, 3600, 300, 3_000), (0, 100, 0, 1000), (200, 500, 600, 1500)],
)
def test_events_agree_with_daly(checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float) -> None:
    found = simulate_failures(
        interval_s * 20_000,
        checkpoint_s=checkpoint_s,
        interval_s=interval_s,
        restart_s=restart_s,
        mtbf_s=mtbf_s,
        seed=1,
    )
    expected = 1 / time_per_work(checkpoint_s, interval_s, restart_s, mtbf_s)
    assert found.goodput == pytest.approx(expected, rel=0.03)  # about 4 standard errors of 20,000 intervals
    assert found.wall_s / found.failures == pytest.approx(mtbf_s, rel=0.05)


@given(st.floats(0, 100), st.floats(1, 1e4), st.floats(0, 1e3), st.floats(1e2, 1e6), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_the_parts_of_a_job_add_up(
    checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float, seed: int
) -> None:
    mtbf_s = max(mtbf_s, 2 * (interval_s + checkpoint_s))  # else the job may take forever
    found = simulate_failures(
        20 * interval_s, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s, mtbf_s=mtbf_s, seed=seed
    )
    assert found.work_s == pytest.approx(20 * interval_s)
    assert found.checkpoints_s == pytest.approx(20 * checkpoint_s)
    assert 0 < found.goodput <= 1
    assert found.wall_s >= found.work_s + found.checkpoints_s
    assert found.failures or found.wall_s == pytest.approx(found.work_s + found.checkpoints_s)


def test_without_failures_only_checkpoints_cost() -> None:
    found = simulate_failures(1000, checkpoint_s=10, interval_s=100, restart_s=50, mtbf_s=math.inf, seed=0)
    assert (found.wall_s, found.failures) == (1100, 0)
    assert time_per_work(10, 100, 50, math.inf) == pytest.approx(1.1)


@given(st.floats(0.1, 500), st.floats(1e3, 1e7), st.floats(0, 1000))
def test_dalys_interval_beats_its_neighbours(checkpoint_s: float, mtbf_s: float, restart_s: float) -> None:
    best = daly_interval_s(checkpoint_s, mtbf_s)
    at_best = time_per_work(checkpoint_s, best, restart_s, mtbf_s)
    for factor in (0.5, 2.0):
        assert at_best <= time_per_work(checkpoint_s, best * factor, restart_s, mtbf_s)
    if checkpoint_s < mtbf_s / 1000:
        assert best == pytest.approx(young_interval_s(checkpoint_s, mtbf_s), rel=0.05)
        first_order = waste(checkpoint_s, best, 0.0, mtbf_s)
        assert 1 - 1 / time_per_work(checkpoint_s, best, 0.0, mtbf_s) == pytest.approx(first_order, rel=0.1)


def test_goodput_of_synchronous_elastic_and_decoupled_jobs() -> None:
    synchronous = goodput_synchronous(0.9, 30, 800, 300, 11_000)
    elastic = goodput_elastic(0.9, 16, 16 * 11_000, 300, 5)
    assert synchronous < elastic < 0.9
    assert goodput_elastic(0.9, 16, math.inf, 300, 5) == 0.9
    assert time_per_work(30, 800, 1e9, 1) == math.inf  # a restart that never succeeds


@given(
    st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=5),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_availability_of_routes_that_share_ducts_is_that_of_all_states(routes: list[set[str]], up: list[float]) -> None:
    by_duct = dict(zip("abcdef", up, strict=True))
    expected = 0.0
    for state in itertools.product((True, False), repeat=6):
        lit = dict(zip("abcdef", state, strict=True))
        chance = math.prod(by_duct[it] if lit[it] else 1 - by_duct[it] for it in lit)
        expected += chance * any(all(lit[it] for it in route) for route in routes)
    assert route_availability(routes, by_duct) == pytest.approx(expected, abs=1e-9)


def test_availability_of_a_repaired_duct() -> None:
    cuts_hz = 40e3 / 1e6 * 2.13 / (365.25 * 86_400)  # 40 km of buried fiber
    assert 1 - availability(cuts_hz, 12 * 3600) == pytest.approx(1.166e-4, rel=1e-3)


def test_limits_of_tcp() -> None:
    assert window_limit_bps(6e6, 0.01) == pytest.approx(4.8e9)
    assert window_limit_bps(6e6, 0) == loss_limit_bps(0, 1.0) == math.inf
    assert loss_limit_bps(1e-4, 0.01) == pytest.approx(math.sqrt(1.5 / 1e-4) * 1448 * 8 / 0.01)
    assert usable_rate_bps(100e9, 0.01, connections=4, window_bytes=6e6) == pytest.approx(19.2e9)
    assert usable_rate_bps(1e9, 0.01, connections=4, window_bytes=6e6) == 1e9
    assert cold_start_s(1e9, 0.01, 8e9) == pytest.approx(0.01 * 7)  # 863 segments from 10: seven doublings
    assert cold_start_s(1e9, 0.01, 8e3) == 0  # it fits the first window


def test_energy_is_inputs_alone() -> None:
    assert exchange_j({"fabric": 1e12, "metro": 2e12}, {"fabric": 5e-12, "metro": 50e-12}) == pytest.approx(105)
    assert waiting_j(2.0, 8, 100.0) == 1600


@settings(max_examples=25)
@given(st.floats(0.01, 1), st.floats(1, 100), st.floats(1e8, 1e12), st.floats(1e-5, 0.05), st.floats(1, 5000))
def test_a_similar_lab_has_the_utilization_of_full_scale(
    step_s: float, phi: float, rate_bps: float, delay_s: float, scale: float
) -> None:
    """phi times the step, the distance, and rate x scale / phi for the declared model: the same utilization."""
    stands_for = full_scale(delay_s, rate_bps / scale, step_s, step_s * phi, scale)
    assert stands_for.length_m == pytest.approx(stands_for.delay_s / 5e-9)
    for words in ("ddp", "diloco:every=7", "streaming-diloco:every=8", "async-diloco:every=3"):
        lab, full = (
            prediction.predict(job(words, ranks=2, step_s=t, rate_bps=rate, delay_s=delay, library=plain(3)))
            for t, rate, delay in (
                (step_s, rate_bps / scale, delay_s),
                (step_s * phi, stands_for.rate_bps / scale, stands_for.delay_s),
            )
        )
        assert lab.groups.wire_kappa == pytest.approx(full.groups.wire_kappa)
        assert lab.groups.propagation == pytest.approx(full.groups.propagation)
        assert lab.utilization == pytest.approx(full.utilization, rel=1e-6)


def test_groups_of_a_workload_by_hand() -> None:
    """Two sites, 2^20 values of 32 bits every 4 steps: 1/8 s of the lane, three delays, and software, of 2 s a step."""
    of = job("diloco:every=4", step_s=2.0, rate_bps=2**28, delay_s=0.02, library=plain(3, 0.04))
    groups = prediction.predict(of).groups
    assert asdict(groups) == pytest.approx({"wire_kappa": 1 / 16, "propagation": 0.03, "software": 0.02})
