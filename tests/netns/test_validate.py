"""Libraries put to the test in a lab: the reference ring is right, each of its broken ones is caught in its own way."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import oracle
import pytest

import testbed
from testbed.core.conformance import cases, trials
from testbed.core.conformance.result import CaseResult, Cell
from testbed.core.conformance.wire import BYPASS
from testbed.core.topology.model import Topology
from testbed.host import libraries
from testbed.lab import state
from testbed.lab.validate import correctness, faults
from testbed.lab.validate.crew import Crew
from testbed.lab.validate.examine import Bench, Examination
from testbed.lab.validate.inject import FiberFaults
from testbed.lab.validate.session import Session
from testbed.lab.validate.wire import Wire, certified

pytestmark = [pytest.mark.netns]

TIMEOUT_S = 2.0
EVERY = 5
"""One case in so many of the catalogue: all operations, types and groups are among them."""

PROGRAM = "testbed_agents.libraries.ring"


@pytest.fixture(scope="module")
def bench(lab: testbed.Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = state.folder(lab.name)
    links = certified(lab.topology, lab.certificate)
    with Wire(folder, lab.topology) as wire, FiberFaults(folder, lab.topology) as fibers:
        place = tmp_path_factory.mktemp("validate")
        yield Bench(folder, lab.topology, links, wire, fibers, place, "quick", ("speed",))


@contextlib.contextmanager
def session_of(bench: Bench, name: str, timeout_s: float = TIMEOUT_S, slack_s: float = 10.0) -> Iterator[Session]:
    crew = Crew(bench.lab, bench.topology, libraries.find(name), bench.folder / name)
    try:
        yield Session(crew, timeout_s=timeout_s, slack_s=slack_s)
    finally:
        crew.leave()
    assert programs() == []


def programs() -> list[int]:
    """Rank programs that were started under this module's state."""
    mine = os.environ["TESTBED_STATE"]
    return [pid for pid, words, has in oracle.processes() if PROGRAM in words and has.get("TESTBED_STATE") == mine]


def answers(bench: Bench, name: str, chosen: Sequence[cases.Case], **bounds: float) -> list[CaseResult]:
    found: list[CaseResult] = []
    with session_of(bench, name, **bounds) as session:
        correctness.examine(session, chosen, found.append)
    return found


def catalogue(bench: Bench, do: str = "", every: int = EVERY) -> tuple[cases.Case, ...]:
    """Some of the quick one, without the largest vectors."""
    whole = cases.correctness("quick", bench.sites)
    return tuple(
        it for it in whole[::every]
        if all(one.count < 1_000_000 and do in ("", one.do) for one in it.operations)
    )  # fmt: skip


def trial(topology: Topology, name: str, **changes: Any) -> trials.Trial:
    """A quick one: with so short a timeout that everything is over soon."""
    offers = {"all_reduce": {"types": ["int64"], "reductions": ["sum"]}}
    found = next(it for it in trials.trials("quick", topology, offers) if it.fault.name == name)
    shorter = {
        "timeout_s": TIMEOUT_S,
        "error_by_s": 1.5 * TIMEOUT_S,
        "outer_s": 4.0 * TIMEOUT_S,
        "operation": dataclasses.replace(found.operation, count=1_000_001),
    }
    return dataclasses.replace(found, **{**shorter, **changes})


def cells(bench: Bench, name: str, wanted: Sequence[trials.Trial]) -> list[Cell]:
    found: list[Cell] = []
    with session_of(bench, name) as session:
        faults.examine(session, bench.wire, bench.faults, wanted, found.append)
    return found


# ---- the right one


def test_the_right_ring_is_right(bench: Bench) -> None:
    chosen = catalogue(bench)
    found = answers(bench, "ring", chosen)
    assert len(found) == sum(len(it.operations) for it in chosen)
    assert [it for it in found if it.state != "right"] == []
    assert {it.operation for it in found} == set(cases.OPERATIONS)
    assert list((bench.folder / "ring" / "outputs").iterdir()) == []


def test_its_bytes_are_those_of_a_ring_and_it_is_not_faster_than_light(bench: Bench) -> None:
    (speed,) = speeds(bench, "ring")
    ring = 2 * 3 / 4 * speed.size
    assert {name: count for name, count in speed.crossing.items() if count > 0.01 * ring} == {
        "north:west": pytest.approx(ring, rel=0.05),
        "north:east": pytest.approx(ring, rel=0.05),
    }
    assert "flat ring" in speed.pattern
    assert 0.05 < speed.efficiency < 1.0
    assert speed.median_s > speed.bound_s > speed.size / 100e6


def speeds(bench: Bench, name: str) -> list[Any]:
    """Of one all_reduce of a megabyte."""
    examination = Examination(bench, libraries.find(name), lambda text: None)
    whole = cases.performance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cases, "performance",
            lambda *a: tuple(it for it in whole(*a) if it.do == "all_reduce" and it.size == 1 << 20),
        )  # fmt: skip
        examination.run()
    result = examination.result()
    assert not result.why or name != "ring", result.why
    return list(result.speeds)


def test_a_killed_rank_is_told_of_twice_alike_and_the_others_go_on(bench: Bench) -> None:
    bounds = {"timeout_s": 6.0, "error_by_s": 9.0, "outer_s": 15.0}
    twice = [trial(bench.topology, "rank-killed", **bounds), trial(bench.topology, "rank-killed", **bounds)]
    twice[1] = dataclasses.replace(twice[1], operation=dataclasses.replace(twice[1].operation, call=999_999))
    found = cells(bench, "ring", twice)
    assert [it.outcome for it in found] == ["error within its bound"] * 2
    for it in found:
        assert it.share is not None and 0.3 <= it.share < 0.8
        assert it.rebuilt is True and it.rebuild_s is not None
        assert len(it.errors) == 3 and it.error_s is not None and it.error_s < 9.0


def test_a_cut_that_is_healed_in_time_is_waited_for(bench: Bench) -> None:
    asked = trial(bench.topology, "cut-short", timeout_s=6.0, error_by_s=9.0, outer_s=15.0)
    asked = dataclasses.replace(asked, injections=tuple(dataclasses.replace(it, for_s=0.5) for it in asked.injections))
    (found,) = cells(bench, "ring", [asked])
    assert found.outcome == "right after healing", found
    assert found.healed_s == pytest.approx(0.5, abs=0.2)
    assert found.done_s is not None and found.done_s > 0.5
    assert found.rebuilt is None  # nothing went wrong


# ---- those that are wrong on purpose


@pytest.mark.parametrize(
    ("how", "do"),
    [
        ("wrong-sum", "all_reduce"),
        pytest.param("lost-byte", "broadcast", marks=pytest.mark.thorough),
        pytest.param("stale", "all_reduce", marks=pytest.mark.thorough),
        pytest.param("swapped", "all_to_all", marks=pytest.mark.thorough),
        ("different-bits", "all_reduce"),
    ],
)
def test_a_wrong_answer_is_caught(bench: Bench, how: str, do: str) -> None:
    found = answers(bench, f"ring-{how}", catalogue(bench, do, every=3))
    wrong = [it for it in found if it.state == "wrong"]
    assert wrong, found
    assert wrong[0].detail
    assert {it.state for it in found} <= {"right", "wrong"}


def test_a_barrier_that_waits_for_nobody_is_caught_whoever_comes_last(bench: Bench) -> None:
    asked = catalogue(bench, "barrier", every=1)
    assert len(asked) == 4 + 2 + 2  # ranks of the world, of each site, and the first ones of both sites
    assert {it.state for it in answers(bench, "ring", asked)} == {"right"}
    found = answers(bench, "ring-no-barrier", asked)
    assert {it.state for it in found} == {"wrong"}
    assert found[2].group == "world, rank 2 last" and "before rank 2 came" in found[2].detail


@pytest.mark.thorough
def test_a_hang_is_ended_and_the_rest_is_still_asked(bench: Bench) -> None:
    whole = cases.correctness("quick", bench.sites)
    chosen = [it for it in whole if it.operations[0].do == "all_reduce" and it.operations[0].type == "int64"][:4]
    assert [it.operations[0].count for it in chosen] == [0, 1, 3, 1023]
    asked = [*chosen, *catalogue(bench, "barrier", every=1)]
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
        pytest.param("no-timeout", "hang", marks=pytest.mark.thorough),
        pytest.param("late-error", "error late", marks=pytest.mark.thorough),
        pytest.param("crash", "crash", marks=pytest.mark.thorough),
        pytest.param("no-rebuild", "error within its bound", marks=pytest.mark.thorough),
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
            wanted = trials.trials("quick", bench.topology, session.offers)
            found: list[Cell] = []
            faults.examine(session, bench.wire, bench.faults, wanted, found.append)
        seen.append([(it.fault, it.outcome, it.rebuilt) for it in found])
    assert seen[0] == seen[1]


@pytest.mark.thorough
def test_the_right_ring_raises_no_false_alarm_in_a_hundred_runs(bench: Bench) -> None:
    chosen = catalogue(bench, every=EVERY * 4)
    with session_of(bench, "ring") as session:
        for turn in range(100):
            found: list[CaseResult] = []
            again = [
                cases.Case(tuple(dataclasses.replace(one, call=one.call + 1000 * turn) for one in it.operations))
                for it in chosen
            ]
            correctness.examine(session, again, found.append)
            assert {it.state for it in found} == {"right"}, turn


# ---- the command


def crossed(lab: str) -> int:
    """Bytes that have come to a gateway over the first fiber."""
    (link,) = oracle.ip(oracle.netns(lab, "east-gw"), "-s", "link", "show", "dev", "north")
    return int(link["stats64"]["rx"]["bytes"])


@pytest.fixture
def validating(lab_name: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "testbed.cli.main", "validate", "ring", "--only", "correctness"]
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
    validating: subprocess.Popen[bytes], tmp_path: Path, lab_name: str, state_folder: Path
) -> None:
    validating.send_signal(signal.SIGINT)
    assert validating.wait(30.0) == 130
    assert programs() == []
    assert oracle.left_behind(lab_name, state_folder) == []
    (path,) = tmp_path.glob("validate-metro-40km-*/validate.json")
    found = json.loads(path.read_text())
    assert found["interrupted"] is True and found["verdict"] == "unknown"
    assert any(it["state"] == "right" for it in found["libraries"][0]["cases"])
    assert "it was interrupted" in found["libraries"][0]["why"]


def test_after_sigkill_down_leaves_nothing(
    validating: subprocess.Popen[bytes], lab_name: str, state_folder: Path, command: oracle.Command
) -> None:
    os.kill(validating.pid, signal.SIGKILL)
    validating.wait(10.0)
    oracle.until(lambda: programs() == [], 10.0, "rank programs end with whoever started them")
    assert command("down", lab_name).returncode == 0
    assert oracle.left_behind(lab_name, state_folder) == []
