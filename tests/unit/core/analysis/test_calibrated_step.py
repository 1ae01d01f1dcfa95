"""What is timed before a job, and how it is composed: sizes, groups and idle times from the twin; o from the times."""

from __future__ import annotations

import pytest

from testbed.core.analysis.calibrated_step import predict_step
from testbed.core.analysis.step_costs import FiberModel
from testbed.core.analysis.volleys import timed_alone, volleys
from testbed.core.training.async_diloco import AsyncDiloco
from testbed.core.training.ddp import Ddp
from testbed.core.training.diloco import Diloco
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies_built import BUILT, make
from testbed.core.training.streaming_diloco import StreamingDiloco

LAYOUT = Layout(("east", "east", "west", "west"), gpt_tensors(), steps=400)
N = LAYOUT.payload_bytes
FIBER = FiberModel(delay_s=5e-3, rate_bps=100e6)
STEP_S = 0.2


def test_each_distinct_operation_is_timed_once_with_all_groups_that_do_it() -> None:
    inside, across, spread = volleys(Diloco({"every": 10}, LAYOUT), STEP_S)
    assert (inside.kind, inside.byte_count, inside.gap_s) == ("all_reduce", N, STEP_S)
    assert {ranks for _, ranks in inside.groups} == {(0, 1), (2, 3)}
    assert not inside.crosses and inside.before_update
    # Rank i of each site to rank i of the other, both ways at the same time, half of the model each.
    assert (across.kind, across.byte_count) == ("send", N / 2)
    assert {ranks for _, ranks in across.groups} == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert across.crosses and not across.before_update
    assert STEP_S < across.gap_s < 10 * STEP_S, "longer than TCP's timeout, no longer than that takes"
    assert spread.kind == "all_gather"


def test_a_bucket_is_timed_not_the_whole_gradient() -> None:
    (bucket,) = volleys(Ddp({"buckets": 8}, LAYOUT), STEP_S)
    assert bucket.byte_count == N / 8
    message = bucket.to_message()
    assert message == {"kind": "all_reduce", "bytes": N // 8, "groups": [["world", [0, 1, 2, 3]]], "gap_s": STEP_S}


def test_the_slowest_rank_counts_and_the_first_repetition_does_not() -> None:
    assert timed_alone([{0: [9.0, 0.1, 0.2, 0.3], 1: [9.0, 0.4, 0.1, 0.1]}]) == (pytest.approx(0.3),)
    assert timed_alone([{0: [], 1: []}]) == (0.0,)


def test_blocking_exchange_takes_what_it_took_alone_and_the_site_what_it_takes_beyond_the_backward_pass() -> None:
    twin = Diloco({"every": 10}, LAYOUT)
    planned = volleys(twin, STEP_S)
    wire_s = 8 * N / FIBER.rate_bps + twin.delays * FIBER.delay_s
    found = predict_step(twin, FIBER, STEP_S, planned, (0.004, 0.300, 0.020))
    assert found is not None
    # 300 ms across and 20 ms inside, every ten steps; the site's all-reduce ends 4 ms after the backward pass.
    assert found.exposed.total_s == pytest.approx(0.320 / 10 + 0.004)
    assert found.library_s == pytest.approx(0.320 - wire_s)
    assert found.bytes_per_direction == pytest.approx(N / 10)
    assert found.utilization == pytest.approx(STEP_S / found.step_s)
    plain = predict_step(twin, FIBER, STEP_S)
    assert plain is not None
    assert plain.exposed.total_s == pytest.approx(wire_s / 10), "without times, delays and bytes alone"


def test_a_fragment_is_exposed_by_what_it_takes_longer_than_the_steps_beside_it() -> None:
    twin = StreamingDiloco({"every": 8, "fragments": 4, "overlap": 1}, LAYOUT)
    planned = volleys(twin, STEP_S)
    crossing = [index for index, it in enumerate(planned) if it.crosses]
    quick = predict_step(
        twin, FIBER, STEP_S, planned, [0.1 if index in crossing else 0.0 for index in range(len(planned))]
    )
    slow = predict_step(
        twin, FIBER, STEP_S, planned, [0.5 if index in crossing else 0.0 for index in range(len(planned))]
    )
    assert quick is not None and slow is not None
    assert quick.exposed.total_s == pytest.approx(0.0, abs=1e-9)
    assert 0.5 * 4 * (0.5 - STEP_S) / 8 <= slow.exposed.total_s <= 1.5 * 4 * (0.5 - STEP_S) / 8


@pytest.mark.parametrize("name", sorted(BUILT))
def test_every_strategy_is_predicted_or_has_no_closed_form(name: str) -> None:
    twin = make(name, {}, LAYOUT)
    planned = volleys(twin, STEP_S)
    assert sum(it.gap_s for it in planned) < 3.0
    found = predict_step(twin, FIBER, STEP_S, planned, [0.05] * len(planned))
    if found is not None:
        assert 0 < found.utilization <= 1
        assert found.bytes_per_direction > 0


def test_bytes_are_those_of_a_whole_round_of_fragments() -> None:
    found = predict_step(StreamingDiloco({"every": 20, "fragments": 4}, LAYOUT), FIBER, STEP_S)
    assert found is not None
    assert found.bytes_per_direction == pytest.approx(N / 20, rel=1e-3)


@pytest.mark.parametrize("name", ["fsdp", "hsdp"])
def test_delays_of_a_whole_step_are_not_those_of_each_operation(name: str) -> None:
    twin = make(name, {}, LAYOUT)
    found = predict_step(twin, FIBER, STEP_S)
    assert found is not None
    in_sequence_s = twin.delays * FIBER.delay_s + 8 * found.bytes_per_direction / FIBER.rate_bps
    assert found.exposed.total_s <= in_sequence_s


def test_what_no_closed_form_has_is_not_predicted() -> None:
    both = Layout(("a", "b", "c", "d"), gpt_tensors(), steps=400)
    assert predict_step(make("multi-tier", {}, both), FIBER, STEP_S) is None
    assert predict_step(make("multi-tier", {}, LAYOUT), FIBER, STEP_S) is not None


def test_staleness_counts_versions_of_all_sites_and_the_closed_form_rounds_of_one() -> None:
    twin = AsyncDiloco({"every": 20, "staleness": 7}, LAYOUT)
    found = predict_step(twin, FIBER, STEP_S)
    assert found is not None
    assert (found.inputs.staleness, found.inputs.delays) == (twin.window, 1.0) == (3, 1.0)
