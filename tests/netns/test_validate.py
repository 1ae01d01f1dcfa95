"""Validation of libraries in a lab: the reference ring passes, each broken ring fails in its own way."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import host_stalls
import pytest
from builders.commands import Command, argv_of, check
from builders.conditions import ALONE, thorough
from builders.json_files import read_json
from builders.labs import Lab, OwnLab
from contract.validate_contract import (
    PATIENT,
    ValidateContract,
    answers,
    bench_in,
    catalogue,
    cells,
    programs,
    session_of,
    speeds,
    trial,
)
from oracles import oracle

import testbed
from testbed.core.validation import cases, fault_matrix
from testbed.core.validation.result import CaseResult, Cell
from testbed.core.validation.traffic import BYPASS
from testbed.lab.validation import correctness, fault_cells
from testbed.lab.validation.library_validation import Bench

pytestmark = ALONE


@pytest.fixture(scope="module")
def bench(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(lab, tmp_path_factory.mktemp("validate")) as found:
        yield found


# ---- the right one


class TestValidateOnFiberd(ValidateContract):
    pass


def test_a_killed_rank_is_told_of_twice_alike_and_the_others_go_on(bench: Bench) -> None:
    twice = [trial(bench.topology, "rank-killed", **PATIENT), trial(bench.topology, "rank-killed", **PATIENT)]
    twice[1] = dataclasses.replace(twice[1], operation=dataclasses.replace(twice[1].operation, call=999_999))
    began = time.monotonic()
    found = cells(bench, "ring", twice)
    stalled_s = host_stalls.stalled_s(began, time.monotonic())
    assert [it.outcome for it in found] == ["error within its bound"] * 2
    for it in found:
        assert it.share is not None and 0.3 <= it.share < 0.8
        assert it.rebuilt is True and it.rebuild_s is not None
        assert len(it.errors) == 3 and it.error_s is not None and it.error_s < 9.0 + stalled_s


# ---- those that are wrong on purpose


@pytest.mark.parametrize(
    ("how", "do"),
    [
        ("wrong-sum", "all_reduce"),
        thorough("lost-byte", "broadcast"),
        thorough("stale", "all_reduce"),
        thorough("swapped", "all_to_all"),
        ("different-bits", "all_reduce"),
    ],
)
def test_a_wrong_answer_is_caught(bench: Bench, how: str, do: str) -> None:
    found = answers(bench, f"ring-{how}", catalogue(bench, 3, do))
    wrong = [it for it in found if it.state == "wrong"]
    assert wrong, found
    assert wrong[0].detail
    assert {it.state for it in found} <= {"right", "wrong"}


def test_a_barrier_that_waits_for_nobody_is_caught_whoever_comes_last(bench: Bench) -> None:
    asked = catalogue(bench, 1, "barrier")
    assert len(asked) == 4 + 2 + 2  # ranks of the world, of each site, and the first ones of both sites
    assert {it.state for it in answers(bench, "ring", asked)} == {"right"}
    found = answers(bench, "ring-no-barrier", asked)
    assert {it.state for it in found} == {"wrong"}
    assert found[2].group == "world, rank 2 last" and "before rank 2 entered" in found[2].detail


@pytest.mark.thorough
def test_a_hang_is_ended_and_the_rest_is_still_asked(bench: Bench) -> None:
    whole = cases.correctness("quick", bench.sites)
    chosen = [it for it in whole if it.operations[0].do == "all_reduce" and it.operations[0].type == "int64"][:4]
    assert [it.operations[0].count for it in chosen] == [0, 1, 3, 1023]
    asked = [*chosen, *catalogue(bench, 1, "barrier")]
    found = answers(bench, "ring-hang", asked, timeout_s=1.0, slack_s=0.0)
    assert [it.state for it in found[:4]] == ["right", "right", "hang", "hang"]
    assert {it.state for it in found[4:]} == {"right"}


def test_a_way_around_the_fiber_is_caught_by_its_bytes(bench: Bench) -> None:
    (speed,) = speeds(bench, "ring-bypass")
    assert speed.pattern == BYPASS
    assert sum(speed.crossing.values()) < 0.1 * speed.least


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("swallowed-error", "wrong result"),
        thorough("no-timeout", "hang"),
        thorough("late-error", "error late"),
        thorough("crash", "crash"),
        thorough("no-rebuild", "error within its bound"),
    ],
)
def test_what_it_does_wrong_when_the_fiber_is_cut_is_caught(bench: Bench, how: str, outcome: str) -> None:
    (found,) = cells(bench, f"ring-{how}", [trial(bench.topology, "cut-long")])
    assert found.outcome == outcome, found
    assert found.rebuilt is not (how == "no-rebuild")


@pytest.mark.thorough
def test_the_quick_matrix_ends_twice_alike(bench: Bench) -> None:
    seen = []
    for _ in range(2):
        with session_of(bench, "ring") as session:
            session.ready()
            wanted = fault_matrix.trials("quick", bench.topology, session.offers)
            found: list[Cell] = []
            fault_cells.run_trials(session, bench.wire, bench.faults, wanted, found.append)
        seen.append([(it.fault, it.outcome, it.rebuilt) for it in found])
    assert seen[0] == seen[1]


@pytest.mark.thorough
def test_the_right_ring_raises_no_false_alarm_in_a_hundred_runs(bench: Bench) -> None:
    chosen = catalogue(bench, 20)
    with session_of(bench, "ring") as session:
        for turn in range(100):
            found: list[CaseResult] = []
            again = [
                cases.Case(tuple(dataclasses.replace(one, call=one.call + 1000 * turn) for one in it.operations))
                for it in chosen
            ]
            correctness.run_cases(session, again, found.append)
            assert {it.state for it in found} == {"right"}, turn


# ---- the command


def crossed(lab: str) -> int:
    """Bytes that have come to a gateway over the first fiber."""
    (link,) = oracle.ip(oracle.netns(lab, "east-gw"), "-s", "link", "show", "dev", "north")
    return int(link["stats64"]["rx"]["bytes"])


@pytest.fixture
def validating(lab_name: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = argv_of("validate ring --only correctness")
    argv += ["--driver", "netns", "--allow-uncertified", "--name", lab_name, "--runs", str(tmp_path)]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        oracle.until(lambda: len(programs()) == 4, 60.0, "rank programs run")
        before = crossed(lab_name)
        oracle.until(lambda: crossed(lab_name) > before + 100_000, 60.0, "they work")
        yield child
    finally:
        child.kill()
        child.wait()


def test_ctrl_c_keeps_what_was_seen_and_takes_the_lab_down(
    validating: subprocess.Popen[bytes], tmp_path: Path, own: OwnLab
) -> None:
    validating.send_signal(signal.SIGINT)
    assert validating.wait(30.0) == 130
    assert programs() == []
    assert own.left() == []
    (path,) = tmp_path.glob("validate-metro-40km-*/validate.json")
    assert [it.state for it in testbed.runs(tmp_path)] == ["interrupted"]
    found = read_json(path)
    assert found["interrupted"] is True and found["verdict"] == "unknown"
    assert any(it["state"] == "right" for it in found["libraries"][0]["cases"])
    assert "the validation was interrupted" in found["libraries"][0]["why"]


def test_after_sigkill_down_leaves_nothing(
    validating: subprocess.Popen[bytes], own: OwnLab, command: Command, tmp_path: Path
) -> None:
    assert [(it.state, it.pid) for it in testbed.runs(tmp_path)] == [("running", validating.pid)]
    os.kill(validating.pid, signal.SIGKILL)
    validating.wait(10.0)
    assert [(it.state, it.pid) for it in testbed.runs(tmp_path)] == [("lost", None)]
    oracle.until(lambda: programs() == [], 10.0, "rank programs end with whoever started them")
    check(command(f"down {own}"))
    assert own.left() == []


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["emulator", "keeper"])
def test_when_the_lab_dies_it_is_not_the_librarys_fault(
    validating: subprocess.Popen[bytes], tmp_path: Path, own: OwnLab, who: str
) -> None:
    (doomed,) = oracle.emulator_pids(own) if who == "emulator" else own.keepers()
    os.kill(doomed, signal.SIGKILL)
    assert validating.wait(90.0) == 3
    (path,) = tmp_path.glob("validate-metro-40km-*/validate.json")
    (library,) = read_json(path)["libraries"]
    assert library["verdict"] == "unknown"
    (why,) = library["why"]
    assert why == "the emulator died, so all fibers are dark" if who == "emulator" else "keeper" in why
    assert {it["state"] for it in library["cases"]} == {"right"}
    assert own.left() == []
