"""Validation of libraries in a lab on netem: the expected results of the reference ring."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.validate_contract import (
    ValidateContract,
    bench_in,
    catalogue,
    cut_and_loss,
    judge_crossing,
    judge_cut_and_loss,
    session_of,
)
from oracles import oracle

import testbed
from testbed.core.validation import cases, fault_matrix
from testbed.core.validation.result import CaseResult, Cell
from testbed.host.emulators.netem import available
from testbed.lab.validation import correctness, fault_cells
from testbed.lab.validation.library_validation import Bench

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.netns, pytest.mark.timing("a lab within its time limits")]

SCALE = 16_000
"""50 Mb/s, half a second for an all_reduce of 2 MB: the fiber is what an operation waits for, not the one CPU."""
COUNT = 500_001
PATIENCE_S = 6.0
HEALED_OFF_S = 0.4
"""That CPU is away for tens of milliseconds at a time."""

OF_QDISCS = {"burst-loss", "reorder", "duplicate", "corruption", "mtu-black-hole", "latency-step"}
"""Faults that are made of netem, and of the filters before it, in ways of its own."""


@pytest.fixture(scope="module")
def bench(state_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Uncertified is allowed: one noisy CPU may push a median out of tolerance."""
    name, topology = oracle.unused_name(), testbed.load("metro-40km", {"scale": SCALE})
    with (
        testbed.up(topology, name=name, agents=False, emulator="netem", allow_uncertified=True) as lab,
        bench_in(lab, tmp_path_factory.mktemp("validate")) as found,
    ):
        yield found
    assert oracle.left_behind(name, state_folder) == []


def test_the_ring_is_right_its_bytes_are_a_rings_and_it_comes_through_a_cut_and_loss(bench: Bench) -> None:
    """The contract in small, by programs that are started once: this machine has one CPU for four ranks."""
    answered: list[CaseResult] = []
    found: list[Cell] = []
    with session_of(bench, "ring", timeout_s=PATIENCE_S) as session:
        correctness.run_cases(session, catalogue(bench, 40), answered.append)
        assert {it.operation for it in answered} == set(cases.OPERATIONS)
        assert [it for it in answered if it.state != "right"] == []
        performance = cases.performance("quick", bench.sites, session.offers)
        series = next(it for it in performance if it.do == "all_reduce" and it.size == 1 << 20)
        with bench.wire.counted() as crossing:
            assert session.perform([(series.calls[0], session.world)]).done
        judge_crossing(crossing, series.size)
        fault_cells.run_trials(session, bench.wire, bench.faults, cut_and_loss(bench, COUNT), found.append)
    judge_cut_and_loss(found, HEALED_OFF_S)


@pytest.mark.thorough
class TestValidateOnNetem(ValidateContract):
    timeout_s = PATIENCE_S
    healed_off_s = HEALED_OFF_S


@pytest.mark.thorough
def test_the_ring_comes_through_what_netem_does_to_packets_or_tells_of_it(bench: Bench) -> None:
    found: list[Cell] = []
    with session_of(bench, "ring", timeout_s=PATIENCE_S) as session:
        session.ready()
        full = fault_matrix.trials("full", bench.topology, session.offers)
        fault_cells.run_trials(
            session, bench.wire, bench.faults, [it for it in full if it.fault.name in OF_QDISCS], found.append
        )
    assert {it.fault for it in found} == OF_QDISCS
    assert {it.fault: it.outcome for it in found if it.outcome not in fault_matrix.FAULTS[it.fault].holds} == {}
