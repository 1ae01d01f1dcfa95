"""Outcomes of faults, and verdicts: exactly one each, and the worst wins."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.validation.fault_matrix import FAULTS, Injection, Trial
from testbed.core.validation.operation import Operation
from testbed.core.validation.outcome import Evidence, RankEnd, cell, outcome
from testbed.core.validation.output_judge import Judgement
from testbed.core.validation.result import CaseResult, CaseState, Cell, LibraryResult, Outcome, Speed, Verdict
from testbed.core.validation.verdict import exit_code, of_library, of_validation, too_fast

TRIAL = Trial(
    fault=FAULTS["cut-long"],
    injections=(Injection("cut", "north"),),
    operation=Operation("all_reduce", 200_000),
    share=0.3,
    timeout_s=6.0,
    error_by_s=9.0,
    outer_s=15.0,
)
RIGHT = Judgement("right")
WRONG = Judgement("wrong", "rank 2: 1 of 5 elements are wrong", 2)


def _done(*times: float) -> list[RankEnd]:
    return [RankEnd(rank, "done", at_s) for rank, at_s in enumerate(times)]


def _evidence(ends: list[RankEnd], judgement: Judgement | None = RIGHT, healed_s: float | None = None) -> Evidence:
    return Evidence(ends, judgement, 0.31, healed_s)


ERROR, LATE = RankEnd(1, "error", 6.1, "timed out"), RankEnd(1, "error", 9.5, "timed out")
SILENT, DIED = RankEnd(1, "silent"), RankEnd(1, "died", 0.2, "signal 11")
REFUSED = RankEnd(1, "unsupported", None, "no int64")


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence(failed="the emulator died"), "not run"),
        (Evidence(), "not run"),
        (_evidence([REFUSED]), "unsupported"),
        (_evidence(_done(1, 2), WRONG), "wrong result"),
        (Evidence(_done(-2, -1), WRONG, 1.0), "wrong result"),
        (_evidence([*_done(1), ERROR], WRONG), "wrong result"),
        (_evidence([*_done(1), SILENT], WRONG), "wrong result"),
        (Evidence(_done(1, 2), RIGHT, None), "fault not exercised"),
        (_evidence(_done(-0.2, -0.1)), "fault not exercised"),
        (_evidence(_done(-0.2, 0.1)), "right"),
        (_evidence([RankEnd(0, "error", -0.1), RankEnd(1, "error", 0.2)], None), "fault not exercised"),
        (_evidence([*_done(1), SILENT]), "hang"),
        (_evidence([RankEnd(0, "error", 6.0), SILENT], None), "hang"),
        (_evidence([RankEnd(0, "died", 0.1), SILENT], None), "hang"),
        (_evidence([*_done(1), DIED]), "crash"),
        (_evidence([RankEnd(0, "error", 6.0), DIED], None), "crash"),
        (_evidence([RankEnd(0, "error", 6.0), LATE], None), "error late"),
        (_evidence([*_done(1), LATE]), "error late"),
        (_evidence([RankEnd(0, "error", None), ERROR], None), "error late"),
        (_evidence([RankEnd(0, "error", 6.0), ERROR], None), "error within its bound"),
        (_evidence([*_done(1), ERROR]), "error within its bound"),
        (_evidence(_done(1.0, 3.1), healed_s=2.0), "right after healing"),
        (_evidence(_done(1.0, 1.9), healed_s=2.0), "right"),
        (_evidence(_done(1.0, 1.9)), "right"),
        (_evidence(_done(1.0, 1.9), None), "not run"),
    ],
)
def test_outcomes(evidence: Evidence, expected: Outcome) -> None:
    assert outcome(TRIAL, evidence)[0] == expected


@pytest.mark.parametrize(("uncertainty_s", "expected"), [(0.0, "error late"), (0.4, "error late"), (0.6, "not run")])
def test_an_error_late_by_less_than_stalls_may_account_for_is_unknown(uncertainty_s: float, expected: Outcome) -> None:
    """9.5 s, of at most 9 s."""
    late = dataclasses.replace(_evidence([*_done(1), LATE]), uncertainty_s=uncertainty_s)
    assert outcome(TRIAL, late)[0] == expected
    untimed = dataclasses.replace(_evidence([RankEnd(0, "error", None), LATE], None), uncertainty_s=uncertainty_s)
    assert outcome(TRIAL, untimed)[0] == "error late"
    wrong = dataclasses.replace(_evidence([*_done(1), LATE], WRONG), uncertainty_s=uncertainty_s)
    assert outcome(TRIAL, wrong)[0] == "wrong result"


def test_of_a_rank_that_the_fault_ended_nothing_is_expected() -> None:
    killed = dataclasses.replace(TRIAL, fault=FAULTS["rank-killed"], affected=frozenset({3}))
    errors = [RankEnd(rank, "error", 0.3, "connection closed") for rank in range(3)]
    assert outcome(killed, _evidence([*errors, RankEnd(3, "died", 0.0)], None))[0] == "error within its bound"
    assert outcome(killed, _evidence([*errors, RankEnd(3, "silent")], None))[0] == "error within its bound"
    assert (
        outcome(killed, _evidence([*errors[:2], RankEnd(2, "died", 0.1), RankEnd(3, "died", 0.0)], None))[0] == "crash"
    )
    # One that was stopped and goes on with a wrong answer is told nothing either.
    stopped = dataclasses.replace(killed, fault=FAULTS["rank-stopped"])
    assert outcome(stopped, _evidence([*errors, RankEnd(3, "done", 12.0)], WRONG))[0] == "wrong result"


def test_the_cell_has_the_times() -> None:
    made = cell(
        TRIAL, Evidence([RankEnd(0, "error", 6.0, "a"), RankEnd(1, "error", 6.4, "b")], None, 0.31, None, True, 0.8)
    )
    assert made == Cell(
        fault="cut-long",
        outcome="error within its bound",
        detail="a",
        share=0.31,
        error_s=6.4,
        bound_s=9.0,
        rebuilt=True,
        rebuild_s=0.8,
        errors=("rank 0: a", "rank 1: b"),
    )
    done = cell(TRIAL, _evidence(_done(1.0, 3.1), healed_s=2.0))
    assert (done.done_s, done.error_s, done.healed_s) == (3.1, None, 2.0)
    hung = cell(TRIAL, _evidence([*_done(1.0), SILENT], healed_s=None))
    assert hung.done_s is None and "rank 1 was still in the operation 15 s" in hung.detail
    assert "expected within 9 s" in cell(TRIAL, _evidence([LATE], None)).detail


STATES = st.sampled_from(["done", "error", "unsupported", "silent", "died"])


@given(
    ends=st.lists(st.tuples(STATES, st.none() | st.floats(-1, 40)), max_size=4),
    judgement=st.sampled_from([RIGHT, WRONG, None]),
    share=st.none() | st.floats(0, 1),
    healed_s=st.none() | st.floats(0, 10),
    affected=st.frozensets(st.integers(0, 3)),
)
def test_every_evidence_has_an_outcome(
    ends: list[tuple[str, float | None]],
    judgement: Judgement | None,
    share: float | None,
    healed_s: float | None,
    affected: frozenset[int],
) -> None:
    trial = dataclasses.replace(TRIAL, affected=affected)
    made = [RankEnd(rank, state, at_s) for rank, (state, at_s) in enumerate(ends)]  # type: ignore[arg-type]
    found, _ = outcome(trial, Evidence(made, judgement, share, healed_s))
    if judgement is WRONG and made and all(it.state != "unsupported" for it in made):
        assert found == "wrong result"
    if found in ("right", "right after healing"):
        assert judgement is RIGHT
        assert all(it.state == "done" for it in made if it.rank not in affected)
    cell(trial, Evidence(made, judgement, share, healed_s))


# ---- verdicts


def _case(state: CaseState) -> CaseResult:
    return CaseResult("all_reduce", "world", "float32", 1000, "sum", state, "its detail")


def _speed(bound_s: float, median_s: float, high_s: float | None = None, pattern: str = "") -> Speed:
    high = median_s if high_s is None else high_s
    return Speed(
        operation="all_reduce",
        size=1 << 20,
        times_s=(median_s,) * 6,
        median_s=median_s,
        low_s=median_s,
        high_s=high,
        algorithm_rate=1.0,
        bus_rate=1.0,
        bound_s=bound_s,
        bound_all_s=bound_s,
        efficiency=bound_s / median_s,
        one_way_delays=2.0,
        crossing={"north:east": 10},
        least=1 << 20,
        pattern=pattern,
    )


CALM, GOOD = _speed(0.010, 0.012), _case("right")


@pytest.mark.parametrize(
    ("cases", "speeds", "cells", "expected", "said"),
    [
        ([GOOD], [CALM], [Cell("cut-long", "error within its bound")], "holds", ""),
        ([GOOD, _case("unsupported")], [], [], "holds", ""),
        ([GOOD, _case("wrong")], [CALM], [], "does not hold", "wrong answer"),
        ([GOOD, _case("error")], [CALM], [], "does not hold", "failed on healthy fibers"),
        ([GOOD, _case("hang"), _case("not run")], [CALM], [], "does not hold", "hung on healthy fibers"),
        ([GOOD, _case("crash")], [], [], "does not hold", "a rank died"),
        ([GOOD, _case("not run")], [CALM], [], "unknown", "not run"),
        ([GOOD], [_speed(0.010, 0.009)], [], "does not hold", "below the physical bound"),
        ([GOOD], [_speed(0.010, 0.0097)], [], "holds", ""),
        ([GOOD], [_speed(0.010, 0.009, 0.011)], [], "holds", ""),
        ([GOOD], [_speed(0.010, 0.012, pattern="bypass")], [], "does not hold", "bypassed the fibers"),
        ([GOOD], [], [Cell("cut-long", "hang")], "does not hold", "cut-long: hang"),
        ([GOOD], [], [Cell("cut-long", "error late")], "does not hold", "error late"),
        ([GOOD], [], [Cell("cut-short", "error within its bound")], "does not hold", "accepted: right"),
        ([GOOD], [], [Cell("rank-killed", "crash")], "does not hold", "crash"),
        ([GOOD], [], [Cell("failover", "wrong result", "rank 1 …")], "does not hold", "and no error"),
        ([GOOD], [], [Cell("cut-long", "fault not exercised")], "unknown", "not exercised"),
        ([GOOD], [], [Cell("cut-long", "not run")], "unknown", "not run"),
        ([GOOD], [], [Cell("cut-long", "unsupported")], "holds", ""),
        ([GOOD], [], [Cell("somebody's own", "error within its bound")], "holds", ""),
        ([GOOD], [], [Cell("somebody's own", "hang")], "does not hold", "hang"),
        ([], [], [], "unknown", "nothing that it offers was tried"),
        ([_case("unsupported")], [], [], "unknown", "nothing that it offers was tried"),
    ],
)
def test_verdicts_on_a_library(
    cases: list[CaseResult], speeds: list[Speed], cells: list[Cell], expected: Verdict, said: str
) -> None:
    verdict, why = of_library(cases, speeds, cells)
    assert verdict == expected
    assert (said in why[0]) if said else why == ()


def test_troubles_and_what_was_untold() -> None:
    assert of_library([], [], [], troubles=["no communicator"]) == ("does not hold", ("no communicator",))
    assert of_library([GOOD], [], [], not_tried=["the emulator died"]) == ("unknown", ("the emulator died",))
    verdict, why = of_library([_case("wrong")], [], [Cell("cut-long", "hang")], troubles=["it did not start again"])
    assert verdict == "does not hold" and "wrong answer" in why[0] and why[1] == "it did not start again"


@given(
    st.lists(st.sampled_from(["right", "wrong", "error", "hang", "crash", "unsupported", "not run"]), max_size=6),
    st.lists(st.tuples(st.sampled_from(list(FAULTS)), st.sampled_from(list(Outcome.__args__))), max_size=5),  # type: ignore[attr-defined]
)
def test_one_thing_to_the_contrary_is_enough(states: list[CaseState], ends: list[tuple[str, Outcome]]) -> None:
    cases, cells = [_case(it) for it in states], [Cell(fault, ended) for fault, ended in ends]
    verdict, why = of_library(cases, [], cells)
    bad = any(it in ("wrong", "error", "hang", "crash") for it in states) or any(
        ended not in FAULTS[fault].holds and ended not in ("unsupported", "fault not exercised", "not run")
        for fault, ended in ends
    )
    assert (verdict == "does not hold") == bad
    assert (verdict == "holds") == (why == ())
    if verdict == "holds":
        more = of_library([*cases, _case("wrong")], [], cells)[0]
        assert more == "does not hold"


def test_too_fast_needs_the_whole_interval() -> None:
    assert too_fast(_speed(0.010, 0.009))
    assert not too_fast(_speed(0.010, 0.009, 0.0096))  # within 5 %, to which a rate is certified
    assert not too_fast(_speed(0.0, 0.009)) and not too_fast(_speed(float("inf"), 0.009))


def test_below_the_bound_by_less_than_stalls_may_account_for_is_unknown() -> None:
    fast = _speed(0.010, 0.009)
    assert of_library([_case("right")], [fast], [])[0] == "does not hold"
    assert of_library([_case("right")], [dataclasses.replace(fast, uncertainty_s=1e-4)], [])[0] == "does not hold"
    verdict, why = of_library([_case("right")], [dataclasses.replace(fast, uncertainty_s=1e-3)], [])
    assert verdict == "unknown"
    assert "stalls of the host" in why[0]
    assert of_library([_case("wrong")], [dataclasses.replace(fast, uncertainty_s=1e-3)], [])[0] == "does not hold"


def _library(verdict: Verdict) -> LibraryResult:
    return LibraryResult("it", "It", "1", verdict, (), {})


def test_verdicts_on_all() -> None:
    verdicts: tuple[Verdict, ...] = ("holds", "does not hold", "unknown", "skipped")
    for many in itertools.product(verdicts, repeat=2):
        found = of_validation(map(_library, many), certified=True)
        tried = [it for it in many if it != "skipped"]
        assert found == (
            "does not hold" if "does not hold" in tried else "unknown" if "unknown" in tried or not tried else "holds"
        )
    assert of_validation([_library("holds")], certified=False) == "unknown"
    assert of_validation([_library("holds")], certified=True, interrupted=True) == "unknown"
    assert of_validation([_library("does not hold")], certified=False, interrupted=True) == "does not hold"
    assert of_validation([], certified=True) == "unknown"


def test_exit_codes() -> None:
    assert [exit_code(it) for it in ("holds", "does not hold", "unknown")] == [0, 1, 3]
    assert exit_code("holds", regressions=2) == 1
    assert exit_code("unknown", regressions=2) == 1
