"""Scheduled faults: at their times, those of one time in one call, and none for a caller that is gone."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
from builders.fault_bench import FAULT, LINKS, FaultBench, bench, cut

from testbed.core.faults.fault_kind import Compiled
from testbed.errors import HostError
from testbed.keeper.engine import LAB

__all__ = ["bench"]  # a fixture


def planned(link: str, planned_t: float, for_s: float | None = None) -> tuple[Any, Compiled]:
    return {**FAULT, "type": "cut", "target": link, "for_s": for_s, "planned_t": planned_t}, cut(link)


def targets(events: list[dict[str, Any]]) -> list[str]:
    return [event["target"] for event in events]


@pytest.mark.alone
def test_each_begins_at_its_time_and_in_order(bench: FaultBench) -> None:
    began_t = time.monotonic()
    times = [began_t + 0.05 + 0.03 * number for number in range(8)]
    bench.faults.schedule("me", [planned(link, t) for link, t in reversed(list(zip(LINKS, times, strict=True)))])
    events = bench.wait_for("fault-began", 8)
    assert targets(events) == LINKS
    late = [event["command_t"] - event["planned_t"] for event in events]
    assert min(late) >= 0
    assert statistics.median(late) < 0.005
    assert [event["planned_t"] for event in events] == times


def test_those_of_one_time_are_set_in_one_call_and_were_recorded_before(bench: FaultBench) -> None:
    due_t, written = time.monotonic() + 0.05, list[str]()
    bench.hand.before = lambda: written.append(bench.journal.path.read_text())
    bench.faults.schedule("me", [planned(link, due_t, for_s=60.0) for link in LINKS])
    events = bench.wait_for("fault-began", 8)
    assert [len(settings) for _, settings in bench.hand.calls] == [8]
    assert [setting.interface for setting in bench.hand.carriers] == [f"{link}-a" for link in LINKS]
    assert all(f'"owner":"f{number}"' in written[0] for number in range(1, 9))
    assert len({event["ack_t"] for event in events}) == 1
    assert targets(bench.faults.heal([f"f{number}" for number in range(1, 9)])) == LINKS  # type: ignore[arg-type]
    assert {entry.owner for entry in bench.journal.entries.values()} == {LAB}


def test_what_could_not_begin_is_reported_and_leaves_nothing(bench: FaultBench) -> None:
    bench.hand.broken = HostError("the kernel said no")
    due_t = time.monotonic()
    bench.faults.schedule("me", [planned("link0", due_t), planned("link1", due_t)])
    assert [event["why"] for event in bench.wait_for("fault-failed", 2)] == ["the kernel said no"] * 2
    assert bench.faults.records() == []
    assert {entry.owner for entry in bench.journal.entries.values()} == {LAB}


def test_nothing_begins_for_a_caller_that_is_gone(bench: FaultBench) -> None:
    due_t = time.monotonic() + 0.1
    bench.faults.schedule("gone", [planned("link0", due_t), planned("link1", due_t + 0.01)])
    bench.faults.schedule("me", [planned("link2", due_t + 0.02)])
    bench.faults.unschedule("gone")
    assert targets(bench.wait_for("fault-began")) == ["link2"]
    bench.faults.unschedule("me")
    time.sleep(0.05)
    assert len(bench.of("fault-began")) == 1


def test_nothing_begins_while_the_lab_goes_down(bench: FaultBench) -> None:
    bench.do(lambda: bench.journal.set_state("going"))
    bench.faults.schedule("me", [planned("link0", time.monotonic())])
    bench.wait_for("fault-failed")
    assert bench.hand.calls == []
