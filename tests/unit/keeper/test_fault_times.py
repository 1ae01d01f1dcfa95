"""Faults as the keeper leads them through their phases: in order, on time, and no longer than asked."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from builders.fault_bench import FaultBench, bench, carrier, cut

from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.properties import Carrier, Shape
from testbed.errors import HostError
from testbed.host.files import catalog
from testbed.keeper import faults
from testbed.keeper.engine import LAB
from testbed.keeper.in_force import InForce
from testbed.keeper.protection import Protection

__all__ = ["bench"]  # a fixture
REFUSAL = HostError("the kernel said no")


def flap(down_s: float, up_s: float, times: int | None = None) -> Compiled:
    phases = (Phase(0.0, "dark", (carrier("north"),)), Phase(down_s, "lit", ()))
    period_s = down_s + up_s
    return Compiled(phases, ("north",), period_s, None if times is None else (times - 1) * period_s + down_s)


def refuse_once(bench: FaultBench) -> None:
    """Make the next call of the handler fail."""

    def fail() -> None:
        bench.hand.before = lambda: None
        raise REFUSAL

    bench.hand.before = fail


def test_phases_are_played_in_order_and_at_their_times(bench: FaultBench) -> None:
    fault = bench.inject(flap(0.05, 0.03, times=4))
    bench.wait_until_over(fault)
    assert bench.hand.ups == [False, True] * 4
    phases = bench.of("fault-phase")
    assert [event["phase"] for event in phases] == ["lit", "dark"] * 3
    planned = [event["planned_t"] - fault["ack_t"] for event in phases]
    assert planned == pytest.approx([0.05, 0.08, 0.13, 0.16, 0.21, 0.24])
    assert all(event["planned_t"] <= event["command_t"] <= event["ack_t"] for event in phases)
    assert len(bench.of("fault-ended")) == 1
    assert bench.journal.owned(fault["id"]) == []


def test_a_ramp_on_a_slow_machine_leaves_steps_out_and_ends_in_time(bench: FaultBench) -> None:
    bench.hand.before = lambda: time.sleep(0.05)
    steps = tuple(Phase(step / 100, f"step {step}", (carrier("north", step % 2 > 0),)) for step in range(100))
    fault = bench.inject(Compiled(steps, ("north",), lasts_s=1.1))
    bench.wait_until_over(fault)
    played = [int(event["phase"].split()[1]) for event in bench.of("fault-phase")]
    assert played == sorted(set(played))
    assert len(played) < 30, "each takes 50 ms, and one is due every 10"
    assert played[-1] == 99, "the last is never left out"
    (end,) = bench.of("fault-ended")
    assert 1.1 <= end["command_t"] - fault["ack_t"] < 1.4


def test_a_flap_on_a_slow_machine_is_played_in_full(bench: FaultBench) -> None:
    bench.hand.before = lambda: time.sleep(0.03)
    fault = bench.inject(flap(0.02, 0.02))
    bench.wait_for("fault-phase", 11)
    bench.heal(fault)
    assert bench.hand.ups[:12] == [False, True] * 6
    assert bench.hand.ups[-1]


@pytest.mark.alone
def test_whichever_end_comes_first_ends_it(bench: FaultBench) -> None:
    endless = bench.inject(flap(0.05, 0.05), for_s=0.12)
    by_itself = bench.inject(flap(0.05, 0.05, times=1), for_s=60.0)
    bench.wait_until_over(endless, by_itself)
    ends = {event["fault"]: event["command_t"] for event in bench.of("fault-ended")}
    assert 0.12 <= ends[endless["id"]] - endless["ack_t"] < 0.4
    assert 0.05 <= ends[by_itself["id"]] - by_itself["ack_t"] < 0.4


def test_each_event_of_a_fault_has_its_parameters_and_how_long_it_is_to_last(bench: FaultBench) -> None:
    bench.wait_until_over(bench.inject(flap(0.05, 0.05), parameters={"loss": "0.5%"}, for_s=0.12))
    for kind in ("fault-began", "fault-phase", "fault-ended"):
        assert {(event["parameters"]["loss"], event["lasts_s"]) for event in bench.of(kind)} == {("0.5%", 0.12)}


@pytest.mark.parametrize("for_s", [1e300, float("inf")])
def test_a_fault_with_an_endless_time_delays_no_other(bench: FaultBench, for_s: float) -> None:
    """threading waits at most TIMEOUT_MAX; a longer wait raises, and the thread that ends faults would be gone."""
    endless = bench.inject(cut(), for_s=for_s)
    for _ in range(2):  # after the first one the thread waits for the endless one again
        bench.wait_until_over(bench.inject(cut(), for_s=0.05))
    assert not bench.is_over(endless)


def test_what_is_healed_is_not_played_on_and_not_healed_twice(bench: FaultBench) -> None:
    fault = bench.inject(flap(0.03, 0.03))
    assert bench.heal(fault) == [fault["id"]]
    count = len(bench.hand.ups)
    assert bench.heal(fault, {"id": "f99"}) == []
    # By when this one is over the first would have gone on.
    bench.wait_until_over(bench.inject(flap(0.1, 0.1, times=1)))
    assert bench.hand.ups[count:] == [False, True], "of the other alone"
    assert len(bench.of("fault-ended")) == 2


def test_a_phase_that_fails_is_reported_and_the_next_one_is_played(bench: FaultBench) -> None:
    fault = bench.inject(flap(0.05, 0.05, times=3))
    bench.hand.broken = REFUSAL
    assert "the kernel said no" in bench.wait_for("fault-failed")[0]["why"]
    bench.hand.broken = None
    bench.wait_until_over(fault)
    assert bench.hand.ups[-1]


class Unwalked(dict[int, Any]):
    """Entries that can be looked up by their number, and not be walked over."""

    def _refuse(self) -> Any:
        raise AssertionError("a walk over all entries of a lab: milliseconds in which no fault can act")

    __iter__ = keys = values = items = _refuse


def test_neither_a_phase_nor_a_switch_walks_over_the_lab(bench: FaultBench) -> None:
    topology = catalog.load_topology("regional-protected", None)
    link = next(link for link in topology.links if link.second_path is not None)
    ends = topology.interfaces.ends(link.name)
    bench.engine.apply(LAB, tuple(Carrier("plant", end, True) for end in ends))
    bench.engine.apply(LAB, tuple(Shape(direction, link.impairment(direction)) for direction in link.directions))
    protection = Protection(bench.engine, bench.do, bench.events)
    for part in (bench.faults, protection):
        part.set_topology(topology, InForce(bench.journal, topology))
    bench.journal.entries = Unwalked(bench.journal.entries)
    bench.do(partial(protection.cut, "f9", [PathCut(link.name, "working")]))
    phases = (Phase(0.0, "dark", tuple(Carrier("plant", end, False) for end in ends)), Phase(0.02, "lit", ()))
    fault = bench.inject(Compiled(phases, (link.name,), 0.04))
    bench.wait_for("fault-phase", 2)
    bench.heal(fault)
    bench.do(partial(protection.cut, "f9", []))
    assert bench.of("fault-failed") == []
    dark_by = {
        event["phase"]: [value["dark_by"] for value in event["in_force"].values()]
        for event in (*bench.of("fault-began"), *bench.of("fault-phase"))
    }
    assert dark_by == {"dark": [["f1", "protection"]] * 2, "lit": [["protection"]] * 2}
    switching, _ = bench.of("protection-switched")
    assert switching["to"] == "switching" and set(switching["in_force"]) == set(link.directions)


def test_an_event_has_the_steps_that_an_earlier_phase_could_not_withdraw(bench: FaultBench) -> None:
    """It has what is in force on each direction that the fault has acted on, also after a phase that failed."""
    topology = catalog.load_topology("regional-protected", None)
    first, second = topology.links[:2]
    bench.faults.set_topology(topology, InForce(bench.journal, topology))
    phases = tuple(
        Phase(t, f"phase {t}", (Carrier("plant", topology.interfaces.ends(link.name)[0], False),))
        for t, link in ((0.0, first), (0.05, second), (0.2, second))
    )
    bench.inject(Compiled(phases, (first.name,), lasts_s=0.4))
    bench.hand.broken = REFUSAL
    bench.wait_for("fault-failed")
    bench.hand.broken = None
    (event,) = bench.wait_for("fault-phase")
    assert set(event["in_force"]) == {*first.directions, *second.directions}


def test_a_fault_that_cannot_begin_leaves_nothing(bench: FaultBench) -> None:
    bench.hand.broken = REFUSAL
    with pytest.raises(HostError):
        bench.inject(flap(0.05, 0.05))
    assert bench.faults.records() == []
    assert bench.journal.owned("f1") == []


def test_a_heal_that_failed_half_way_can_be_tried_again_and_keeps_no_other_from_it(bench: FaultBench) -> None:
    """The kernel refuses to light the fiber: what was dark must not count as healed and stay dark."""
    first, second = (bench.inject(flap(60.0, 60.0)) for _ in range(2))
    for healed in ([first], [first, second]):
        refuse_once(bench)
        with pytest.raises(HostError, match="the kernel said no"):
            bench.heal(*healed)
        assert not bench.is_over(first)
    assert bench.is_over(second)
    assert bench.heal(first) == [first["id"]]
    assert bench.hand.ups[-1]


def test_nothing_is_played_while_the_lab_goes_down(bench: FaultBench) -> None:
    bench.inject(flap(0.05, 0.05))
    bench.do(lambda: bench.journal.set_state("going"))
    bench.do(bench.engine.undo_all)
    count, done = len(bench.hand.ups), bench.done
    time.sleep(0.15)  # longer than a phase: there is nothing to wait for
    assert len(bench.hand.ups) == count
    assert bench.done <= done + 1, "it does not try again and again either"
    assert bench.journal.entries == {}


def test_of_faults_that_have_ended_the_latest_are_kept(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MOST_ENDED", 3)
    lasting = bench.inject(cut())
    for _ in range(10):
        bench.heal(bench.inject(cut()))
    assert [record["id"] for record in bench.faults.records()] == [lasting["id"], "f9", "f10", "f11"]
    assert bench.faults.counts() == ([("flap", "north")], {"flap": 11})
