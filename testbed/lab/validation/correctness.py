"""Correctness: run every case of the catalogue and judge its answers as soon as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from testbed.core.validation.cases import Case, groups, not_offered
from testbed.core.validation.operation import CollectiveOperation
from testbed.core.validation.output_judge import OutputJudgement, judge
from testbed.core.validation.result import CaseResult, CaseState
from testbed.lab.validation.library_session import LibraryFailed, Session

__all__ = ["run_cases"]

MOST_HANGS: Final = 4
"""Hung cases, each of which takes as long as an operation may, after which no more are tried."""

EARLIER: Final = 4
"""Earlier operations whose data a stale buffer in a wrong answer might hold."""


def run_cases(session: Session, cases: Sequence[Case], on_result: Callable[[CaseResult], None]) -> None:
    """Run all cases; ``on_result`` is called with each result, in the order of the catalogue.

    Raises LibraryFailed when the library does not work any more, after reporting the remaining cases as ``not run``.
    """
    hangs, stopped = 0, ""
    cannot: LibraryFailed | None = None
    done: list[CollectiveOperation] = []
    for case in cases:
        if stopped:
            for operation in case.operations:
                on_result(_result(operation, "not run", stopped))
            continue
        try:
            judgements = _try(session, case, done)
        except LibraryFailed as error:
            cannot, stopped = error, str(error)
            judgements = {operation: OutputJudgement("not run", stopped) for operation in case.operations}
        for operation, judgement in judgements.items():
            on_result(_result(operation, judgement.state, judgement.detail))
        hangs += any(judgement.state == "hang" for judgement in judgements.values())
        if hangs >= MOST_HANGS and not stopped:
            stopped = f"not tried: {hangs} operations hung before"
    if cannot is not None:
        raise cannot


def _try(session: Session, case: Case, done: list[CollectiveOperation]) -> dict[CollectiveOperation, OutputJudgement]:
    """Return the judgement of each operation of a case; those tried are added to ``done``. Raises LibraryFailed."""
    session.ready()
    by_name = {group.name: group for group in groups([rank.site for rank in session.workers.ranks])}
    judgements: dict[CollectiveOperation, OutputJudgement] = {}
    for operation in case.operations:
        if why := not_offered(operation, session.offers):
            judgements[operation] = OutputJudgement("unsupported", why)
        elif why := session.have(by_name[operation.group]):
            state: CaseState = "hang" if session.workers.unanswered else "error" if session.broken else "unsupported"
            judgements[operation] = OutputJudgement(state, f"group {operation.group}: {why}")
    wanted = [(operation, by_name[operation.group]) for operation in case.operations if operation not in judgements]
    if wanted and not session.broken:
        answers = session.perform(wanted).answers
        for operation, group in wanted:
            mine = {rank: answers[rank] for rank in group.ranks}
            earlier = [case for case in reversed(done) if case.group == operation.group][:EARLIER]
            same_bits = session.same_bits(operation.do)
            judgements[operation] = judge(operation, group, mine, same_bits=same_bits, earlier=earlier)
        done += [operation for operation, _ in wanted]
    return {
        operation: judgements.get(operation, OutputJudgement("not run", "its group could not be made"))
        for operation in case.operations
    }


def _result(operation: CollectiveOperation, state: CaseState, detail: str) -> CaseResult:
    group = operation.group + ("" if operation.late is None else f", rank {operation.late} last")
    return CaseResult(operation.do, group, operation.type, operation.count, operation.reduction, state, detail)
