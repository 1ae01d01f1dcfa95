"""The event model against plain loops over steps, sites and layers, which share no code with it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from testbed.core.prediction.inputs import Inputs, mistakes
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.strategies import STRATEGIES

LAYERED = ["ddp", "diloco", "hierarchical", "hsdp", "local-sgd", "sparse-loco", "streaming-diloco"]


def hops(name: str, it: Inputs) -> tuple[float, float]:
    """Return c and w from the text of the algorithms."""
    if name == "ddp":
        ranks = it.sites * it.ranks_per_site
        return 4 * (ranks - 1), 2 * (ranks - 1) / ranks
    if name == "sparse-loco":
        return 1, it.sites - 1
    return (1 if it.sites == 2 else 2 * (it.sites - 1)), 2 * (it.sites - 1) / it.sites


def sends(name: str, it: Inputs, step: int) -> list[tuple[float, float, int]]:
    """Return what step ``step`` sends, in order: share of the payload, share of the backward pass done, gate layer."""
    layers, buckets = it.layers, it.buckets or it.layers
    by_bucket = [(1 / buckets, (k + 1) / buckets, buckets - 1 - k if buckets == layers else 0) for k in range(buckets)]
    if name in ("ddp", "hierarchical", "hsdp"):
        return by_bucket if step % it.accumulate == it.accumulate - 1 else []
    if name != "streaming-diloco":
        if step % it.every != it.every - 1:
            return []
        return by_bucket if it.overlap_last_backward else [(1 / (it.buckets or 1), 1.0, 0)] * (it.buckets or 1)
    found: list[tuple[float, float, int]] = []
    for fragment in range(it.fragments):
        if round(it.every * fragment / it.fragments) % it.every != step % it.every:
            continue
        mine = [layer for layer in range(layers) if layer % it.fragments == fragment]
        if it.overlap_last_backward:
            found += [(1 / layers, (layers - layer) / layers, layer) for layer in mine]
        else:
            found.append((len(mine) / layers, 1.0, 0))
    return sorted(found, key=lambda one: one[1])


def by_loops(name: str, it: Inputs) -> tuple[float, float]:
    """Return the mean time of a step, and bits per step."""
    c, w = hops(name, it)
    speeds = it.slowdowns or (1.0,)
    each_step = name in ("ddp", "hierarchical", "hsdp")
    steps = max(1, 20 // it.accumulate) * it.accumulate if each_step else 3 * it.every
    late = it.overlap if name == "streaming-diloco" else 0
    clock = [0.0] * len(speeds)
    lane = last = bits = 0.0
    arrived: list[float] = []  # of each operation, in the order of the lane
    wait: dict[tuple[int, int], float] = defaultdict(float)  # (step, layer): when its forward pass may begin
    for step in range(steps):
        backward = []  # per site: when its backward pass begins, and how long it takes
        for site, speed in enumerate(speeds):
            for layer in range(it.layers):
                clock[site] = max(clock[site], wait[step, layer]) + it.step_s * speed / it.layers / 3
            backward.append((clock[site], it.step_s * speed * 2 / 3))
            clock[site] += it.step_s * speed * 2 / 3
        for share, done, gate in sends(name, it, step):
            start = max(begin + done * takes for begin, takes in backward)
            if it.in_flight is not None and len(arrived) >= it.in_flight:
                start = max(start, arrived[-it.in_flight])
            sent = w * share * it.parameters * it.bits * it.payload_factor
            lane = max(lane, start + it.operation_s) + sent / it.rate_bps
            last = lane + c * it.delay_s
            arrived.append(last)
            bits += sent
            wait[step + 1 + late, gate] = max(wait[step + 1 + late, gate], last)
    return max(*clock, last) / steps, bits / steps


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    """Any shape: layers not divisible by fragments, steps not divisible by fragments, more fragments than steps."""
    layers = draw(st.integers(1, 20))
    every = draw(st.integers(1, 15))
    slow = draw(st.booleans())
    it = Inputs(
        step_s=draw(st.floats(0.01, 10)), parameters=draw(st.floats(1e6, 1e11)), layers=layers,
        rate_bps=draw(st.floats(1e8, 1e13)), delay_s=draw(st.floats(0, 0.5)),
        sites=2 if slow else draw(st.integers(2, 4)), ranks_per_site=draw(st.integers(1, 4)),
        bits=draw(st.sampled_from([32.0, 16.0, 4.0])), payload_factor=draw(st.sampled_from([1.0, 0.84])),
        operation_s=draw(st.sampled_from([0.0, 1e-3])), buckets=draw(st.none() | st.integers(1, layers)),
        in_flight=draw(st.none() | st.integers(1, 4)), every=every,
        fragments=draw(st.integers(1, layers)), overlap=draw(st.integers(0, every - 1)),
        accumulate=draw(st.integers(1, 4)), overlap_last_backward=draw(st.booleans()),
        slowdowns=(1.0, draw(st.floats(1, 3))) if slow else (),
    )  # fmt: skip
    assert mistakes(it) == ()
    return it


@settings(deadline=None)
@given(st.sampled_from(LAYERED), inputs())
@example("streaming-diloco", Inputs(0.8, 1e10, 7, 5e9, every=5, fragments=3, overlap=3, overlap_last_backward=True))
@example("streaming-diloco", Inputs(0.8, 1e10, 7, 5e9, every=5, fragments=3, overlap=3))
@example("streaming-diloco", Inputs(0.8, 1e10, 12, 5e9, every=10, fragments=12, overlap=2))
def test_events_are_what_plain_loops_say(name: str, it: Inputs) -> None:
    step_s, bits = by_loops(name, it)
    found = predict_events(name, it)
    assert found.step_s == pytest.approx(step_s, rel=1e-9)
    assert found.bits_per_step == pytest.approx(bits, rel=1e-9)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed.total_s, rel=1e-9)
    assert min(vars(found.exposed).values()) >= 0


@settings(deadline=None)
@given(st.sampled_from(["ddp", "hierarchical", "local-sgd", "diloco", "sparse-loco"]), inputs())
def test_closed_forms_without_gates_by_layer_are_what_plain_loops_say(name: str, it: Inputs) -> None:
    assert STRATEGIES[name].predict(it).step_s == pytest.approx(by_loops(name, it)[0], rel=1e-9)


@settings(deadline=None)
@given(st.sampled_from(LAYERED), inputs(), st.floats(0, 1), st.floats(1, 10))
def test_events_never_gain_from_distance_or_lose_by_rate_and_overlap(
    name: str, it: Inputs, more_s: float, faster: float
) -> None:
    before = predict_events(name, it).utilization
    assert predict_events(name, it.but(delay_s=it.delay_s + more_s)).utilization <= before + 1e-9
    assert predict_events(name, it.but(rate_bps=it.rate_bps * faster)).utilization >= before - 1e-9
    if it.overlap + 1 < it.every:
        assert predict_events(name, it.but(overlap=it.overlap + 1)).utilization >= before - 1e-9


@settings(deadline=None)
@given(st.sampled_from(LAYERED), inputs(), st.integers(1, 5), st.integers(1, 4))
def test_events_never_lose_by_rarer_exchanges(name: str, it: Inputs, spacing: int, more: int) -> None:
    it = it.but(every=it.fragments * spacing, overlap=min(it.overlap, it.fragments * spacing - 1))
    rarer = it.but(every=it.fragments * (spacing + more))
    assert predict_events(name, rarer).utilization >= predict_events(name, it).utilization - 1e-9


def pipeline_by_loops(it: Inputs) -> float:
    """Return the time of a step of GPipe: all micro-batches forward through all stages, then all backward."""
    message_s = it.activation_bits / it.rate_bps
    began = [0.0] * it.stages  # when each stage may begin the pass
    for share in (1 / 3, 2 / 3):
        before = [0.0] * it.micro_batches
        ends = []
        for stage in range(it.stages):
            now, lane = began[stage], 0.0
            for micro in range(it.micro_batches):
                if stage:
                    lane = max(lane, before[micro] + it.operation_s) + message_s
                    now = max(now, lane + it.delay_s)
                now += share * it.step_s / it.micro_batches
                before[micro] = now
            ends.append(now)
        began = ends[::-1]
    return max(began)


@given(
    st.integers(1, 12), st.integers(1, 5), st.floats(0, 1e10), st.floats(1e8, 1e12), st.floats(0, 0.1),
    st.sampled_from([0.0, 1e-3]),
)  # fmt: skip
def test_a_pipeline_is_what_plain_loops_say(
    micro_batches: int, stages: int, activation_bits: float, rate_bps: float, delay_s: float, operation_s: float
) -> None:
    it = Inputs(
        0.8, 1e10, 48, rate_bps, delay_s, micro_batches=micro_batches, stages=stages, activation_bits=activation_bits,
        operation_s=operation_s,
    )  # fmt: skip
    assert STRATEGIES["pipeline"].predict(it).step_s == pytest.approx(pipeline_by_loops(it), rel=1e-9)
