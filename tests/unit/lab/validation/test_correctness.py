"""The catalogue with a library that hangs, refuses, or does not work at all; starts no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tables import table
from oracles.rank_inputs import input_bytes

from testbed.core.validation.cases import Case
from testbed.core.validation.operation import CollectiveOperation, Group
from testbed.core.validation.output_judge import RankAnswer
from testbed.core.validation.result import CaseResult
from testbed.lab.validation import correctness
from testbed.lab.validation.library_session import LibraryFailed, Performed

SITES = ("east", "west")
Behave = Callable[[CollectiveOperation, Group], Mapping[int, RankAnswer]]


def right(operation: CollectiveOperation, group: Group) -> dict[int, RankAnswer]:
    """Answer a broadcast: the root's data on all ranks."""
    output = input_bytes(operation.type, operation.count, seed=operation.seed, call=operation.call, rank=operation.root)
    return {rank: RankAnswer("done", output, 1.0, 2.0) for rank in group.ranks}


def silent(operation: CollectiveOperation, group: Group) -> dict[int, RankAnswer]:
    return dict.fromkeys(group.ranks, RankAnswer("silent"))


def refused(operation: CollectiveOperation, group: Group) -> dict[int, RankAnswer]:
    return dict.fromkeys(group.ranks, RankAnswer("unsupported", message="not today"))


class Session:
    """As ``library_session.Session``: two ranks at each of two sites; ``behave`` answers for them."""

    def __init__(self, behave: Behave) -> None:
        self.behave = behave
        self.workers = SimpleNamespace(
            ranks=[SimpleNamespace(site=site) for site in SITES for _ in range(2)], unanswered=()
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

    def perform(self, operations: Sequence[tuple[CollectiveOperation, Group]]) -> Performed:
        answers: dict[int, RankAnswer] = {}
        for operation, group in operations:
            answers |= self.behave(operation, group)
        return Performed(answers, 2.0)


def broadcasts(count: int, **fields: Any) -> list[Case]:
    return [Case((CollectiveOperation("broadcast", call, type="int32", count=3, **fields),)) for call in range(count)]


def results_of(session: Session, cases: Sequence[Case]) -> list[CaseResult]:
    results: list[CaseResult] = []
    correctness.run_cases(session, cases, results.append)  # type: ignore[arg-type]
    return results


def at_east(count: int = 1) -> list[Case]:
    return [Case((CollectiveOperation("broadcast", call, "at east", "int32", 3),)) for call in range(1, 1 + count)]


HANGS = correctness.MOST_HANGS


@table(
    "behave, count, states, detail",
    {
        "right answers are right": (right, 3, ["right"] * 3, ""),
        "what is refused is unsupported and no failure": (refused, 1, ["unsupported"], "not today"),
        "after some hangs no more is tried": (
            silent,
            HANGS + 2,
            ["hang"] * HANGS + ["not run"] * 2,
            "operations hung before",
        ),
    },
)
def test_run_cases(behave: Behave, count: int, states: list[str], detail: str) -> None:
    results = results_of(Session(behave), broadcasts(count))
    expected = [("broadcast", 3, state) for state in states]
    assert [(result.operation, result.count, result.state) for result in results] == expected
    assert detail in results[-1].detail


def test_run_cases_does_not_ask_for_what_is_not_offered() -> None:
    def fail(operation: CollectiveOperation, group: Group) -> Mapping[int, RankAnswer]:
        pytest.fail("it was asked")

    case = Case((CollectiveOperation("send", 1, type="int32"), CollectiveOperation("broadcast", 2, type="int64")))
    send, broadcast = results_of(Session(fail), [case])
    assert [send.state, broadcast.state] == ["unsupported", "unsupported"]
    assert "not offer send" in send.detail and "int64" in broadcast.detail


def test_run_cases_of_a_library_that_works_no_more_are_not_run() -> None:
    session, results = Session(right), list[CaseResult]()
    session.fails_from = 2
    with pytest.raises(LibraryFailed, match="no communicator"):
        correctness.run_cases(session, broadcasts(3), results.append)  # type: ignore[arg-type]
    assert [result.state for result in results] == ["right", "not run", "not run"]
    assert "no communicator" in results[1].detail


def test_run_cases_asks_groups_that_share_no_rank_at_once_and_judges_each_for_itself() -> None:
    together: list[int] = []

    def half_wrong(operation: CollectiveOperation, group: Group) -> Mapping[int, RankAnswer]:
        together.append(operation.call)
        wrong = {3: RankAnswer("done", b"\0" * 12, 1.0, 2.0)} if 3 in group.ranks else {}
        return right(operation, group) | wrong

    case = Case(
        tuple(CollectiveOperation("broadcast", call, f"at {site}", "int32", 3) for call, site in enumerate(SITES))
    )
    east, west = results_of(Session(half_wrong), [case])
    assert together == [0, 1]
    assert (east.group, east.state, west.group, west.state) == ("at east", "right", "at west", "wrong")
    assert "rank 3" in west.detail


@table(
    "why, unanswered, states",
    {
        "a group that cannot be had is unsupported": ("no groups here", (), ["unsupported"]),
        # A hang of a group takes as long as one of an operation, so only a few are tried.
        "a group whose ranks never answer is a hang": (
            "rank 1 did not answer",
            (1,),
            ["hang"] * HANGS + ["not run"] * (8 - HANGS),
        ),
    },
)
def test_run_cases_without_a_group(why: str, unanswered: tuple[int, ...], states: list[str]) -> None:
    session = Session(right)
    session.no_group, session.workers.unanswered = why, unanswered
    results = results_of(session, at_east(len(states)))
    assert [result.state for result in results] == states
    assert why in results[0].detail
