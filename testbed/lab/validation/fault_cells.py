"""Run the fault matrix of a library, and check after each fault whether the library can be used again.

A cell, in order: make a communicator that works; run the operation without a fault, to count the bytes it puts on the
fibers; run it with the fault, which begins when the stated share of them has crossed; heal, and wait until every fiber
carries traffic again; if anything went wrong, make the next communicator, which must complete a small all_reduce.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.validation.cases import preferred
from testbed.core.validation.fault_matrix import Trial
from testbed.core.validation.operation import CollectiveOperation, OperationName
from testbed.core.validation.outcome import CellEvidence, RankEnd, cell
from testbed.core.validation.output_judge import judge
from testbed.core.validation.result import Cell
from testbed.errors import LabError, UserError
from testbed.lab.validation.disturbance import FaultedOperation, measure_healthy, perform_with_fault
from testbed.lab.validation.fault_injection import FiberFaults, Injected
from testbed.lab.validation.library_session import LibraryFailed, Session
from testbed.lab.validation.traffic_meter import Wire

__all__ = ["evidence_of", "run_trials"]

EARLIER: Final = 0.3
"""Factor on the share for the second attempt, when the operation ended before the fault could begin."""

FIRST_CALL: Final = 300_000
"""Numbers of the calls around a trial, beyond those of the catalogue."""

FAILED: Final = ("error", "unsupported")

BELIEVED_S: Final = 0.5
"""If the answer arrives this much later than the time that the program reports for its error, the arrival time counts:
no caller had the error before. A Python process short of CPU time takes less time between the two."""

SMALL: Final = 1023
"""Elements of the all_reduce that a communicator must complete after a fault."""


def run_trials(
    session: Session,
    wire: Wire,
    fibers: FiberFaults,
    trials: Sequence[Trial],
    on_cell: Callable[[Cell], None],
    noise: Callable[[], StallLog] = StallLog,
) -> None:
    """Run all trials; ``on_cell`` is called with each cell. Raises LibraryFailed, after reporting the remaining cells
    as not run, and LabError where the lab has changed."""
    calls = itertools.count(FIRST_CALL)
    cannot: LibraryFailed | None = None
    for trial in trials:
        if cannot is not None:
            on_cell(cell(trial, CellEvidence(failed=str(cannot))))
            continue
        try:
            evidence = _try(session, wire, fibers, trial, calls, noise)
        except LibraryFailed as error:
            cannot, evidence = error, CellEvidence(failed=str(error))
        on_cell(cell(trial, evidence))
    if cannot is not None:
        raise cannot


def _try(
    session: Session,
    wire: Wire,
    fibers: FiberFaults,
    trial: Trial,
    calls: Iterator[int],
    noise: Callable[[], StallLog],
) -> CellEvidence:
    """Run one trial. Raises LibraryFailed, LabError."""
    if session.timeout_s != trial.timeout_s:
        session.timeout_s = trial.timeout_s
        session.mark_broken()
    share, operation = trial.share, trial.operation
    for attempt in (1, 2):
        session.ready()
        group = session.world
        healthy = measure_healthy(session, wire, dataclasses.replace(trial.operation, call=next(calls)), group)
        if healthy.performed.refused:
            return CellEvidence(
                [RankEnd(rank, "unsupported", message=healthy.performed.refused) for rank in group.ranks]
            )
        if not healthy.performed.done:
            return CellEvidence(failed=f"the operation fails without a fault as well: {healthy.performed.trouble}")
        try:
            seen = perform_with_fault(
                session, wire, trial, operation, group,
                Injected(fibers, session.workers, trial.injections), healthy, share,
            )  # fmt: skip
        except (LabError, UserError) as error:
            session.mark_broken()
            session.workers.check_lab()
            fibers.carry()
            return CellEvidence(failed=str(error))
        fibers.carry()
        evidence = evidence_of(session, operation, seen)
        if seen.fault_t is not None:
            ended_t = seen.fault_t + max((end.at_s for end in evidence.ends if end.at_s is not None), default=0.0)
            evidence = dataclasses.replace(evidence, uncertainty_s=noise().uncertainty_s(seen.fault_t, ended_t))
        if attempt == 2 or cell(trial, evidence).outcome != "fault not exercised":
            break
        share, operation = share * EARLIER, dataclasses.replace(operation, call=next(calls))
    if not session.broken:
        return evidence
    wire.settle()
    try:
        after = _again(session, CollectiveOperation("all_reduce", next(calls), count=SMALL, seed=trial.operation.seed))
    except LibraryFailed as error:  # keep the evidence of the fault; the next trial stops
        after = _Again(False, None, str(error))
    notes = (*evidence.notes, after.note) if after.note else evidence.notes
    return dataclasses.replace(evidence, rebuilt=after.rebuilt, rebuild_s=after.took_s, notes=notes)


def evidence_of(session: Session, operation: CollectiveOperation, seen: FaultedOperation) -> CellEvidence:
    answers = seen.performed.answers
    failed_t = {
        rank: answer.ended for rank, answer in answers.items() if answer.ended is not None and answer.state in FAILED
    }
    not_before_t = seen.performed.not_before_t
    # A right answer may arrive after its end time: its output is written in between.
    overdue = {
        rank: t
        for rank, reported_t in failed_t.items()
        if (t := not_before_t.get(rank, reported_t)) > reported_t + BELIEVED_S
    }
    ended_t = {rank: overdue.get(rank, answer.ended) for rank, answer in answers.items()}
    zero_t = seen.fault_t if seen.fault_t is not None else seen.performed.ended_t
    ends = [
        # The operation worked before the fault: "unsupported" now is an error by another name.
        RankEnd(
            rank,
            "error" if answer.state == "unsupported" else answer.state,
            None if (at_t := ended_t[rank]) is None else at_t - zero_t,
            answer.message,
        )
        for rank, answer in answers.items()
    ]
    if any(answer.state == "unsupported" for answer in answers.values()):
        session.mark_broken()
    judged = any(answer.state == "done" for answer in answers.values())
    same_bits = session.same_bits(operation.do)
    return CellEvidence(
        ends,
        judge(operation, session.world, answers, same_bits=same_bits) if judged else None,
        seen.share,
        None if seen.healed_t is None or seen.fault_t is None else seen.healed_t - seen.fault_t,
        notes=tuple(
            f"rank {rank} reported an error at least {t - failed_t[rank]:.3g} s before its answer arrived; the time of"
            " arrival counts"
            for rank, t in overdue.items()
        ),
    )


@dataclass(frozen=True)
class _Again:
    """Whether a communicator could be made after a fault; ``took_s`` is until its first operation was done."""

    rebuilt: bool
    took_s: float | None
    note: str = ""


def _again(session: Session, template: CollectiveOperation) -> _Again:
    """Make a new communicator in the same processes where the library offers that, with a fresh process only for a rank
    that has ended; otherwise in fresh processes. Raises LibraryFailed where not even that works."""
    workers = session.workers
    workers.gather(workers.unanswered, _bound(session))  # an error that comes late makes a program available again
    if session.offers.get("rebuilds") is True and not workers.unanswered:
        return _by_the_same(session, template)
    why = "a rank did not return from the operation" if workers.unanswered else "the library offers no other way"
    began_t = time.monotonic()
    session.fresh()
    if trouble := _wrong(session, template):
        return _Again(False, None, f"a communicator of fresh processes failed: {trouble}")
    return _Again(True, time.monotonic() - began_t, f"rebuilt by fresh processes: {why}")


def _by_the_same(session: Session, template: CollectiveOperation) -> _Again:
    ended = session.workers.ended
    note = f"rank {', '.join(map(str, ended))} rebuilt by a fresh process" if ended else ""
    began_t = time.monotonic()
    if not (session.workers.replace() and session.rebuild()):
        assert session.joined is not None
        trouble = session.joined.unsupported or session.joined.trouble
        session.fresh()
        return _Again(False, None, f"no communicator in the same processes: {trouble}")
    if trouble := _wrong(session, template):
        session.mark_broken()
        return _Again(False, None, f"the communicator in the same processes failed: {trouble}")
    return _Again(True, time.monotonic() - began_t, note)


def _bound(session: Session) -> Callable[[], float]:
    until_t = time.monotonic() + session.timeout_s + 3.0
    return lambda: until_t


def _wrong(session: Session, template: CollectiveOperation) -> str:
    """Run a small operation and return what is wrong with it; empty if nothing is."""
    name: OperationName = "all_reduce"
    chosen = preferred(name, session.offers)
    if chosen is None:
        return ""
    kind, reduction = chosen
    operation = dataclasses.replace(template, type=kind, reduction=reduction)
    performed = session.perform([(operation, session.world)])
    judgement = judge(operation, session.world, performed.answers, same_bits=session.same_bits(name))
    return "" if judgement.state == "right" else f"{judgement.state}: {judgement.detail}"
