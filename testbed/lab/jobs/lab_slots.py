"""The job slot as a :class:`~testbed.lab.lab.Lab` uses it: taken before a job begins, given back when it has ended."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from testbed.errors import Interrupted, LabError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim
from testbed.lab.jobs.program_job import ProgramJob
from testbed.lab.jobs.running_job import RunningJob

__all__ = ["LabSlots", "gives_slot_back"]

P = ParamSpec("P")
R = TypeVar("R")


class _HasSlots(Protocol):
    _slots: LabSlots


L = TypeVar("L", bound=_HasSlots)


def gives_slot_back(start: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Have a method that starts a job give the slot back where it fails after it has taken it."""

    @functools.wraps(start)
    def guarded(lab: L, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return start(lab, *arguments, **keywords)
        except BaseException as error:
            lab._slots.failed(error)
            raise

    return guarded


class LabSlots:
    """The slot of one lab, for the jobs that one process starts in it."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab = lab
        self._held: JobClaim | None = None
        """Held by the caller, who gives it back: :meth:`held`."""
        self._used = False
        self._starting: JobClaim | None = None
        """Taken for a job that has not begun yet."""
        self._current: JobClaim | None = None

    @property
    def stop_why(self) -> str:
        """Why the latest job was to end, from outside; empty if none asked."""
        return "" if self._current is None else self._current.stop_why

    @contextlib.contextmanager
    def held(self, kind: str, what: str, *, detached: bool = False) -> Iterator[JobClaim]:
        """Hold the slot as long as the context lasts; its job's end does not give it back. Raises LabBusy."""
        claim = self._held = self._current = JobClaim.take(self._lab, kind, what, detached=detached)
        self._used = False
        try:
            yield claim
        except BaseException as error:
            claim.release(*_failed(error))
            raise
        finally:
            self._held = None
            claim.release("finished")

    def take(self, kind: str, what: str) -> JobClaim:
        """Take the slot for a job that is about to start, unless the caller holds it. Raises LabBusy, LabError."""
        if self._held is not None:
            if self._used:
                raise LabError(f"job {self._held.id} has had its one job; leave its context to start another")
            self._used = True
            return self._held
        self._starting = self._current = JobClaim.take(self._lab, kind, what)
        return self._starting

    def began(self, claim: JobClaim, job: RunningJob, run: Path, stop: Callable[[RunningJob, str], None]) -> None:
        """Tell the keeper of a job that has started; ``stop`` is called when it is to end. Raises LabError."""
        self._starting = None
        claim.describe(run, job.sessions if isinstance(job, ProgramJob) else ())
        claim.on_stop(lambda why: stop(job, why))

    def failed(self, error: BaseException) -> None:
        """Give back what was taken for a job that did not start."""
        claim, self._starting = self._starting, None
        if claim is not None:
            claim.release(*_failed(error))

    def give_back(self, claim: JobClaim, job: Job | ProgramJob, first: Callable[[], None] = lambda: None) -> None:
        """Give the slot of a job that has ended back, after ``first``, and whatever comes of that."""
        try:
            first()
        finally:
            if claim is not self._held:
                claim.release(*outcome(claim, job))

    def leave(self) -> None:
        """Give the slot back whatever the job does: this process takes the lab down."""
        if self._current is not None:
            self._current.release("stopped", "the lab was taken down", Interrupted.exit_code)


def outcome(claim: JobClaim, job: Job | ProgramJob) -> tuple[str, str, int]:
    """Return how a job ended: state, why, exit status; as in :class:`~testbed.keeper.protocol.JobRecord`."""
    if claim.stop_why:
        return "stopped", claim.stop_why, Interrupted.exit_code
    if isinstance(job, ProgramJob):
        if job.interrupted:
            return "stopped", job.interrupted, Interrupted.exit_code
        why = job.failure()
        return ("failed" if why else "finished"), why, job.worst_status or (job.failed().exit_code if why else 0)
    if job.stopped:
        return "stopped", "stopped by the process that ran it", Interrupted.exit_code
    why = job.failure()
    return ("failed" if why else "finished"), why, job.failed().exit_code if why else 0


def _failed(error: BaseException) -> tuple[str, str, int]:
    if isinstance(error, TestbedError) and not isinstance(error, Interrupted):
        return "failed", str(error), error.exit_code
    if isinstance(error, Exception):
        return "failed", repr(error), TestbedError.exit_code
    return "stopped", "interrupted by the user", Interrupted.exit_code
