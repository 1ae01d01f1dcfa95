"""Outcomes of faults, and verdicts: exactly one each, and the worst wins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from builders import validation_factory as factory
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.validation.fault_matrix import FAULTS, Injection, Trial
from testbed.core.validation.operation import CollectiveOperation
from testbed.core.validation.outcome import CellEvidence, RankEnd, cell, outcome
from testbed.core.validation.output_judge import OutputJudgement
from testbed.core.validation.result import CaseResult, CaseState, Cell, Outcome, Speed, Verdict
from testbed.core.validation.verdict import exit_code, of_library, of_validation, too_fast

TRIAL = Trial(
    fault=FAULTS["cut-long"],
    injections=(Injection("cut", "north"),),
    operation=CollectiveOperation("all_reduce", 200_000),
    share=0.3,
    timeout_s=6.0,
    error_by_s=9.0,
    outer_s=15.0,
)
RIGHT = OutputJudgement("right")
WRONG = OutputJudgement("wrong", "rank 2: 1 of 5 elements are wrong", 2)


def ends(text: str) -> list[RankEnd]:
    """Return how ranks 0, 1, … ended, of ``"done 1.5, error 6, silent"``: state and time."""
    found = []
    for rank, term in enumerate(text.split(", ")):
        state, _, t = term.partition(" ")
        found.append(RankEnd(rank, state, float(t) if t else None, f"message {rank}"))  # type: ignore[arg-type]
    return found


def evidence(text: str, judgement: OutputJudgement | None = RIGHT, **fields: Any) -> CellEvidence:
    return replace(CellEvidence(ends(text), judgement, 0.31), **fields)


@table(
    "evidence, expected",
    {
        "the emulator died": (CellEvidence(failed="the emulator died"), "not run"),
        "nothing ran": (CellEvidence(), "not run"),
        "no judgement": (evidence("done 1, done 1.9", None), "not run"),
        "a rank refused": (evidence("unsupported"), "unsupported"),
        "a wrong answer": (evidence("done 1, done 2", WRONG), "wrong result"),
        "a wrong answer before the fault": (evidence("done -2, done -1", WRONG, share=1.0), "wrong result"),
        "a wrong answer and an error": (evidence("done 1, error 6.1", WRONG), "wrong result"),
        "a wrong answer and a silent rank": (evidence("done 1, silent", WRONG), "wrong result"),
        "an unknown share of the operation": (evidence("done 1, done 2", share=None), "fault not exercised"),
        "all were done before the fault": (evidence("done -0.2, done -0.1"), "fault not exercised"),
        "one was done after it": (evidence("done -0.2, done 0.1"), "right"),
        "an error before the fault": (evidence("error -0.1, error 0.2", None), "fault not exercised"),
        "a silent rank": (evidence("done 1, silent"), "hang"),
        "an error and a silent rank": (evidence("error 6, silent", None), "hang"),
        "a dead and a silent rank": (evidence("died 0.1, silent", None), "hang"),
        "a dead rank": (evidence("done 1, died 0.2"), "crash"),
        "an error and a dead rank": (evidence("error 6, died 0.2", None), "crash"),
        "an error and a late one": (evidence("error 6, error 9.5", None), "error late"),
        "a late error": (evidence("done 1, error 9.5"), "error late"),
        "an error without a time": (evidence("error, error 6.1", None), "error late"),
        "errors in time": (evidence("error 6, error 6.1", None), "error within its bound"),
        "an error in time": (evidence("done 1, error 6.1"), "error within its bound"),
        "done after healing": (evidence("done 1, done 3.1", healed_s=2.0), "right after healing"),
        "done before healing": (evidence("done 1, done 1.9", healed_s=2.0), "right"),
        "done": (evidence("done 1, done 1.9"), "right"),
    },
)
def test_outcome(evidence: CellEvidence, expected: Outcome) -> None:
    assert outcome(TRIAL, evidence)[0] == expected


@pytest.mark.parametrize(("uncertainty_s", "expected"), [(0.0, "error late"), (0.4, "error late"), (0.6, "not run")])
def test_outcome_of_an_error_late_by_less_than_stalls_may_account_for(uncertainty_s: float, expected: Outcome) -> None:
    """9.5 s, of at most 9 s."""
    for text, judgement, due in (
        ("done 1, error 9.5", RIGHT, expected),
        ("error, error 9.5", None, "error late"),  # untimed
        ("done 1, error 9.5", WRONG, "wrong result"),
    ):
        assert outcome(TRIAL, evidence(text, judgement, uncertainty_s=uncertainty_s))[0] == due


@table(
    "fault, text, judgement, expected",
    {
        "the killed rank died": ("rank-killed", "died 0", None, "error within its bound"),
        "the killed rank is silent": ("rank-killed", "silent", None, "error within its bound"),
        # One that was stopped and goes on with a wrong answer is told nothing either.
        "the stopped rank has a wrong answer": ("rank-stopped", "done 12", WRONG, "wrong result"),
    },
)
def test_outcome_expects_nothing_of_a_rank_that_the_fault_ended(fault, text, judgement, expected) -> None:
    trial = replace(TRIAL, fault=FAULTS[fault], affected=frozenset({3}))
    assert outcome(trial, evidence(f"error 0.3, error 0.3, error 0.3, {text}", judgement))[0] == expected


def test_outcome_of_a_rank_that_died_beside_the_killed_one_is_a_crash() -> None:
    killed = replace(TRIAL, fault=FAULTS["rank-killed"], affected=frozenset({3}))
    assert outcome(killed, evidence("error 0.3, error 0.3, died 0.1, died 0", None))[0] == "crash"


def test_cell_has_the_times() -> None:
    assert cell(TRIAL, replace(evidence("error 6, error 6.4", None), rebuilt=True, rebuild_s=0.8)) == Cell(
        fault="cut-long",
        outcome="error within its bound",
        detail="message 0",
        share=0.31,
        error_s=6.4,
        bound_s=9.0,
        rebuilt=True,
        rebuild_s=0.8,
        errors=("rank 0: message 0", "rank 1: message 1"),
    )
    done = cell(TRIAL, evidence("done 1, done 3.1", healed_s=2.0))
    assert (done.done_s, done.error_s, done.healed_s) == (3.1, None, 2.0)
    hung = cell(TRIAL, evidence("done 1, silent"))
    assert hung.done_s is None and "rank 1 was still in the operation 15 s" in hung.detail
    assert "expected within 9 s" in cell(TRIAL, evidence("error 9.5", None)).detail


STATES = st.sampled_from(["done", "error", "unsupported", "silent", "died"])


@given(
    times=st.lists(st.tuples(STATES, st.none() | st.floats(-1, 40)), max_size=4),
    judgement=st.sampled_from([RIGHT, WRONG, None]),
    share=st.none() | st.floats(0, 1),
    healed_s=st.none() | st.floats(0, 10),
    affected=st.frozensets(st.integers(0, 3)),
)
def test_outcome_of_any_evidence(times, judgement, share, healed_s, affected) -> None:
    trial = replace(TRIAL, affected=affected)
    made = [RankEnd(rank, *end) for rank, end in enumerate(times)]
    result, _ = outcome(trial, CellEvidence(made, judgement, share, healed_s))
    if judgement is WRONG and made and all(end.state != "unsupported" for end in made):
        assert result == "wrong result"
    if result in ("right", "right after healing"):
        assert judgement is RIGHT
        assert all(end.state == "done" for end in made if end.rank not in affected)
    cell(trial, CellEvidence(made, judgement, share, healed_s))


# ---- verdicts


def cases(*states: CaseState) -> list[CaseResult]:
    return [factory.case(state=state, detail="its detail") for state in states]


def speed(median_s: float, high_s: float | None = None, bound_s: float = 0.010, **fields: Any) -> Speed:
    times: Any = {"median_s": median_s, "low_s": median_s, "high_s": high_s or median_s, "times_s": (median_s,) * 6}
    return replace(factory.speed(), **times, bound_s=bound_s, pattern="", **fields)


CALM = speed(0.012)
STRUCK: list[tuple[str, Outcome, str, Verdict, str]] = [
    ("cut-long", "hang", "", "does not hold", "cut-long: hang"),
    ("cut-long", "error late", "", "does not hold", "error late"),
    ("cut-short", "error within its bound", "", "does not hold", "accepted: right"),
    ("rank-killed", "crash", "", "does not hold", "crash"),
    ("failover", "wrong result", "rank 1 …", "does not hold", "and no error"),
    ("cut-long", "fault not exercised", "", "unknown", "not exercised"),
    ("cut-long", "not run", "", "unknown", "not run"),
    ("cut-long", "unsupported", "", "holds", ""),
    ("somebody's own", "error within its bound", "", "holds", ""),
    ("somebody's own", "hang", "", "does not hold", "hang"),
]


@table(
    "cases, speeds, cells, expected, sentence",
    {
        "an error within its bound": (
            cases("right"), [CALM], [Cell("cut-long", "error within its bound")], "holds", "",
        ),
        "an unsupported case": (cases("right", "unsupported"), [], [], "holds", ""),
        "a wrong answer": (cases("right", "wrong"), [CALM], [], "does not hold", "wrong answer"),
        "an error": (cases("right", "error"), [CALM], [], "does not hold", "failed on healthy fibers"),
        "a hang": (cases("right", "hang", "not run"), [CALM], [], "does not hold", "hung on healthy fibers"),
        "a crash": (cases("right", "crash"), [], [], "does not hold", "a rank died"),
        "a case that was not run": (cases("right", "not run"), [CALM], [], "unknown", "not run"),
        "too fast": (cases("right"), [speed(0.009)], [], "does not hold", "below the physical bound"),
        "too fast within the tolerance": (cases("right"), [speed(0.0097)], [], "holds", ""),
        "too fast within the interval": (cases("right"), [speed(0.009, 0.011)], [], "holds", ""),
        "a bypass": (cases("right"), [replace(CALM, pattern="bypass")], [], "does not hold", "bypassed the fibers"),
        **{
            f"{fault}, {ended}": (cases("right"), [], [Cell(fault, ended, detail)], expected, sentence)
            for fault, ended, detail, expected, sentence in STRUCK
        },
        "nothing": ([], [], [], "unknown", "nothing that it offers was tried"),
        "only an unsupported case": (cases("unsupported"), [], [], "unknown", "nothing that it offers was tried"),
    },
)  # fmt: skip
def test_of_library(cases, speeds, cells, expected: Verdict, sentence: str) -> None:
    verdict, why = of_library(cases, speeds, cells)
    assert verdict == expected
    assert (sentence in why[0]) if sentence else why == ()


def test_of_library_with_troubles_and_what_was_not_tried() -> None:
    assert of_library([], [], [], troubles=["no communicator"]) == ("does not hold", ("no communicator",))
    not_tried = of_library(cases("right"), [], [], not_tried=["the emulator died"])
    assert not_tried == ("unknown", ("the emulator died",))
    verdict, why = of_library(cases("wrong"), [], [Cell("cut-long", "hang")], troubles=["it did not start again"])
    assert verdict == "does not hold" and "wrong answer" in why[0] and why[1] == "it did not start again"


@given(
    st.lists(st.sampled_from(["right", "wrong", "error", "hang", "crash", "unsupported", "not run"]), max_size=6),
    st.lists(st.tuples(st.sampled_from(list(FAULTS)), st.sampled_from(get_args(Outcome))), max_size=5),
)
def test_of_library_does_not_hold_for_one_reason(states: list[CaseState], cells: list[tuple[str, Outcome]]) -> None:
    struck = [Cell(*fault) for fault in cells]
    verdict, why = of_library(cases(*states), [], struck)
    neutral = ("unsupported", "fault not exercised", "not run")
    bad = not {"wrong", "error", "hang", "crash"}.isdisjoint(states) or any(
        ended not in (*FAULTS[fault].holds, *neutral) for fault, ended in cells
    )
    assert (verdict == "does not hold") == bad
    assert (verdict == "holds") == (why == ())
    if verdict == "holds":
        assert of_library(cases(*states, "wrong"), [], struck)[0] == "does not hold"


@table(
    "measured, expected",
    {
        "the whole interval is below the bound": (speed(0.009), True),
        "within 5 %, to which a rate is certified": (speed(0.009, 0.0096), False),
        "no bound": (speed(0.009, bound_s=0.0), False),
        "an infinite bound": (speed(0.009, bound_s=float("inf")), False),
    },
)
def test_too_fast(measured: Speed, expected: bool) -> None:
    assert too_fast(measured) is expected


@table(
    "state, uncertainty_s, expected",
    {
        "no stalls": ("right", 0.0, "does not hold"),
        "short stalls": ("right", 1e-4, "does not hold"),
        "stalls that may account for it": ("right", 1e-3, "unknown"),
        "and a wrong answer": ("wrong", 1e-3, "does not hold"),
    },
)
def test_of_library_below_the_bound_during_stalls(state, uncertainty_s, expected) -> None:
    verdict, why = of_library(cases(state), [speed(0.009, uncertainty_s=uncertainty_s)], [])
    assert verdict == expected
    assert ("stalls of the host" in why[0]) == (expected == "unknown")


def verdict_of(verdicts: Sequence[Verdict], **fields: bool) -> Verdict:
    libraries = [factory.library(verdict=verdict) for verdict in verdicts]
    return of_validation(libraries, **{"certified": True, **fields})


def test_of_validation() -> None:
    for verdicts in itertools.product(get_args(Verdict), repeat=2):
        tried = set(verdicts) - {"skipped"}
        expected = "does not hold" if "does not hold" in tried else "holds" if tried == {"holds"} else "unknown"
        assert verdict_of(verdicts) == expected
    assert verdict_of(["holds"], certified=False) == "unknown"
    assert verdict_of(["holds"], interrupted=True) == "unknown"
    assert verdict_of(["does not hold"], certified=False, interrupted=True) == "does not hold"
    assert verdict_of([]) == "unknown"


def test_exit_code() -> None:
    assert [exit_code(verdict) for verdict in ("holds", "does not hold", "unknown")] == [0, 1, 3]
    assert exit_code("holds", regressions=2) == 1
    assert exit_code("unknown", regressions=2) == 1
