"""This process's hold of a lab's job slot, which one job of any kind has at a time (``keeper/job_slot.py``)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import Interrupted, LabBusy, LabError, TestbedError
from testbed.host import lab_owner
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation, process
from testbed.keeper import client
from testbed.keeper.protocol import JobRecord
from testbed.lab.jobs.running_job import BY_USER, JobOutcome, RunningJob

__all__ = ["JobClaim", "busy", "outcome_of_error"]

_KINDS = {"launch": "a launched program", "validate": "a validation"}


def busy(lab: LabFolder, job: JobRecord) -> LabBusy:
    """Return the error for a lab where ``job`` is running."""
    stop = invocation.command("stop", *lab_owner.flag(lab.name), job["id"])
    return LabBusy(
        f"lab {lab.name} is running {_KINDS.get(job['kind'], 'a training job')}; its traffic would be counted as yours."
        f" It is job {job['id']} ({job['what']}): wait until it finishes, or stop it: {stop}"
    )


class JobClaim:
    """The slot, held from :meth:`take` until :meth:`release`, or until this process ends, whatever ends it.

    A thread hears when the job is to end: by `stop`, or because the lab is being taken down.
    """

    def __init__(self, lab: LabFolder, connection: client.Connection, job: str) -> None:
        self.id = job
        self.stop_why = ""
        """Why the job was to end, from outside; empty as long as none has asked."""
        self.lost = threading.Event()
        """Set when the keeper has ended, or has ended the job itself."""
        self._lab, self._connection = lab, connection
        self._hearing = threading.Lock()
        self._heard: Callable[[str], None] | None = None
        self._released = False
        threading.Thread(target=self._hear, name="job-claim", daemon=True).start()

    @classmethod
    def take(cls, lab: LabFolder, kind: str, what: str, *, detached: bool = False) -> JobClaim:
        """Take the slot for a job of ``kind`` (:class:`~testbed.keeper.protocol.JobRecord`).

        Raises LabBusy if another job has it, LabError.
        """
        connection = client.Connection(lab)
        try:
            pid = os.getpid()
            answer = connection.keeper.claim_job(
                kind=kind, what=what, pid=pid, began=process.started(pid), detached=detached
            )
            if (other := answer["busy"]) is not None:
                raise busy(lab, other)
        except BaseException:
            connection.close()
            raise
        return cls(lab, connection, answer["job"])

    def describe(self, run: Path, sessions: Sequence[int] = ()) -> None:
        """Tell the keeper the run directory, and the sessions of the job's programs. Raises LabError."""
        client.keeper(self._lab).describe_job(job=self.id, run=str(run), sessions=list(sessions))

    def on_stop(self, heard: Callable[[str], None]) -> None:
        """Call ``heard`` with the reason when the job is to end: at once, if somebody has asked already."""
        with self._hearing:
            self._heard = heard
            why = self.stop_why
        if why:
            heard(why)

    def release(self, state: str, why: str = "", exit_status: int = 0) -> None:
        """Give the slot back; idempotent. A lab that is gone has no slot any more."""
        with self._hearing:
            if self._released:
                return
            self._released = True
        with contextlib.suppress(LabError):
            client.keeper(self._lab).release_job(job=self.id, state=state, why=why, exit_status=exit_status)
        self._connection.interrupt()  # ends the thread that hears, which closes it

    def outcome_of(self, job: RunningJob) -> JobOutcome:
        """Return how the job that had the slot has ended."""
        return ("stopped", self.stop_why, Interrupted.exit_code) if self.stop_why else job.outcome()

    def _hear(self) -> None:
        for update in self._connection.pushed():
            if "stop" not in update:
                continue
            with self._hearing:
                first, self.stop_why = not self.stop_why, self.stop_why or update["stop"] or "stopped"
                heard = self._heard
            if first and heard is not None:
                threading.Thread(target=_call, args=(heard, self.stop_why), name="job-stop", daemon=True).start()
        self._connection.close()
        with self._hearing:
            ended, heard = not self._released, self._heard
        self.lost.set()
        if ended and heard is not None and client.answers(self._lab):
            self.stop_why = self.stop_why or "the keeper ended the job"
            _call(heard, self.stop_why)


def outcome_of_error(error: BaseException) -> JobOutcome:
    """Return how a job has ended that ``error`` kept from starting or from going on."""
    if isinstance(error, TestbedError) and not isinstance(error, Interrupted):
        return "failed", str(error), error.exit_code
    if isinstance(error, Exception):
        return "failed", repr(error), TestbedError.exit_code
    return "stopped", BY_USER, Interrupted.exit_code


def _call(heard: Callable[[str], None], why: str) -> None:
    with contextlib.suppress(TestbedError):  # the job's own end says what failed
        heard(why)
