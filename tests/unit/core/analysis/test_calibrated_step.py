"""What is timed before a job, and how it is composed: sizes, groups and idle times from the twin; o from the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.tables import table
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.core.analysis.calibrated_step import StepPrediction, predict_step
from testbed.core.analysis.fiber_model import FiberModel
from testbed.core.analysis.volleys import Timed, Volley, rounds, timed_alone, volleys
from testbed.core.prediction.library_costs import gloo_software_s
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies.async_diloco import AsyncDiloco
from testbed.core.training.strategies.ddp import Ddp
from testbed.core.training.strategies.diloco import Diloco
from testbed.core.training.strategies.streaming_diloco import StreamingDiloco
from testbed.core.training.strategies_built import BUILT, make
from testbed.core.training.twin import Twin

LAYOUT = Layout(("east", "east", "west", "west"), gpt_tensors(), steps=400)
N = LAYOUT.payload_bytes
FIBER = FiberModel(delay_s=5e-3, rate_bps=100e6)
STEP_S = 0.2
PAIR = Layout(("east", "west"), gpt_tensors(), steps=400)
INSTANT = FiberModel(delay_s=0.0, rate_bps=1e15)


def predicted(
    twin: Twin,
    took_s: Sequence[float] | Callable[[Volley], float] | None = None,
    *steps_s: Sequence[Sequence[float]],
    fiber: FiberModel = FIBER,
    step_s: float = STEP_S,
) -> StepPrediction:
    """Predict a step that must have a prediction; ``took_s``: the times of the planned operations."""
    measured: list[Any] = []
    if took_s is not None:
        planned = volleys(twin, STEP_S)
        measured = [planned, [took_s(it) for it in planned] if callable(took_s) else took_s]
    found = predict_step(twin, fiber, step_s, *measured, *steps_s)
    assert found is not None
    return found


def exposed_s(twin: Twin, *args: Any, **fields: Any) -> float:
    return predicted(twin, *args, **fields).exposed.total_s


def streaming(fragments: int, overlap: int = 1, layout: Layout = LAYOUT, every: int = 8) -> StreamingDiloco:
    return StreamingDiloco({"every": every, "fragments": fragments, "overlap": overlap}, layout)


LEAST_S = 1e-12
"""Of what takes next to no time: 0 s is what was not timed."""


def of_sends(seconds: float) -> Callable[[Volley], float]:
    return lambda volley: max(seconds, LEAST_S) if volley.kind == "send" else LEAST_S


def of_fiber(volley: Volley) -> float:
    """Return how long messages take that cost no software."""
    return FIBER.delay_s + 8 * volley.burst * volley.byte_count / FIBER.rate_bps


def test_volleys_have_each_distinct_operation_once_with_all_groups_that_do_it() -> None:
    inside, burst, exchange = volleys(Diloco({"every": 10}, LAYOUT), STEP_S)
    # Parts beside the backward pass: what comes before the first one is a forward pass, a third of the step.
    assert (inside.kind, inside.byte_count, inside.burst) == ("all_reduce", N / 8, 1)
    assert inside.gap_s == pytest.approx(STEP_S / 3)
    assert {ranks for _, ranks in inside.groups} == {(0, 1), (2, 3)}
    assert not inside.crosses and inside.beside
    assert (burst.kind, burst.byte_count, burst.burst, burst.gap_s) == ("all_reduce", N / 8, 4, 0.0)
    assert (exchange.kind, exchange.step, exchange.cycle) == ("exchange", 10, 10)
    assert STEP_S < exchange.gap_s < 10 * STEP_S, "longer than TCP's timeout, no longer than that takes"


def test_volleys_have_a_fragment_alone_with_all_slices_both_ways() -> None:
    planned = volleys(streaming(2), STEP_S)
    sends = [it for it in planned if it.kind == "send"]
    assert sum(it.byte_count for it in sends) in (pytest.approx(N / 2, rel=0.01), pytest.approx(N / 4, rel=0.3))
    for it in sends:
        assert {ranks for _, ranks in it.groups} == {(0, 2), (2, 0), (1, 3), (3, 1)}
        assert it.crosses and not it.beside


def test_volleys_idle_for_long_only_where_a_round_trip_is_long() -> None:
    twin = streaming(2)
    near, far = (volleys(twin, STEP_S, rtt_s) for rtt_s in (0.4e-3, 10e-3))
    assert [replace(it, gap_s=0.0) for it in near] == [replace(it, gap_s=0.0) for it in far]
    for planned, gap_s in ((near, 0.25), (far, 4 * STEP_S)):
        sends = [it.gap_s for it in planned if it.kind == "send"]
        assert sends == [pytest.approx(gap_s)] * len(sends)


def test_volleys_have_a_bucket_and_a_burst_of_them_not_the_whole_gradient() -> None:
    bucket, burst = volleys(Ddp({"buckets": 8}, LAYOUT), STEP_S)
    assert bucket.byte_count == burst.byte_count == N / 8
    message = {"kind": "all_reduce", "bytes": N // 8, "groups": [["world", [0, 1, 2, 3]]]}
    assert bucket.to_message() == message | {"gap_s": pytest.approx(STEP_S / 3)}
    assert burst.to_message() == message | {"gap_s": 0.0, "burst": 4, "at_once": True}


def test_volleys_have_half_of_many_messages_behind_one_another() -> None:
    for buckets, expected in ((3, 3), (8, 4), (20, 10), (96, 48)):
        assert volleys(make("hierarchical", {"buckets": buckets}, PAIR), STEP_S)[-1].burst == expected
    assert volleys(make("ddp", {"buckets": 96}, PAIR), STEP_S)[-1].burst == 16


def test_timed_alone_counts_the_slowest_rank_and_the_first_repetition_does_not() -> None:
    assert timed_alone({0: [9.0, 0.1, 0.2, 0.3], 1: [9.0, 0.4, 0.1, 0.1]}).mean_s == pytest.approx(0.3)
    assert timed_alone({0: [], 1: []}) == Timed(0.0, 0.0, 0.0)
    stalled = [9.0, 0.1, 0.2, 0.3, 5.0]
    found = timed_alone({0: stalled, 1: stalled})
    assert found.mean_s == pytest.approx(0.25), "a stall of the machine does not count"
    assert (found.fast_s, found.slow_s) == (0.2, 0.3)


def test_predict_step_of_a_blocking_exchange_has_its_time_alone_and_what_exceeds_the_backward_pass() -> None:
    twin = Diloco({"every": 10}, LAYOUT)
    wire_s = 8 * N / FIBER.rate_bps + FIBER.delay_s
    found = predicted(twin, (0.004, 0.008, 0.320))
    # 320 ms every ten steps; four parts take 8 ms, two at a time, so the last one ends 4 ms after the backward pass.
    # The first step is in no mean, so there are 40 exchanges in 399 steps.
    share = 40 / 399
    assert found.exposed.total_s == pytest.approx(0.320 * share + 0.004)
    assert found.exposed.propagation_s + found.exposed.serialization_s == pytest.approx(wire_s * share)
    assert found.exposed.software_s == pytest.approx((0.320 - wire_s) * share + 0.004), "of the site"
    assert found.bytes_per_direction == pytest.approx(N / 10)
    assert found.utilization == pytest.approx(STEP_S / found.step_s)
    untimed = predicted(twin).exposed
    assert untimed.total_s - untimed.software_s == pytest.approx(wire_s * share)
    # Beside the message: of the site's all_gather of n, and of the last of 8 all_reduces after the backward pass.
    software_s = gloo_software_s("send", 2, N / 2) + gloo_software_s("all_gather", 2, N)
    assert untimed.software_s == pytest.approx(software_s * share + gloo_software_s("all_reduce", 2, N / 8))


def test_predict_step_exposes_a_fragment_by_what_it_takes_longer_than_the_steps_beside_it() -> None:
    quick, slow = (predicted(streaming(4), of_sends(seconds)) for seconds in (0.1, 0.5))
    counted = LAYOUT.steps - 1
    assert quick.exposed.waiting_s == pytest.approx(0.1 / counted), "the last one, for which no step is left"
    # The rest is that the others are exchanged once more at the end, and none is beside a step then; and that each of
    # 51 x 4 that lands is gathered in its site, which was not timed.
    gathered_s = 204 * gloo_software_s("all_gather", 2, N / 4)
    assert quick.exposed.total_s <= (4 * 0.1 + gathered_s) / counted + 1e-9
    late_s = slow.exposed.waiting_s  # as late fragments are in a critical path
    assert 0.5 * 4 * (0.5 - STEP_S) / 8 <= late_s <= 1.5 * 4 * (0.5 - STEP_S) / 8


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(5, 60), st.floats(0.0, 1.0), st.sampled_from([2, 4]))
def test_predict_step_has_late_fragments_that_are_those_of_a_clock_of_each_fragment(
    tau: int, steps: int, took_s: float, count: int
) -> None:
    """No formula: each fragment arrives so long after it began, and all that fly land when the job ends."""
    layout = Layout(("east", "west"), gpt_tensors(4), steps=steps, layers=4)
    found = predicted(streaming(count, tau, layout), of_sends(took_s), fiber=INSTANT)
    now_s, late_s, flying = 0.0, 0.0, list[tuple[int, float]]()
    for step in range(1, steps + 1):
        now_s += STEP_S
        flying += [(step + tau, now_s + took_s) for it in range(count) if step % 8 == round(8 * it / count) % 8]
        landing = [arrives_s for due, arrives_s in flying if due <= step or step == steps]
        flying = [it for it in flying if it[0] > step]
        waited_s = max(0.0, max(landing, default=0.0) - now_s)
        now_s += waited_s
        late_s += waited_s
    assert found.exposed.waiting_s == pytest.approx(late_s / (steps - 1), abs=1e-9)


@settings(max_examples=20)
@given(st.floats(0.0, 0.6), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_predict_step_with_more_overlap_never_exposes_more(took_s: float, tau: int, count: int) -> None:
    layout = Layout(("east", "west"), gpt_tensors(4), steps=401, layers=4)

    less_s, more_s = (exposed_s(streaming(count, overlap, layout), of_sends(took_s)) for overlap in (tau + 1, tau))
    assert 0 <= less_s <= more_s + 1e-9


def test_predict_step_has_buckets_sent_as_messages_on_the_fiber_at_once_by_the_closed_form_too() -> None:
    """As many buckets as at full scale: each has its delay, but they do not add up."""

    def of_messages(count: int) -> float:
        return exposed_s(make("hierarchical", {"buckets": count}, PAIR), of_fiber)

    serial_s, backward_s = 8 * N / FIBER.rate_bps, 2 / 3 * STEP_S
    for count in (1, 2, 96):
        last_s = max(backward_s + serial_s / count, backward_s / count + serial_s) + FIBER.delay_s
        assert of_messages(count) == pytest.approx(last_s - backward_s)
    assert of_messages(1) == pytest.approx(FIBER.delay_s + serial_s), "d + n/B"
    rows_s = 96 / 2 * 4 * FIBER.delay_s  # two at a time, each with 4 (n - 1) rounds
    assert exposed_s(make("ddp", {"buckets": 96}, PAIR)) > rows_s - backward_s


@pytest.mark.parametrize("name", sorted(BUILT))
def test_predict_step_of_every_strategy_is_predicted_or_has_no_closed_form(name: str) -> None:
    twin = make(name, {}, LAYOUT)
    planned = volleys(twin, STEP_S)
    assert sum(it.gap_s for it in planned) < 4.0
    found = predict_step(twin, FIBER, STEP_S, planned, [0.05] * len(planned))
    if found is not None:
        assert 0 < found.utilization <= 1
        assert found.bytes_per_direction > 0


def test_predict_step_has_the_bytes_of_a_whole_round_of_fragments() -> None:
    twin = StreamingDiloco({"every": 20, "fragments": 4}, LAYOUT)
    assert predicted(twin).bytes_per_direction == pytest.approx(N / 20, rel=1e-3)


@table(
    "name, rounds_of_a_step",
    {
        # 2 gathers of each of 4 layers and one of what has none, of 2 (n - 1) rounds; 5 reduce_scatters of 4 (n - 1).
        "FSDP: each layer of all ranks, twice gathered, once scattered": ("fsdp", 9 * 6 + 5 * 12),
        "HSDP: each layer's mean between the sites": ("hsdp", 5 * 4),
    },
)
def test_predict_step_has_the_rounds_of_all_operations_in_sequence(name: str, rounds_of_a_step: int) -> None:
    found = predicted(make(name, {}, LAYOUT))
    assert found.exposed.propagation_s == pytest.approx(rounds_of_a_step * FIBER.delay_s)
    assert found.exposed.serialization_s <= 8 * found.bytes_per_direction / FIBER.rate_bps * (1 + 1e-9)


def test_predict_step_without_a_model_is_none() -> None:
    assert predict_step(make("torchft-diloco", {}, LAYOUT), FIBER, STEP_S) is None
    assert not volleys(make("torchft-diloco", {}, LAYOUT), STEP_S), "no time is spent on what is not predicted"
    alone = Layout(("a", "a"), gpt_tensors(), steps=400)
    assert not volleys(make("ddp", {}, alone), STEP_S)


@settings(max_examples=20)
@given(st.floats(0.02, 0.5), st.integers(1, 12))
@example(0.17, 2)
@example(0.25, 3)
def test_predict_step_of_a_burst_at_the_end_of_no_compute_is_what_it_was_timed_at(took_s: float, buckets: int) -> None:
    twin = Ddp({"buckets": buckets}, LAYOUT)
    planned = volleys(twin, STEP_S)
    times = [took_s / planned[-1].burst, took_s][-len(planned) :]
    if buckets <= 4:
        assert exposed_s(twin, times, step_s=1e-9) == pytest.approx(took_s, rel=1e-3)
    else:  # two at a time, as in the burst
        assert exposed_s(twin, times, step_s=1e-9) >= took_s * (1 - 1e-3)


@settings(max_examples=20)
@given(st.floats(0.01, 0.5), st.integers(4, 12))
def test_predict_step_has_a_bucket_in_one_of_two_slots_for_as_long_as_in_the_burst(took_s: float, buckets: int) -> None:
    free = [0.0, 0.0]
    for bucket in range(1, buckets + 1):  # four of the burst are two in each slot
        ready = STEP_S / 3 + 2 * STEP_S / 3 * bucket / buckets
        free = sorted([free[1], max(free[0], ready) + took_s / 2])
    found_s = exposed_s(Ddp({"buckets": buckets}, LAYOUT), [took_s / 2, took_s])
    assert found_s == pytest.approx(free[1] - STEP_S, rel=1e-6)


def test_predict_step_of_what_was_not_timed_has_the_costs_of_gloo() -> None:
    twin = Ddp({"buckets": 4}, LAYOUT)
    assert predicted(twin, [0.0, 0.5]).exposed == predicted(twin).exposed


def test_predict_step_of_tiers_of_several_sites_has_its_bytes() -> None:
    found = predicted(make("multi-tier", {}, Layout(("a", "b", "c", "d"), gpt_tensors(), steps=400)))
    assert found.bytes_per_direction > 0 and 0 < found.exposed.total_s < 8 * N / FIBER.rate_bps


@settings(max_examples=20)
@given(st.floats(0.0, 0.1), st.floats(0.005, 0.2), st.integers(1, 12))
def test_predict_step_has_buckets_sent_as_messages_share_a_lane_of_the_rate_of_a_burst(
    latency_s: float, lane_s: float, count: int
) -> None:
    """One takes latency and lane; each one more takes the lane for as long again, however slow the lane really is."""
    twin, fiber = make("hierarchical", {"buckets": count}, PAIR), FiberModel(min(latency_s, 5e-3), 1e15)
    total_s = exposed_s(twin, lambda volley: latency_s + lane_s * volley.burst, fiber=fiber, step_s=1e-9)
    assert total_s == pytest.approx(latency_s + count * lane_s)


@settings(max_examples=20)
@given(st.lists(st.floats(0.001, 0.05), min_size=3, max_size=3), st.integers(4, 12))
def test_predict_step_has_stages_of_a_bucket_in_sequence_and_one_at_a_time_in_a_site(
    stages_s: list[float], count: int
) -> None:
    twin = make("hierarchical", {"buckets": count}, LAYOUT)
    times = [
        stages_s[index // 2] * (4 if volley.burst > 1 and not volley.crosses else 1)
        for index, volley in enumerate(volleys(twin, STEP_S))
    ]
    free = [0.0, 0.0, 0.0]
    for bucket in range(1, count + 1):  # no formula: each stage takes the bucket when both are free
        ended = STEP_S / 3 + 2 * STEP_S / 3 * bucket / count
        for stage in range(3):
            if stage == 1:  # several buckets are on the fiber at once
                ended += stages_s[stage]
            else:
                ended = free[stage] = max(ended, free[stage]) + stages_s[stage]
    assert exposed_s(twin, times, fiber=INSTANT) == pytest.approx(ended - STEP_S, rel=1e-3)


def test_predict_step_has_what_a_pass_waits_for_in_sequence() -> None:
    twin = make("tensor", {"across": True}, LAYOUT)
    planned = volleys(twin, STEP_S)
    times_s = {(it.kind, it.what, it.crosses): 0.010 * number for number, it in enumerate(planned, 1)}
    expected_s = times_s["all_gather", "tokens", True] + 16 * times_s["all_reduce", "activations", True]
    expected_s += times_s["all_reduce", "gradients", False]
    assert len(times_s) == len(planned)
    assert exposed_s(twin, list(times_s.values())) == pytest.approx(expected_s)


LATE_S = (0.10 + 0.06 + 0.08 + 0.10) / 8


@table(
    "name, options, expected_s",
    {
        "all ranks end a step of DDP": ("ddp", {}, LATE_S),
        "those of a site end a step of DiLoCo": ("diloco", {"every": 10}, 0.1 * LATE_S + 0.9 * 0.03 / 4),
    },
)
def test_predict_step_has_a_rank_wait_for_the_slowest_with_which_it_ends_a_step(name, options, expected_s) -> None:
    steps_s = ((0.10, 0.14, 0.20, 0.20), (0.12, 0.10, 0.20, 0.20))
    found = predicted(make(name, options, LAYOUT), lambda volley: 0.0, steps_s)
    assert found.exposed.waiting_s == pytest.approx(expected_s, rel=0.01)


def test_rounds_of_the_tiers_of_an_exchange_are_in_sequence() -> None:
    sites = ("a", "b", "c", "d")
    operations = make("multi-tier", {}, Layout(sites, gpt_tensors(), steps=400)).operations(50)
    pairs = [
        (volley.first.kind, {tuple(sorted(ranks)) for _, ranks in volley.groups})
        for volley in rounds(operations, sites)
    ]
    assert pairs == [("send", {(0, 1), (2, 3)}), ("send", {(0, 2)}), ("broadcast", {(0, 1), (2, 3)})]


def test_predict_step_of_a_pipeline_fills_and_drains_over_the_fiber() -> None:
    total_s = exposed_s(make("pipeline", {"micro_batches": 4}, LAYOUT), lambda volley: 0.0)
    message_s = 2 * 8 * 4 * 512 / 4 * 96 / FIBER.rate_bps  # of both pipelines of a site
    least_s = STEP_S / 4 + 2 * (FIBER.delay_s + message_s)
    assert least_s <= total_s * (1 + 1e-9) <= 2 * least_s


def test_predict_step_of_sites_at_their_own_paces_is_none_before_the_job() -> None:
    twin = AsyncDiloco({"every": 20, "staleness": 7}, LAYOUT)
    assert predict_step(twin, FIBER, STEP_S) is None
    assert twin.window == 3
