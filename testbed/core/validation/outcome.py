"""The outcome of a cell of the fault matrix: exactly one, derived from what each rank did.

The first that applies wins:

1. ``not run``: the lab, not the library, prevented the trial (the evidence has the reason), or stalls of the host leave
   open whether an error was late;
2. ``unsupported``: a rank reported that the library does not support the operation;
3. ``wrong result``: some rank returned a wrong answer and no error, whatever the others did, and even if the fault came
   too late: this is the one failure that goes unnoticed;
4. ``fault not exercised``: the fault did not begin, or every rank had finished, or one had failed, before it did;
5. ``hang``: some rank was still in the operation at the outer deadline;
6. ``crash``: a process died that the fault did not touch;
7. ``error late``: some rank's error came after its deadline;
8. ``error within its bound``: some rank raised an error, and every error came in time;
9. ``right after healing``: all ranks were right, the last one after the fault was healed or had ended by itself;
10. ``right``: all ranks were right.

Nothing is expected of ranks that the fault itself killed or stopped, but a wrong answer counts from them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from testbed.core.validation.fault_matrix import Trial
from testbed.core.validation.output_judge import Judgement
from testbed.core.validation.result import Cell, Outcome

__all__ = ["Evidence", "RankEnd", "cell", "outcome"]


@dataclass(frozen=True)
class RankEnd:
    """How one rank left the operation, and when, in seconds since the fault began (negative: before).

    ``silent``: still in the operation when it was given up; ``at_s`` is then None. It may be None for ``died`` too.
    """

    rank: int
    state: Literal["done", "error", "unsupported", "silent", "died"]
    at_s: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Evidence:
    """The observations of one trial. Times are seconds since the fault began.

    Attributes:
        ends: one for every rank of the operation.
        judgement: of the answers of the ranks that are done; None if there are none.
        share: part of the operation's bytes that had crossed when the fault began; None: it never began.
        healed_s: when the fault was healed, or ended by itself, while the operation was in progress; None: neither.
        rebuilt: whether a new communicator could be made and gave the right answer; None: not tried.
        failed: why the lab could not run the trial; empty if it did.
        uncertainty_s: of the times of errors, by stalls of the host since the fault began.
    """

    ends: Sequence[RankEnd] = ()
    judgement: Judgement | None = None
    share: float | None = None
    healed_s: float | None = None
    rebuilt: bool | None = None
    rebuild_s: float | None = None
    failed: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    uncertainty_s: float = 0.0


def outcome(trial: Trial, evidence: Evidence) -> tuple[Outcome, str]:
    """Return the outcome and the reason for it."""
    if evidence.failed:
        return "not run", evidence.failed
    ends = list(evidence.ends)
    for end in ends:
        if end.state == "unsupported":
            return "unsupported", end.message
    if evidence.judgement is not None and evidence.judgement.state == "wrong":
        return "wrong result", evidence.judgement.detail
    if not ends:
        return "not run", "no rank received the operation"
    expected = [end for end in ends if end.rank not in trial.affected]
    if evidence.share is None:
        return "fault not exercised", _message(expected) or "the operation ended before the fault could begin"
    if all(end.state == "done" and (end.at_s or 0.0) < 0 for end in expected):
        return "fault not exercised", "every rank had finished before the fault began"
    if early := [end for end in expected if end.state == "error" and (end.at_s or 0.0) < 0]:
        return "fault not exercised", f"rank {early[0].rank} failed before the fault began: {early[0].message}"
    return _ended(trial, evidence, expected)


def cell(trial: Trial, evidence: Evidence) -> Cell:
    """Return the cell of the matrix."""
    verdict, detail = outcome(trial, evidence)
    expected = [end for end in evidence.ends if end.rank not in trial.affected]
    errors = [end for end in expected if end.state == "error"]
    done = [end.at_s for end in expected if end.state == "done" and end.at_s is not None]
    every = evidence.share is not None and len(done) == len(expected)
    return Cell(
        fault=trial.fault.name,
        outcome=verdict,
        detail="; ".join((*([detail] if detail else []), *evidence.notes)),
        share=evidence.share,
        error_s=max((end.at_s for end in errors if end.at_s is not None), default=None),
        done_s=max(done) if done and every else None,
        healed_s=evidence.healed_s,
        bound_s=trial.error_by_s if evidence.share is not None else None,
        rebuilt=evidence.rebuilt,
        rebuild_s=evidence.rebuild_s,
        errors=tuple(f"rank {end.rank}: {end.message}" for end in errors),
    )


def _ended(trial: Trial, evidence: Evidence, expected: Sequence[RankEnd]) -> tuple[Outcome, str]:
    """Return the outcome of a fault that began while ranks were in the operation."""
    silent = [end for end in expected if end.state == "silent"]
    if silent:
        detail = f"{_ranks(silent)} {_were(silent)} still in the operation {trial.outer_s:.3g} s after the fault began"
        return "hang", detail
    died = [end for end in expected if end.state == "died"]
    if died:
        return "crash", f"{_ranks(died)} died" + (f": {died[0].message}" if died[0].message else "")
    errors = [end for end in expected if end.state == "error"]
    late = [end for end in errors if end.at_s is None or end.at_s > trial.error_by_s]
    if late:
        when = max((end.at_s for end in late if end.at_s is not None), default=None)
        detail = "at an unknown time" if when is None else f"after {when:.3g} s"
        message = f"{_ranks(late)} raised an error {detail}, expected within {trial.error_by_s:.3g} s"
        timed = all(rank_end.at_s is not None for rank_end in late)
        if timed and when is not None and when - evidence.uncertainty_s <= trial.error_by_s:
            return "not run", f"{message}; stalls of the host may account for {evidence.uncertainty_s:.3g} s of that"
        return "error late", message
    if errors:
        return "error within its bound", errors[0].message
    if evidence.judgement is None:
        return "not run", "the answers were not judged"
    ended_s = max((end.at_s for end in expected if end.at_s is not None), default=0.0)
    if evidence.healed_s is not None and ended_s > evidence.healed_s:
        return "right after healing", ""
    return "right", ""


def _message(ends: Sequence[RankEnd]) -> str:
    """Return the first failure in an operation that failed before its fault began."""
    return next((f"rank {end.rank}: {end.message or end.state}" for end in ends if end.state != "done"), "")


def _ranks(ends: Sequence[RankEnd]) -> str:
    numbers = ", ".join(str(end.rank) for end in ends)
    return f"rank {numbers}" if len(ends) == 1 else f"ranks {numbers}"


def _were(ends: Sequence[RankEnd]) -> str:
    return "was" if len(ends) == 1 else "were"
