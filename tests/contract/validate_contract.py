"""Contract of `testbed validate` with the reference ring, for every emulator. Subclass it and provide ``bench``.

Also has helpers of validation tests: a session with a library, a part of the catalogue, cells of the fault matrix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from oracles import oracle

import testbed
from testbed.core.topology.model import Topology
from testbed.core.validation import cases, fault_matrix
from testbed.core.validation.result import CaseResult, Cell, Speed
from testbed.host import collective_libraries, lab_folder
from testbed.lab.validation import correctness, fault_cells
from testbed.lab.validation.fault_injection import FiberFaults
from testbed.lab.validation.library_session import Session
from testbed.lab.validation.library_validation import Bench, LibraryValidation
from testbed.lab.validation.traffic_meter import Wire, certified
from testbed.lab.validation.worker_set import WorkerSet

TIMEOUT_S = 2.0
COUNT = 1_000_001
"""Elements of the all_reduce under a fault: 8 MB."""
PATIENT: dict[str, Any] = {"timeout_s": 6.0, "error_by_s": 9.0, "outer_s": 15.0}
"""Bounds of a trial that even a slow machine does not exceed."""

PROGRAMS = {"testbed_agents.adapters.ring", "testbed_agents.adapters.broken"}


@contextlib.contextmanager
def bench_in(lab: testbed.Lab, folder: Path) -> Iterator[Bench]:
    """Yield what the validations in ``lab`` share, with files in ``folder``; faults are healed at the end."""
    place = lab_folder.folder(lab.name)
    links = certified(lab.topology, lab.certificate)
    with Wire(place, lab.topology) as wire, FiberFaults(place, lab.topology) as fibers:
        yield Bench(place, lab.topology, links, wire, fibers, folder, "quick", ("speed",))


@contextlib.contextmanager
def session_of(bench: Bench, name: str, timeout_s: float = TIMEOUT_S, slack_s: float = 10.0) -> Iterator[Session]:
    workers = WorkerSet(bench.lab, bench.topology, collective_libraries.find(name), bench.folder / name)
    try:
        yield Session(workers, timeout_s=timeout_s, slack_s=slack_s)
    finally:
        workers.leave()
    assert programs() == []


def programs() -> list[int]:
    """Return the rank programs that were started under this module's state."""
    mine = os.environ["TESTBED_STATE"]
    return [
        pid
        for pid, words, has in oracle.processes()
        if PROGRAMS.intersection(words) and has.get("TESTBED_STATE") == mine
    ]


def answers(bench: Bench, name: str, chosen: Sequence[cases.Case], **bounds: float) -> list[CaseResult]:
    found: list[CaseResult] = []
    with session_of(bench, name, **bounds) as session:
        correctness.run_cases(session, chosen, found.append)
    return found


def catalogue(bench: Bench, every: int, do: str = "") -> tuple[cases.Case, ...]:
    """Return one case in ``every`` of the quick catalogue, without the largest vectors."""
    whole = cases.correctness("quick", bench.sites)
    return tuple(
        it for it in whole[::every]
        if all(one.count < 1_000_000 and do in ("", one.do) for one in it.operations)
    )  # fmt: skip


def speeds(bench: Bench, name: str) -> list[Speed]:
    """Measure one all_reduce of a megabyte."""
    validation = LibraryValidation(bench, collective_libraries.find(name), lambda text: None)
    whole = cases.performance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cases, "performance",
            lambda *a: tuple(it for it in whole(*a) if it.do == "all_reduce" and it.size == 1 << 20),
        )  # fmt: skip
        validation.run()
    result = validation.result()
    assert not result.why or name != "ring", result.why
    return list(result.speeds)


def trial(topology: Topology, name: str, count: int = COUNT, **changes: Any) -> fault_matrix.Trial:
    """Return a trial with a short timeout."""
    offers = {"all_reduce": {"types": ["int64"], "reductions": ["sum"]}}
    found = next(it for it in fault_matrix.trials("quick", topology, offers) if it.fault.name == name)
    shorter = {
        "timeout_s": TIMEOUT_S,
        "error_by_s": 1.5 * TIMEOUT_S,
        "outer_s": 4.0 * TIMEOUT_S,
        "operation": dataclasses.replace(found.operation, count=count),
    }
    return dataclasses.replace(found, **{**shorter, **changes})


def cut_and_loss(bench: Bench, count: int = COUNT) -> list[fault_matrix.Trial]:
    """Trials of an all_reduce of ``count`` elements: a cut of half a second, and one packet in a hundred lost."""
    cut, loss = (trial(bench.topology, name, count, **PATIENT) for name in ("cut-short", "loss-1pct"))
    return [
        dataclasses.replace(cut, injections=tuple(dataclasses.replace(it, for_s=0.5) for it in cut.injections)),
        loss,
    ]


def judge_crossing(crossing: Mapping[str, int], size: int) -> None:
    """Check an all_reduce of ``size`` bytes by four ranks: each link of a ring carries 2 (P - 1) / P of it (Patarasuk
    and Yuan, 2009), and two of them cross the fiber, one each way. The other fiber carries no data."""
    ring = 2 * 3 / 4 * size
    assert {name: count for name, count in crossing.items() if count > 0.01 * ring} == {
        "north:west": pytest.approx(ring, rel=0.05),
        "north:east": pytest.approx(ring, rel=0.05),
    }


def judge_cut_and_loss(found: Sequence[Cell], off_s: float) -> None:
    """Check the cells of :func:`cut_and_loss`; ``off_s`` is the tolerance of the cut's duration."""
    waited, slow = found
    assert waited.outcome == "right after healing", waited
    assert waited.healed_s == pytest.approx(0.5, abs=off_s)
    assert waited.done_s is not None and waited.done_s > 0.5
    assert waited.rebuilt is None  # no error occurred
    assert slow.outcome == "right", slow
    assert slow.share is not None


def cells(bench: Bench, name: str, wanted: Sequence[fault_matrix.Trial], **bounds: float) -> list[Cell]:
    found: list[Cell] = []
    with session_of(bench, name, **bounds) as session:
        fault_cells.run_trials(session, bench.wire, bench.faults, wanted, found.append)
    return found


class ValidateContract:
    every = 5
    """Select one in this many cases of the catalogue, which includes all operations, types and groups."""
    timeout_s = TIMEOUT_S
    healed_off_s = 0.2

    def test_the_right_ring_is_right(self, bench: Bench) -> None:
        chosen = catalogue(bench, self.every)
        found = answers(bench, "ring", chosen, timeout_s=self.timeout_s)
        assert len(found) == sum(len(it.operations) for it in chosen)
        assert [it for it in found if it.state != "right"] == []
        assert {it.operation for it in found} == set(cases.OPERATIONS)
        assert list((bench.folder / "ring" / "outputs").iterdir()) == []

    def test_its_bytes_are_those_of_a_ring_and_it_is_not_faster_than_light(self, bench: Bench) -> None:
        (speed,) = speeds(bench, "ring")
        judge_crossing(speed.crossing, speed.size)
        assert "flat ring" in speed.pattern
        assert 0.05 < speed.efficiency < 1.0
        assert speed.median_s > speed.bound_s > speed.size / 100e6

    def test_a_cut_that_is_healed_in_time_is_waited_for_and_loss_is_made_good(self, bench: Bench) -> None:
        judge_cut_and_loss(cells(bench, "ring", cut_and_loss(bench), timeout_s=self.timeout_s), self.healed_off_s)
