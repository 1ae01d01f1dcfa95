"""The catalogue with a library that hangs, refuses, or does not work at all; starts no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from oracles.rank_inputs import input_bytes

from testbed.core.validation.cases import Case
from testbed.core.validation.operation import Group, Operation
from testbed.core.validation.output_judge import Answer
from testbed.core.validation.result import CaseResult
from testbed.lab.validation import correctness
from testbed.lab.validation.library_session import LibraryFailed, Performed

Behave = Callable[[Operation, Group], Mapping[int, Answer]]


def right(operation: Operation, group: Group) -> dict[int, Answer]:
    """Answer a broadcast: the root's data on all ranks."""
    output = input_bytes(operation.type, operation.count, seed=operation.seed, call=operation.call, rank=operation.root)
    return {rank: Answer("done", output, 1.0, 2.0) for rank in group.ranks}


def silent(operation: Operation, group: Group) -> dict[int, Answer]:
    return dict.fromkeys(group.ranks, Answer("silent"))


def refused(operation: Operation, group: Group) -> dict[int, Answer]:
    return dict.fromkeys(group.ranks, Answer("unsupported", message="not today"))


class Session:
    """As ``library_session.Session``: two ranks at each of two sites; ``behave`` answers for them."""

    def __init__(self, behave: Behave) -> None:
        self.behave = behave
        self.workers = SimpleNamespace(
            ranks=[SimpleNamespace(site=it) for it in ("east", "east", "west", "west")], unanswered=()
        )
        self.offers: dict[str, Any] = {"broadcast": {"types": ["int32"], "reductions": []}, "groups": True}
        self.no_group = ""
        self.fails_from = 1000
        self.readied = 0
        self.broken = True

    def ready(self) -> None:
        self.readied += 1
        if self.readied >= self.fails_from:
            raise LibraryFailed("no communicator could be made")
        self.broken = False

    def have(self, group: Group) -> str:
        return "" if group.name == "world" else self.no_group

    def same_bits(self, operation: str) -> bool:
        return False

    def perform(self, operations: Sequence[tuple[Operation, Group]]) -> Performed:
        answers: dict[int, Answer] = {}
        for operation, group in operations:
            answers |= self.behave(operation, group)
        return Performed(answers, 2.0)


def broadcasts(count: int, **fields: Any) -> list[Case]:
    return [Case((Operation("broadcast", call, type="int32", count=3, **fields),)) for call in range(count)]


def results_of(session: Session, cases: Sequence[Case]) -> list[CaseResult]:
    found: list[CaseResult] = []
    correctness.run_cases(session, cases, found.append)  # type: ignore[arg-type]
    return found


def test_right_answers_are_right() -> None:
    found = results_of(Session(right), broadcasts(3))
    assert [(it.operation, it.count, it.state) for it in found] == [("broadcast", 3, "right")] * 3


def test_what_is_not_offered_is_not_asked_for() -> None:
    def asked(operation: Operation, group: Group) -> Mapping[int, Answer]:
        pytest.fail("it was asked")

    found = results_of(
        Session(asked), [Case((Operation("send", 1, type="int32"), Operation("broadcast", 2, type="int64")))]
    )
    assert [it.state for it in found] == ["unsupported", "unsupported"]
    assert "not offer send" in found[0].detail and "int64" in found[1].detail


def test_what_is_refused_is_unsupported_and_no_failure() -> None:
    (found,) = results_of(Session(refused), broadcasts(1))
    assert found.state == "unsupported" and "not today" in found.detail


def test_after_some_hangs_no_more_is_tried() -> None:
    found = results_of(Session(silent), broadcasts(correctness.MOST_HANGS + 2))
    assert [it.state for it in found] == ["hang"] * correctness.MOST_HANGS + ["not run"] * 2
    assert "operations hung before" in found[-1].detail


def test_a_library_that_works_no_more_leaves_the_rest_not_run_and_says_why() -> None:
    session, found = Session(right), list[CaseResult]()
    session.fails_from = 2
    with pytest.raises(LibraryFailed, match="no communicator"):
        correctness.run_cases(session, broadcasts(3), found.append)  # type: ignore[arg-type]
    assert [it.state for it in found] == ["right", "not run", "not run"]
    assert "no communicator" in found[1].detail


def test_groups_that_share_no_rank_are_asked_at_once_and_judged_each_for_itself() -> None:
    together: list[int] = []

    def half_wrong(operation: Operation, group: Group) -> Mapping[int, Answer]:
        together.append(operation.call)
        answers = right(operation, group)
        wrong = Answer("done", b"\0" * 12, 1.0, 2.0)
        return {**answers, 3: wrong} if 3 in answers else answers

    case = Case(tuple(Operation("broadcast", it, f"at {site}", "int32", 3) for it, site in enumerate(("east", "west"))))
    found = results_of(Session(half_wrong), [case])
    assert together == [0, 1]
    assert [(it.group, it.state) for it in found] == [("at east", "right"), ("at west", "wrong")]
    assert "rank 3" in found[1].detail


def test_a_group_that_cannot_be_had_is_unsupported() -> None:
    session = Session(right)
    session.no_group = "no groups here"
    (found,) = results_of(session, [Case((Operation("broadcast", 1, "at east", "int32", 3),))])
    assert found.state == "unsupported" and "no groups here" in found.detail


def test_a_group_whose_ranks_never_answer_is_a_hang() -> None:
    """A hang of a group takes as long as one of an operation, so only a few are tried."""
    session = Session(right)
    session.no_group = "rank 1 did not answer"
    session.workers.unanswered = (1,)
    found = results_of(session, [Case((Operation("broadcast", call, "at east", "int32", 3),)) for call in range(1, 9)])
    assert [it.state for it in found] == ["hang"] * correctness.MOST_HANGS + ["not run"] * (8 - correctness.MOST_HANGS)
    assert "rank 1 did not answer" in found[0].detail
