"""Events of sharded, asynchronous, decoupled, tiered, pipelined and expert training against plain loops.

The loops share no code with the event model; and both agree with the closed forms where those leave nothing out.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed.core.prediction.event_heap import BACK, OUT, Fiber, Process, Simulation, Slots, TooMany, Transfer
from testbed.core.prediction.inputs import Inputs, Tier, mistakes
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.prediction.training_events import Checkpoints


class Lane:
    """One direction of a fiber, and a library with any number of slots."""

    def __init__(self, rate_bps: float, flight_s: float, software_s: float) -> None:
        self.rate_bps, self.flight_s, self.software_s, self.free_s = rate_bps, flight_s, software_s, 0.0

    def arrival(self, ready_s: float, bits: float) -> float:
        self.free_s = max(self.free_s, ready_s + self.software_s) + bits / self.rate_bps
        return self.free_s + self.flight_s


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    layers = draw(st.integers(1, 12))
    sites = draw(st.integers(2, 4))
    it = Inputs(
        step_s=draw(st.floats(0.01, 10)), parameters=draw(st.floats(1e6, 1e11)), layers=layers,
        rate_bps=draw(st.floats(1e8, 1e13)), delay_s=draw(st.floats(0, 0.5)), sites=sites,
        ranks_per_site=draw(st.integers(1, 4)), operation_s=draw(st.sampled_from([0.0, 1e-3])),
        buckets=draw(st.none() | st.integers(1, layers)), every=draw(st.integers(1, 15)),
        staleness=draw(st.integers(0, 4)), outer_step_s=draw(st.sampled_from([0.0, 0.05])),
        quorum=draw(st.none() | st.integers(1, sites)), grace_s=draw(st.sampled_from([0.0, 0.1, 10.0])),
        micro_batches=draw(st.integers(1, 12)), stages=draw(st.integers(1, 5)),
        activation_bits=draw(st.floats(0, 1e10)), expert_layers=draw(st.integers(1, layers)),
        token_bits=draw(st.floats(1, 1e10)),
        tiers=tuple(
            Tier(every, draw(st.floats(1e8, 1e13)), draw(st.floats(0, 0.1)))
            for every in draw(st.sampled_from([(1,), (1, 3), (2, 4, 12), (1, 16, 64), (2, 3, 5)]))
        ),
        slowdowns=draw(st.just(()) | st.tuples(*[st.sampled_from([1.0, 1.2, 2.0])] * sites)),
    )  # fmt: skip
    assert mistakes(it) == ()
    return it


def ring(it: Inputs) -> tuple[float, float]:
    ranks = it.sites * it.ranks_per_site
    return 4 * (ranks - 1), 2 * (ranks - 1) / ranks


def between(it: Inputs) -> tuple[float, float]:
    return (1 if it.sites == 2 else 2 * (it.sites - 1)), 2 * (it.sites - 1) / it.sites


def speeds(it: Inputs) -> tuple[float, ...]:
    return it.slowdowns or (1.0,)


def sharded_by_loops(it: Inputs) -> float:
    """Gather each layer one layer ahead, in both passes; scatter each bucket once its gradients are there."""
    c, w = ring(it)
    lane = Lane(it.rate_bps, c / 2 * it.delay_s, it.operation_s)
    layers, buckets = it.layers, it.buckets or it.layers
    payload = w / 2 * it.parameters * it.bits
    clock = [0.0] * len(speeds(it))
    scattered = 0.0
    for _ in range(20):
        clock = [max(now, scattered) for now in clock]
        for share, scatters in ((1 / 3, False), (2 / 3, True)):
            done = 0
            gathered = lane.arrival(max(clock), payload / layers)
            for layer in range(layers):
                clock = [max(now, gathered) for now in clock]
                if layer + 1 < layers:
                    gathered = lane.arrival(max(clock), payload / layers)
                takes = [share * it.step_s * speed / layers for speed in speeds(it)]
                while scatters and done < buckets and (done + 1) / buckets <= (layer + 1) / layers * (1 + 1e-12):
                    part = (done + 1) / buckets * layers - layer
                    ready = max(now + part * takes_s for now, takes_s in zip(clock, takes, strict=True))
                    scattered = lane.arrival(ready, payload / buckets)
                    done += 1
                clock = [now + takes_s for now, takes_s in zip(clock, takes, strict=True)]
    return max(*clock, scattered) / 20


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_sharded_training_is_what_plain_loops_say(it: Inputs) -> None:
    found = predict_events("fsdp", it)
    assert found.step_s == pytest.approx(sharded_by_loops(it), rel=1e-9)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed.total_s, rel=1e-9)
    assert found.bits_per_step == pytest.approx(1.5 * ring(it)[1] * it.parameters * it.bits)


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_sharded_training_is_its_closed_form_where_gathers_and_scatters_do_not_meet(it: Inputs) -> None:
    for apart in (it.but(buckets=1), it.but(rate_bps=math.inf)):
        closed = STRATEGIES["fsdp"].predict(apart)
        assert predict_events("fsdp", apart).step_s == pytest.approx(closed.step_s, rel=1e-9)


def lagging_by_loops(it: Inputs, rounds: int = 300, last: int = 60) -> float:
    """Return the mean time of a step of the fastest site, over its ``last`` rounds."""
    sites = sorted(set(speeds(it)))
    lanes = [[Lane(it.rate_bps, it.delay_s, it.operation_s) for _ in range(2)] for _ in sites]
    begun: list[list[float]] = [[] for _ in sites]
    back: list[list[float]] = [[] for _ in sites]
    payload = it.parameters * it.bits
    for number in range(rounds):
        wait_s = max((one[number - 1 - it.staleness] for one in back), default=0.0) if number > it.staleness else 0.0
        for site, speed in enumerate(sites):
            before_s = begun[site][-1] + it.every * it.step_s * speed if number else 0.0
            begun[site].append(max(before_s, wait_s))
            pushed = lanes[site][0].arrival(begun[site][-1] + it.every * it.step_s * speed, payload)
            back[site].append(lanes[site][1].arrival(pushed + it.outer_step_s, payload))
    return (begun[0][-1] - begun[0][-1 - last]) / last / it.every


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_rounds_of_bounded_staleness_are_what_plain_loops_say(it: Inputs) -> None:
    found = predict_events("async-diloco", it)
    assert found.step_s == pytest.approx(lagging_by_loops(it), rel=1e-6)
    assert found.step_s == pytest.approx(STRATEGIES["async-diloco"].predict(it).step_s, rel=1e-6)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed.total_s, rel=1e-9)
    assert found.bits_per_step == pytest.approx(it.parameters * it.bits / it.every)


def test_a_slow_site_holds_asynchronous_sites_back() -> None:
    it = Inputs(1.0, 1e9, 24, 1e12, every=10, staleness=2, slowdowns=(1.0, 1.5))
    for found in (STRATEGIES["async-diloco"].predict(it), predict_events("async-diloco", it)):
        assert found.utilization == pytest.approx(1 / 1.5)
        assert found.exposed.waiting_s == pytest.approx(0.5, rel=0.01)
        assert found.limit == "the slowest site"


def tiered_by_loops(it: Inputs) -> float:
    c, w = between(it)
    steps, now_s = math.lcm(*(tier.every for tier in it.tiers)), 0.0
    for step in range(1, steps + 1):
        now_s += it.step_s * max(speeds(it))
        for tier in it.tiers:
            if step % tier.every == 0:
                now_s += it.operation_s + c * tier.delay_s + w * it.parameters * it.bits / tier.rate_bps
                now_s += it.outer_step_s if tier.every > 1 else 0.0
    return now_s / steps


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_tiers_are_what_plain_loops_and_the_closed_form_say(it: Inputs) -> None:
    found, closed = predict_events("tiers", it), STRATEGIES["tiers"].predict(it)
    assert found.step_s == pytest.approx(tiered_by_loops(it), rel=1e-9)
    assert found.step_s == pytest.approx(closed.step_s, rel=1e-9)
    assert found.bits_by_fiber == pytest.approx(closed.bits_by_fiber)
    payload = between(it)[1] * it.parameters * it.bits
    assert found.bits_by_fiber == pytest.approx([payload / tier.every for tier in it.tiers])


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_experts_are_what_plain_loops_and_the_closed_form_say(it: Inputs) -> None:
    exchange_s = it.operation_s + it.delay_s + it.token_bits * (it.sites - 1) / it.sites / it.rate_bps
    now_s = 0.0
    for _ in range(it.layers):  # forward and backward of a layer, slowest site
        now_s += it.step_s * max(speeds(it)) / it.layers
    for _ in range(it.expert_layers):
        now_s += 4 * exchange_s
    found = predict_events("moe", it)
    assert found.step_s == pytest.approx(now_s, rel=1e-9)
    assert found.step_s == pytest.approx(STRATEGIES["moe"].predict(it).step_s, rel=1e-9)


def pipeline_by_loops(it: Inputs) -> float:
    """Return the time of a step of GPipe: all micro-batches forward through all stages, then all backward."""
    began = [0.0] * it.stages
    for share in (1 / 3, 2 / 3):
        before = [0.0] * it.micro_batches
        ends = []
        for stage in range(it.stages):
            now, lane = began[stage], Lane(it.rate_bps, it.delay_s, it.operation_s)
            for micro in range(it.micro_batches):
                if stage:
                    now = max(now, lane.arrival(before[micro], it.activation_bits))
                now += share * it.step_s * max(speeds(it)) / it.micro_batches
                before[micro] = now
            ends.append(now)
        began = ends[::-1]
    return max(began)


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_a_pipeline_is_what_plain_loops_and_the_closed_form_say(it: Inputs) -> None:
    found, closed = predict_events("pipeline", it), STRATEGIES["pipeline"].predict(it)
    assert found.step_s == pytest.approx(pipeline_by_loops(it), rel=1e-9)
    assert found.step_s == pytest.approx(closed.step_s, rel=1e-9)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed.total_s, rel=1e-9)
    assert found.bits_per_step == pytest.approx(closed.bits_per_step)


def merges_by_loops(it: Inputs, merges: int = 20) -> float:
    """Return the mean time between merges, learner by learner."""
    up_s = it.operation_s + it.delay_s + it.parameters * it.bits / it.rate_bps
    takes = [it.every * it.step_s * speed + up_s for speed in (it.slowdowns or (1.0,) * it.sites)]
    quorum = it.quorum or it.sites
    begun, version, now_s = [0.0] * it.sites, [0] * it.sites, 0.0
    for merge in range(merges):
        current = sorted(begun[n] + takes[n] for n in range(it.sites) if version[n] == merge)
        # With somebody on an older version, not all will have delivered.
        all_s = math.inf if len(current) < it.sites else current[-1]
        now_s = min(current[quorum - 1] + it.grace_s, all_s)
        for n in range(it.sites):
            if version[n] == merge and begun[n] + takes[n] <= now_s:
                begun[n], version[n] = now_s, merge + 1
            while version[n] <= merge and begun[n] + takes[n] <= now_s:
                begun[n] += takes[n]  # too late; what it works on now is still older than the next merge
        for n in range(it.sites):
            assert version[n] == merge + 1 or begun[n] + takes[n] > now_s
    return now_s / merges


@settings(deadline=None, max_examples=40)
@given(inputs())
def test_merges_are_what_plain_loops_and_the_closed_form_say(it: Inputs) -> None:
    found, closed = predict_events("decoupled", it), STRATEGIES["decoupled"].predict(it)
    assert found.merge_s == pytest.approx(merges_by_loops(it), rel=1e-9)
    assert found.merge_s == pytest.approx(closed.merge_s, rel=1e-9)
    assert found.utilization == closed.utilization == 1.0
    assert found.bits_per_step == pytest.approx(closed.bits_per_step)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["local-sgd", "diloco", "sparse-loco", "streaming-diloco"]), inputs(), st.floats(0, 5))
def test_an_outer_step_costs_what_it_takes_once_a_cycle(name: str, it: Inputs, outer_step_s: float) -> None:
    """Where nothing is hidden behind it: with a single fragment and without overlap."""
    without, with_it = it.but(outer_step_s=0.0), it.but(outer_step_s=outer_step_s)
    for predicted in (STRATEGIES[name].predict, lambda inputs: predict_events(name, inputs)):
        before, after = predicted(without), predicted(with_it)
        assert after.step_s == pytest.approx(before.step_s + outer_step_s / it.every, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["ddp", "diloco", "fsdp", "moe"]), inputs(), st.integers(1, 30), st.floats(0, 100))
def test_checkpoints_stop_compute(name: str, it: Inputs, every: int, seconds: float) -> None:
    without, with_them = predict_events(name, it), predict_events(name, it, Checkpoints(every, seconds))
    steps = {"ddp": 20, "fsdp": 3, "diloco": 3 * it.every, "moe": 3}[name]
    stopped_s = steps // every * seconds / steps
    assert with_them.checkpoint_s == pytest.approx(stopped_s)
    total_s = with_them.compute_s + with_them.exposed.total_s + with_them.checkpoint_s
    assert with_them.step_s == pytest.approx(total_s, rel=1e-9)
    # Exchanges go on beside a checkpoint: it costs its time at most, and never less than the rest of it.
    assert without.step_s - 1e-9 <= with_them.step_s <= (without.step_s + stopped_s) * (1 + 1e-9)


def test_directions_of_a_fiber_do_not_wait_for_each_other() -> None:
    simulation = Simulation()
    fiber = Fiber(simulation, Slots(None))
    transfers = {"out": (2.0, 0.0), "back": (0.0, 3.0), "both": (1.0, 1.0)}
    sent = {name: Transfer(0.0, serial_s, 0.5) for name, serial_s in transfers.items()}

    def site() -> Process:
        for it in sent.values():
            fiber.send(it)
        yield 0.0

    simulation.start(site())
    simulation.run()
    assert {name: it.arrived.at_s for name, it in sent.items()} == {"out": 2.5, "back": 3.5, "both": 4.5}
    assert (OUT, BACK) == (0, 1)


def test_a_million_steps_between_exchanges_are_events_too() -> None:
    it = Inputs(0.8, 1e10, 48, 1e9, every=10**6, fragments=16, overlap=1)
    found = predict_events("streaming-diloco", it)
    assert found.formula == "events"
    assert found.step_s == pytest.approx(STRATEGIES["streaming-diloco"].predict(it).step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("async-diloco", {"staleness": 10**6}),
        ("pipeline", {"micro_batches": 10**6, "activation_bits": 1.0}),
        ("tiers", {"tiers": (Tier(1, 1e9, 0.0), Tier(10**9, 1e9, 0.0))}),
    ],
)
def test_too_many_events_are_refused_by_number(name: str, changes: dict[str, object]) -> None:
    with pytest.raises(TooMany, match="at most 25000"):
        predict_events(name, Inputs(0.8, 1e10, 48, 1e9).but(**changes))
