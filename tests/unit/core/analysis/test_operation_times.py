"""Operations between sites as recorded: rounds and bytes are known, so the library's software is the same at any
distance, alone, in its slots and behind others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest
from builders.tables import table

from testbed.core.analysis.critical_path import WindowCost
from testbed.core.analysis.fiber_model import FiberModel
from testbed.core.analysis.operation_times import OperationTime, operation_times
from testbed.core.analysis.step_costs import step_costs
from testbed.core.records.check_record import CheckedStep, CheckLog
from testbed.core.records.operation_record import Channel, Done, Tag
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies.ddp import Ddp

LAYOUT: Final = Layout(("east", "east", "west", "west"), gpt_tensors(), steps=100)
RATE: Final = 100e6
SOFTWARE_S: Final = 3e-3
WORLD: Final = (0, 1, 2, 3)
Recorded = tuple[Tag, str, int, Mapping[int, tuple[float, float]]]
"""Tag, kind and bytes of an operation, and when each rank began and ended it."""


def collective(sequence: int, size: int, times: Mapping[int, tuple[float, float]], group: str = "world") -> Recorded:
    return Tag(1, group, tuple(times), "", None, 0, sequence), "all_reduce", size, times


def message(channel: Channel, size: int, begins_t: float, ends_t: float) -> Recorded:
    of = Tag(1, "slices", WORLD, "message", channel, 0, 0)
    return of, "send", size, dict.fromkeys(channel[:2], (begins_t, ends_t))


def times(recorded: Sequence[Recorded], fiber: FiberModel) -> tuple[OperationTime, ...]:
    logs = [
        log(rank, *((tag, Done(kind, 1, size, *of[rank])) for tag, kind, size, of in recorded if rank in of))
        for rank in WORLD
    ]
    return operation_times(logs, Ddp({}, LAYOUT), fiber)


def log(rank: int, *operations: tuple[Tag, Done]) -> CheckLog:
    return CheckLog(rank, steps=(CheckedStep(1, 1, 0, operations, "", ""),))


def fiber(delay_s: float, slow_after_idle: bool = False) -> FiberModel:
    return FiberModel(delay_s, RATE, slow_after_idle)


def ring_s(delay_s: float, work_s: float) -> float:
    """Seconds of a small all_reduce of four: in each of two phases six messages, of which two are on their way."""
    one_s = work_s / 12
    return 2 * max(3 * (2 * delay_s + one_s) + one_s, 6 * one_s + 2 * delay_s)


@pytest.mark.parametrize("delay_s", [10e-6, 500e-6, 5e-3])
def test_software_of_an_all_reduce_is_the_same_at_any_distance(delay_s: float) -> None:
    lane_s = 8 * 1.5 * 64_000 / RATE
    took_s = ring_s(delay_s, lane_s + SOFTWARE_S)
    early = {0: (0.0, took_s), 1: (0.0, took_s), 2: (-0.1, took_s), 3: (-0.2, took_s - 1e-3)}
    (alone,) = times([collective(0, 64_000, early)], fiber(delay_s))
    assert (alone.size, alone.count) == (("all_reduce", 4, 64_000), 1)
    assert alone.took_s == pytest.approx(took_s), "since the last rank began, until the last one ended"
    assert alone.software_s == pytest.approx(SOFTWARE_S, rel=1e-3)
    assert alone.serialization_s == pytest.approx(lane_s) and alone.queueing_s == 0.0
    assert alone.propagation_s == pytest.approx(took_s - SOFTWARE_S - lane_s, abs=1e-6)


def test_a_third_operation_of_a_group_waits_for_a_slot() -> None:
    recorded = [
        collective(0, 1000, dict.fromkeys(WORLD, (0.0, 1.0))),
        collective(1, 1000, dict.fromkeys(WORLD, (0.0, 2.0))),
        collective(2, 2000, dict.fromkeys(WORLD, (0.5, 1.7))),
        collective(0, 3000, dict.fromkeys(WORLD, (0.5, 1.7)), group="other"),
    ]
    found = {it.size.byte_count: it for it in times(recorded, fiber(0.0))}
    assert (found[2000].slot_s, found[2000].took_s) == (pytest.approx(0.5), pytest.approx(0.7))
    assert (found[3000].slot_s, found[3000].took_s) == (0.0, pytest.approx(1.2)), "another group has slots of its own"


@table(
    "channel, shares",
    {
        "the other slice, the same way: lane and cores": ((1, 3, 0), True),
        "the other way: cores": ((3, 1, 0), False),
    },
)
@pytest.mark.parametrize("delay_s", [0.0, 1e-3, 20e-3])
def test_messages_queue_behind_each_other_but_for_what_is_done_while_they_travel(
    channel: Channel, shares: bool, delay_s: float
) -> None:
    lane_s = 8 * 125_000 / RATE
    own_s = lane_s + SOFTWARE_S
    others_s = own_s if shares else SOFTWARE_S
    queueing_s = others_s * own_s / (own_s + delay_s)
    took_s = delay_s + own_s + queueing_s
    recorded = [message(it, 125_000, 0.0, took_s) for it in ((0, 2, 0), channel)]
    (found,) = times(recorded, fiber(delay_s))
    assert found.count == 2 and found.serialization_s == pytest.approx(lane_s)
    assert found.queueing_s == pytest.approx(queueing_s, rel=1e-4)
    assert found.software_s == pytest.approx(SOFTWARE_S, rel=1e-4)


@pytest.mark.parametrize("count", [4, 16])
@pytest.mark.parametrize("delay_s", [0.0, 20e-3])
def test_software_of_many_messages_at_once(count: int, delay_s: float) -> None:
    lane_s = 8 * 125_000 / RATE
    own_s = lane_s + SOFTWARE_S
    took_s = delay_s + own_s + (count - 1) * own_s * own_s / (own_s + delay_s)
    (found,) = times([message((0, 2, tag), 125_000, 0.0, took_s) for tag in range(count)], fiber(delay_s))
    assert found.count == count and found.software_s == pytest.approx(SOFTWARE_S, rel=1e-4)


def test_messages_of_different_tags_share_a_connection() -> None:
    recorded = [message((0, 2, tag), 125_000, 0.3 * tag, 0.3 * tag + 0.25) for tag in range(4)]
    (found,) = times(recorded, fiber(5e-3, slow_after_idle=True))
    assert found.tcp_s == 0.0, "only the first one came after an idle time"


def test_other_kinds_and_ranks_of_another_layout_are_left_out() -> None:
    (tag, _, size, of), at_once = (
        collective(0, 1000, dict.fromkeys(WORLD, (0.0, 1.0))),
        dict.fromkeys(WORLD, (0.0, 1.0)),
    )
    other = Tag(1, "larger", (0, 2, 5), "", None, 0, 0), "all_reduce", size, at_once
    assert times([(tag, "reduce", size, of), other], fiber(0.0)) == ()


def test_parts_of_a_message_that_was_received_late_do_not_exceed_what_it_took() -> None:
    (found,) = times([message((0, 2, 0), 125_000, 0.0, 1e-4)], fiber(5e-3))
    assert (
        found.serialization_s == found.took_s == pytest.approx(1e-4) and found.propagation_s == found.software_s == 0.0
    )


def test_connections_that_idled_start_slowly() -> None:
    recorded = [
        replace_tag(message((0, 2, 0), 125_000, begin_s, begin_s + 0.1), number)
        for number, begin_s in enumerate((0.0, 1.0, 2.0, 2.1))
    ]
    (slow,), (warm,) = times(recorded, fiber(5e-3, slow_after_idle=True)), times(recorded, fiber(5e-3))
    assert slow.tcp_s > 0 == warm.tcp_s, "three of four had idled"
    assert slow.tcp_s + slow.software_s == pytest.approx(warm.software_s, rel=1e-4)


def replace_tag(recorded: Recorded, sequence: int) -> Recorded:
    tag, *others = recorded
    return (tag._replace(sequence=sequence), *others)  # type: ignore[return-value]


def test_operations_in_a_site_and_those_that_did_not_end_are_left_out() -> None:
    inside = collective(0, 1000, dict.fromkeys((0, 1), (0.0, 1.0)), group="site:east")
    assert times([inside], fiber(0.0)) == ()
    tag, kind, size, _ = collective(0, 1000, dict.fromkeys(WORLD, (0.0, 1.0)))
    ended, not_ended = Done(kind, 1, size, 0.0, 1.0), Done(kind, 1, size, 0.0, None)
    assert operation_times([log(0, (tag, ended)), log(2, (tag, not_ended))], Ddp({}, LAYOUT), fiber(0.0)) == ()


def test_software_of_a_step_is_that_of_its_buckets_which_hold_whole_tensors() -> None:
    twin = Ddp({"buckets": 8}, LAYOUT)
    size = round(twin.operations(1)[0].byte_count / 8 * 1.1)
    took_s = ring_s(1e-3, 8 * 1.5 * size / RATE + SOFTWARE_S)
    found = times([collective(0, size, dict.fromkeys(WORLD, (0.0, took_s)))], fiber(1e-3))
    cost: WindowCost = step_costs(twin, fiber(1e-3), found)(1).inner
    assert cost.software_s == pytest.approx(8 * SOFTWARE_S, rel=1e-4)
    assert step_costs(twin, fiber(1e-3), [replace(found[0], software_s=0.0)])(1).inner.software_s == 0.0
