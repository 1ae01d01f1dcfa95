"""Closed forms and events: laws that hold for every strategy, and agreement where both apply."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from testbed.core.prediction.inputs import Inputs, Tier, mistakes
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.strategies import STRATEGIES

SLACK = 1e-9


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    layers = draw(st.integers(1, 24))
    fragments = draw(st.integers(1, layers))
    every = fragments * draw(st.integers(1, 5))
    it = Inputs(
        step_s=draw(st.floats(0.01, 10)),
        parameters=draw(st.floats(1e6, 1e11)),
        layers=layers,
        rate_bps=draw(st.floats(1e8, 1e13)),
        delay_s=draw(st.floats(0, 0.05)),
        sites=draw(st.integers(2, 4)),
        ranks_per_site=draw(st.integers(1, 4)),
        bits=draw(st.sampled_from([32.0, 16.0, 8.0, 4.0])),
        operation_s=draw(st.sampled_from([0.0, 1e-4])),
        buckets=draw(st.none() | st.integers(1, layers)),
        in_flight=draw(st.none() | st.integers(1, 4)),
        every=every,
        fragments=fragments,
        overlap=draw(st.integers(0, every - 1)),
        accumulate=draw(st.integers(1, 4)),
        overlap_last_backward=draw(st.booleans()),
        staleness=draw(st.integers(0, 4)),
        micro_batches=draw(st.integers(1, 16)),
        stages=draw(st.integers(1, 4)),
        activation_bits=draw(st.floats(0, 1e9)),
        expert_layers=draw(st.integers(0, min(layers, 8))),
        token_bits=draw(st.floats(0, 1e9)),
        tiers=(Tier(1, 1e12, 1e-5), Tier(10, 1e10, 1e-3)),
    )
    assert mistakes(it) == ()
    return it


names = st.sampled_from(sorted(STRATEGIES))


def utilization(name: str, it: Inputs) -> float:
    return STRATEGIES[name].predict(it).utilization


@given(names, inputs(), st.floats(1, 100))
def test_more_rate_never_lowers_utilization(name: str, it: Inputs, factor: float) -> None:
    assert utilization(name, it.but(rate_bps=it.rate_bps * factor)) >= utilization(name, it) - SLACK


@given(names, inputs(), st.floats(0, 0.1))
def test_more_distance_never_raises_utilization(name: str, it: Inputs, more_s: float) -> None:
    assert utilization(name, it.but(delay_s=it.delay_s + more_s)) <= utilization(name, it) + SLACK


@given(names, inputs())
def test_more_overlap_never_lowers_utilization(name: str, it: Inputs) -> None:
    assume(it.overlap + 1 < it.every)
    assert utilization(name, it.but(overlap=it.overlap + 1)) >= utilization(name, it) - SLACK


@given(names, inputs(), st.integers(1, 5))
def test_rarer_exchanges_never_lower_utilization(name: str, it: Inputs, more: int) -> None:
    rarer = it.but(every=it.every + more * it.fragments)
    assert utilization(name, rarer) >= utilization(name, it) - SLACK


@given(names, inputs())
def test_the_parts_of_a_step_add_up(name: str, it: Inputs) -> None:
    outcome = STRATEGIES[name].predict(it)
    assert outcome.step_s == pytest.approx(outcome.compute_s + outcome.exposed.total_s, rel=1e-9)
    assert min(vars(outcome.exposed).values()) >= 0


@given(names, inputs())
def test_no_strategy_beats_the_information_bound(name: str, it: Inputs) -> None:
    outcome = STRATEGIES[name].predict(it)
    rate_bps = it.tiers[-1].rate_bps if name == "tiers" else it.rate_bps
    assert outcome.bits_per_step <= rate_bps * outcome.step_s * (1 + 1e-9)


@given(inputs())
def test_one_fragment_without_overlap_is_diloco(it: Inputs) -> None:
    one = it.but(fragments=1, overlap=0, buckets=None, in_flight=None)
    assert utilization("streaming-diloco", one) == pytest.approx(utilization("diloco", one), rel=1e-9)


@given(inputs())
def test_local_sgd_each_step_is_data_parallel_training_without_overlap(it: Inputs) -> None:
    one = it.but(every=1, fragments=1, overlap=0, accumulate=1, buckets=1, overlap_last_backward=False)
    assert utilization("local-sgd", one) == pytest.approx(utilization("hierarchical", one), rel=1e-9)


@given(inputs())
def test_data_parallel_step_without_limits_is_the_maximum_of_two_lines(it: Inputs) -> None:
    plain = it.but(in_flight=None, operation_s=0.0, accumulate=1)
    ranks, k, t = plain.ranks, plain.bucket_count, plain.step_s
    s = 2 * (ranks - 1) / ranks * plain.payload_bits / plain.rate_bps
    cd = 4 * (ranks - 1) * plain.delay_s
    expected = t / 3 + max(2 * t / 3 + s / k + cd, 2 * t / (3 * k) + s + cd)
    assert STRATEGIES["ddp"].predict(plain).step_s == pytest.approx(expected, rel=1e-9)


@settings(deadline=None)
@given(st.sampled_from(["ddp", "hierarchical", "local-sgd", "diloco", "sparse-loco"]), inputs())
def test_events_agree_with_the_closed_form(name: str, it: Inputs) -> None:
    closed, events = STRATEGIES[name].predict(it), predict_events(name, it)
    assert events.step_s == pytest.approx(closed.step_s, rel=1e-9)
    assert events.bits_per_step == pytest.approx(closed.bits_per_step, rel=1e-9)
    for part, seconds in vars(closed.exposed).items():
        assert getattr(events.exposed, part) == pytest.approx(seconds, rel=1e-6, abs=1e-9 * closed.step_s), part


@settings(deadline=None)
@given(inputs(), st.integers(3, 6), st.integers(0, 5), st.floats(0.01, 1), st.floats(0, 1))
def test_events_agree_with_the_closed_form_of_streaming_where_fragments_never_meet(
    it: Inputs, spacing: int, overlap: int, busy: float, distance: float
) -> None:
    """A fragment is sent within the steps until the next one begins, and is needed before that."""
    hops = 1 if it.sites == 2 else 2 * (it.sites - 1)
    budget_s = (spacing - 2) * it.step_s  # of software, serialization and propagation together
    it = it.but(
        every=it.fragments * spacing, overlap=min(overlap, spacing - 1), in_flight=None, operation_s=0.0,
        rate_bps=2 * (it.sites - 1) / it.sites * it.payload_bits / it.fragments / (budget_s * busy),
        delay_s=budget_s * (1 - busy) * distance / hops,
    )  # fmt: skip
    assert mistakes(it) == ()
    closed, events = STRATEGIES["streaming-diloco"].predict(it), predict_events("streaming-diloco", it)
    assert events.step_s == pytest.approx(closed.step_s, rel=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(STRATEGIES)), inputs())
def test_events_obey_the_laws(name: str, it: Inputs) -> None:
    outcome = predict_events(name, it)
    assert outcome.step_s == pytest.approx(outcome.compute_s + outcome.exposed.total_s, rel=1e-9)
    rate_bps = it.tiers[-1].rate_bps if name == "tiers" else it.rate_bps
    assert outcome.bits_per_step <= rate_bps * outcome.step_s * (1 + 1e-9)
    faster = predict_events(name, it.but(rate_bps=it.rate_bps * 2))
    assert faster.utilization >= outcome.utilization - SLACK
    nearer = predict_events(name, it.but(delay_s=it.delay_s / 2))
    assert nearer.utilization >= outcome.utilization - SLACK


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(["ddp", "hierarchical", "local-sgd", "diloco"]), inputs(), st.floats(1, 3))
def test_a_slow_site_makes_the_fast_one_wait(name: str, it: Inputs, slow: float) -> None:
    slowed = it.but(sites=2, slowdowns=(1.0, slow))
    closed, events = STRATEGIES[name].predict(slowed), predict_events(name, slowed)
    assert closed.step_s >= it.step_s * slow * (1 - 1e-9)
    assert events.step_s == pytest.approx(closed.step_s, rel=1e-9)


def test_without_a_fiber_nothing_is_exposed() -> None:
    alone = Inputs(1.0, 1e9, 24, math.inf, sites=1)
    for name in ("ddp", "hierarchical", "diloco", "streaming-diloco"):
        assert STRATEGIES[name].predict(alone).utilization == 1.0, name


def test_impossible_inputs_are_refused_by_name() -> None:
    bad = Inputs(0, 1e9, 0, 1e9, every=0, fragments=3, overlap=1, delay_s=-1)
    told = mistakes(bad)
    for option in ("--step-time", "--layers", "--every", "--delay"):
        assert any(line.startswith(option) for line in told), (option, told)
    assert mistakes(Inputs(1, 1e9, 4, 1e9, every=2, overlap=2)) == ("--overlap must be less than --every (2), got 2",)
    assert mistakes(Inputs(1, 1e9, 4, 1e9, every=10, fragments=5)) == (
        "--fragments must be at most the number of layers (4), got 5",
    )


@given(inputs())
def test_a_bounded_lag_is_that_of_rounds_in_flight(it: Inputs) -> None:
    """Against a plain simulation: round r begins when r - 1 is computed, and r - 1 - sigma has come back."""
    assume(it.payload_bits / it.rate_bps < it.every * it.step_s)  # else the lane sets the pace
    trip_s = 2 * (it.operation_s + it.delay_s + it.payload_bits / it.rate_bps)
    back: list[float] = []
    now_s = 0.0
    rounds = 400
    for number in range(rounds):
        if number > it.staleness:
            now_s = max(now_s, back[number - 1 - it.staleness])
        now_s += it.every * it.step_s
        back.append(now_s + trip_s)
    predicted = STRATEGIES["async-diloco"].predict(it).step_s * it.every
    assert predicted == pytest.approx(now_s / rounds, rel=0.02)
