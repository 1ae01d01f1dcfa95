"""The parts of a step add up to it and are never negative, whatever the records; each part is what it is called."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import pytest
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.analysis.critical_path import (
    PARTS,
    Parts,
    StepCost,
    TimedOperation,
    WindowCost,
    critical_path,
)
from testbed.core.analysis.fiber_model import FiberModel
from testbed.core.analysis.step_costs import step_costs
from testbed.core.records.rank_log import StepRecord
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies.ddp import Ddp
from testbed.core.training.strategies.diloco import Diloco

LAYOUT = Layout(("east", "east", "west", "west"), gpt_tensors(), steps=100)
FIBER = FiberModel(delay_s=5e-3, rate_bps=100e6)
EVERYONE = frozenset(range(4))


def record(
    step: int, begin: float, *lengths: float, late_s: float = 0.0, resent: int | None = None, **more: float
) -> StepRecord:
    """Return a record as an agent writes it: ``lengths`` from begin to ready, to sync, to stepped, to end."""
    times = accumulate(lengths, initial=begin)
    names = ("t_begin", "t_ready", "t_sync", "t_stepped", "t_end")
    tcp = {} if resent is None else {"tcp": {"sent": 1000, "retransmitted": resent}}
    return StepRecord.from_dict(
        {"step": step, **dict(zip(names, times, strict=True)), "tokens": 256, "late_s": late_s, **tcp, **more}
    )


ALL_PEERS = {rank: EVERYONE - {rank} for rank in EVERYONE}


def cost(crosses: bool = True, **values: float) -> WindowCost:
    return WindowCost(ALL_PEERS, crosses, **values)


seconds = st.floats(0.0, 5.0)
windows = st.builds(
    WindowCost,
    peers=st.sampled_from([{}, ALL_PEERS]),
    crosses=st.booleans(), propagation_s=seconds, serialization_s=seconds, software_s=seconds, cold_s=seconds,
    idle_s=seconds,
)  # fmt: skip
costs = st.builds(StepCost, windows, windows, like=st.sampled_from("ab"))


def drawn(data: st.DataObject, step: int) -> StepRecord:
    lengths = [data.draw(seconds) for _ in range(4)]
    begin, late_s = data.draw(st.floats(0.0, 1e6)), data.draw(seconds)
    resent = data.draw(st.sampled_from([None, 0, 9]))
    blocked_s = 0.999 * lengths[0] * data.draw(st.sampled_from([0.0, 0.3, 1.0])) if lengths[0] > 1e-3 else 0.0
    return record(step, begin, *lengths, late_s=late_s, resent=resent, blocked_s=blocked_s)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 4), st.booleans())
def test_critical_path_parts_add_up_and_none_is_negative(data: st.DataObject, world: int, recorded: bool) -> None:
    rows, by_step = [], {}
    for step in range(1, data.draw(st.integers(1, 4)) + 1):
        rows.append({rank: drawn(data, step) for rank in range(world)})
        by_step[step] = data.draw(costs)

    def operations(rank: int, it: StepRecord) -> list[TimedOperation]:
        chance = random.Random(f"{rank} {it.step}")
        span = it.t_end - it.t_begin
        found = []
        for _ in range(chance.randrange(4)):
            began, arrived, ended = sorted(it.t_begin + span * chance.uniform(-0.5, 1.5) for _ in range(3))
            found.append(TimedOperation(began, arrived, ended, chance.random() < 0.5, chance.uniform(0, ended - began)))
        return found

    found = critical_path(rows, by_step.__getitem__, operations if recorded else None)
    assert len(found.steps) == len(rows)
    for path, row in zip(found.steps, rows, strict=True):
        slowest = row[path.rank]
        assert slowest.t_end == max(it.t_end for it in row.values())
        assert path.parts.total_s == pytest.approx(slowest.t_end - slowest.t_begin, abs=1e-6)
        assert all(getattr(path.parts, name) >= 0.0 for name in PARTS)
    assert found.mean.total_s == pytest.approx(sum(it.parts.total_s for it in found.steps) / len(rows))


def parts(row: dict[int, StepRecord], of: StepCost, operations: list[TimedOperation] | None = None) -> Parts:
    listed = None if operations is None else lambda rank, record: operations
    return critical_path([row], lambda step: of, listed).steps[0].parts


def values(found: Parts, *names: str) -> list[float]:
    return [getattr(found, f"{name}_s") for name in names]


def test_critical_path_parts_by_their_names() -> None:
    # Rank 0 was ready 30 ms before rank 1; then 10 ms of delays, 40 ms of bytes, 5 ms of the library, 15 ms of nothing.
    row = {0: record(1, 0.0, 0.100, 0.100, 0.020, 0.0), 1: record(1, 0.0, 0.130, 0.060, 0.020, 0.0)}
    found = parts(row, StepCost(cost(propagation_s=0.010, serialization_s=0.040, software_s=0.005)))
    expected = {"compute_s": 0.120, "peer_wait_s": 0.030, "propagation_s": 0.010, "serialization_s": 0.040}
    expected |= {"software_s": 0.005, "rest_s": 0.015, "tcp_s": 0.0, "late_s": 0.0}
    assert {name: getattr(found, name) for name in PARTS} == pytest.approx(expected)


@table(
    "resent, tcp_s, rest_s",
    {
        "a slow step with retransmissions is a recovery": (3000, 0.200, 0.010),
        "a slow step without retransmissions is none": (0, 0.0, 0.210),
    },
)
def test_critical_path_of_a_step_that_is_slower_than_its_like(resent, tcp_s, rest_s) -> None:
    usual = [record(step, float(step), 0.1, 0.060, 0.0, 0.0, resent=0) for step in (1, 2, 3)]
    slow = record(4, 4.0, 0.1, 0.260, 0.0, 0.0, resent=resent)
    of = StepCost(cost(propagation_s=0.010, serialization_s=0.040))
    found = critical_path([{0: it, 1: it} for it in (*usual, slow)], lambda step: of).steps
    assert [path.parts.tcp_s for path in found] == pytest.approx([0.0, 0.0, 0.0, tcp_s])
    assert values(found[3].parts, "propagation", "rest") == pytest.approx([0.010, rest_s])


def test_critical_path_of_a_connection_that_idled_starts_slowly() -> None:
    of = {step: StepCost(outer=cost(step % 2 == 0, cold_s=0.030, idle_s=0.5)) for step in (1, 2, 3, 4)}
    rows = [{0: record(step, begin, 0.2, 0.0, 0.01, 0.1)} for step, begin in enumerate((0.0, 0.35, 2.0, 2.4), 1)]
    assert [it.parts.tcp_s for it in critical_path(rows, of.__getitem__).steps] == pytest.approx([0, 0, 0, 0.030])


def test_critical_path_of_a_late_fragment_is_not_the_fibers_doing() -> None:
    late = {0: record(1, 0.0, 0.1, 0.0, 0.01, 0.050, late_s=0.040)}
    found = parts(late, StepCost(outer=cost(propagation_s=0.030)))
    assert values(found, "late", "propagation", "rest") == pytest.approx([0.040, 0.010, 0.0])


def test_critical_path_of_recorded_operations_separates_waiting_sending_and_the_site() -> None:
    row = {0: record(1, 0.0, 0.1, 0.100, 0.0, 0.0)}
    operations = [TimedOperation(0.09, 0.120, 0.150, crosses=True), TimedOperation(0.140, 0.140, 0.190, crosses=False)]
    found = parts(row, StepCost(cost(propagation_s=1.0)), operations)
    # 0.100 to 0.120 a peer is missing, to 0.150 across the fiber, to 0.190 in the site, to 0.200 nothing is going on.
    assert values(found, "peer_wait", "propagation", "software", "rest") == pytest.approx([0.020, 0.030, 0.040, 0.010])


def test_critical_path_has_no_compute_while_a_rank_stands_still_inside_its_passes() -> None:
    def blocked(seconds: float) -> dict[int, StepRecord]:
        return {0: record(1, 0.0, 0.2, 0.0, 0.0, 0.0, blocked_s=seconds)}

    operations = [TimedOperation(0.01, 0.04, 0.10, crosses=True, waited_s=0.08)]
    found = parts(blocked(0.08), StepCost(cost(propagation_s=0.05)), operations)
    # From 0.02 to 0.04 a peer is missing.
    assert values(found, "compute", "peer_wait", "propagation", "rest") == pytest.approx([0.12, 0.02, 0.05, 0.01])
    unblocked = {0: record(1, 0.0, 0.2, 0.0, 0.0, 0.0)}
    assert parts(unblocked, StepCost(), operations).compute_s == pytest.approx(0.2)
    assert parts(blocked(0.05), StepCost()).rest_s == pytest.approx(0.05)


def test_critical_path_waits_for_the_slowest_of_a_site_in_the_site_alone() -> None:
    """DiLoCo's sites do not wait for each other between exchanges: the twin says who takes part in what."""
    of = step_costs(Diloco({"every": 10}, LAYOUT), FIBER)
    times = ((0.1, 1.1), (0.2, 0.9), (0.5, 0.3), (0.5, 0.3))
    found = parts({rank: record(3, 0.0, *lengths, 0.0, 0.0) for rank, lengths in enumerate(times)}, of(3))
    # All in the site.
    assert values(found, "peer_wait", "software", "propagation") == pytest.approx([0.1, 1.0, 0.0])


def ring_s(serial_s: float) -> float:
    """Seconds for which the lane waits in an all_reduce of four ranks: two phases of six messages, two on their way."""
    one_s = serial_s / 12
    return 2 * max(3 * (2 * 5e-3 + one_s) + one_s, 6 * one_s + 2 * 5e-3) - serial_s


def test_step_costs_are_the_twins_and_the_certificates() -> None:
    n = LAYOUT.payload_bytes
    ddp = step_costs(Ddp({}, LAYOUT), FIBER)(7)
    bucket_s, whole_s = (ring_s(8 * 1.5 * n / parts / 100e6) for parts in (8, 1))
    assert ddp.inner.propagation_s == pytest.approx(8 / 2 * bucket_s), "8 buckets, two at a time"
    whole = step_costs(Ddp({"buckets": 1}, LAYOUT), FIBER)(7)
    assert whole.inner.propagation_s == pytest.approx(whole_s)
    assert ddp.inner.serialization_s == pytest.approx(8 * 1.5 * n / 100e6)
    assert not ddp.outer.crosses
    diloco = step_costs(Diloco({"every": 10}, LAYOUT), FIBER)
    assert diloco(9).like == diloco(8).like != diloco(10).like
    assert not diloco(9).inner.crosses and not diloco(10).inner.crosses
    assert diloco(10).outer.serialization_s == pytest.approx(8 * n / 100e6), "two slices of n / 2 each way"
    assert diloco(10).outer.propagation_s == pytest.approx(5e-3), "messages travel at once"
    assert diloco(10).outer.peers[0] >= {2}
    assert diloco(10).outer.cold_s > 0
    assert step_costs(Diloco({"every": 10}, LAYOUT), replace(FIBER, slow_after_idle=False))(10).outer.cold_s == 0
