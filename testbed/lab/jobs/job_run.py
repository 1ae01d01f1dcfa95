"""One run of a lab: its directory, recorder, job, hold of the lab's job slot, and its end, which is recorded here."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

from testbed.core.fields import json_values, number
from testbed.errors import JobFailed, LabError, StorageError, TestbedError
from testbed.host import scratch
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import run_metadata
from testbed.lab.jobs.job_claim import JobClaim, outcome_of_error
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import BY_USER, RunningJob

__all__ = ["Ending", "JobRun", "fail_ended"]


@dataclass
class Ending:
    """How a run ended, in the terms of run.json: ``finished``, ``interrupted`` or ``failed``."""

    status: str = "finished"
    reason: str = ""
    unknown_because: str = ""

    def fail(self, error: TestbedError | None) -> None:
        """Record a failure, if there is one; the first reason is kept.

        Only a failed job was measured and is bad. Any other error is one of the lab or the host and leaves the result
        unknown, even if it is reported after its effects.
        """
        if error is None:
            return
        if self.status == "finished":
            self.status, self.reason = "failed", str(error)
        if not isinstance(error, JobFailed):
            self.unknown_because = self.unknown_because or str(error)


class JobRun:
    """A run directory from its creation to the end of its one job.

    Attributes:
        directory: of the run.
        job: the run's job; None before it has started.
        recorder: records metrics and events while the run goes on, else None.
        used: whether the run has or had a job; a directory holds one, so that records do not mix.
        ending: how the run ends if nothing else happens to it.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.job: RunningJob | None = None
        self.recorder: Recorder | None = None
        self.used = False
        self.ending = Ending()
        self._claim: JobClaim | None = None
        self._ends_with_job = self._releases = self._ended = False

    def begin(self, claim: JobClaim, *, ends_with_job: bool, releases: bool) -> None:
        """Note the slot of the job that is about to start.

        ``ends_with_job``: the run's end is recorded as soon as the job has ended. ``releases``: the slot is given back
        then too; otherwise by whoever claimed it.
        """
        self.used = True
        self._claim, self._ends_with_job, self._releases = claim, ends_with_job, releases

    def record(self, recorder: Recorder) -> None:
        """Record metrics and events until the run's end."""
        self.recorder = recorder
        recorder.start()

    def started(self, job: RunningJob) -> None:
        """Describe a started job to the keeper. If that fails, stop the job, which its caller never gets."""
        self.job = job
        assert self._claim is not None
        try:
            self._claim.describe(self.directory.path, job.sessions)
            self._claim.on_stop(self.stop)
        except BaseException:
            with contextlib.suppress(TestbedError):
                job.stop()
            raise

    def not_started(self, error: BaseException) -> None:
        """Note that the job could not be started, and give its slot back."""
        try:
            if isinstance(error, TestbedError):
                self.ending.fail(error)
            else:
                self.interrupt(BY_USER)
            if self._ends_with_job:
                self.record_end()
                self.directory.give_to_caller()
        finally:
            self._release(*outcome_of_error(error))

    def job_ended(self, job: RunningJob) -> None:
        """Handle the end of the job; called once, by the job's own thread. Raises StorageError."""
        self.job = job
        try:
            if self._ends_with_job:
                self.record_end()
                self.directory.give_to_caller()
        finally:
            assert self._claim is not None
            self._release(*self._claim.outcome_of(job))

    def _release(self, state: str, why: str, exit_status: int) -> None:
        if self._releases and self._claim is not None:
            self._claim.release(state, why, exit_status)

    def stop(self, why: str) -> None:
        """End the job for a reason outside of it, and have the run recorded as interrupted. Raises LabError."""
        self.interrupt(why)
        if self.job is not None:
            self.job.stop_because(why)

    def interrupt(self, why: str) -> None:
        """Have the run recorded as interrupted."""
        self.ending = Ending("interrupted", why)

    def fail(self, error: TestbedError) -> None:
        """Have the run recorded as failed, unless it has another end already."""
        self.ending.fail(error)

    def end(self) -> None:
        """Record the end of the run if it has a job, whose processes of this one are ended first."""
        if self.job is not None:
            self.job.end_children()
        if self.used:
            self.record_end()

    def stop_recording(self) -> None:
        """Record what happened until now; if the lab itself has failed, so has the run."""
        if self.recorder is not None:
            self.recorder.stop()
            if why := self.recorder.lab_failure:
                self.ending.fail(LabError(why))
            self.recorder = None

    def record_end(self, **changes: Any) -> None:
        """Stop recording, and write how the run ended and other fields of run.json in one write. Idempotent.

        Raises StorageError.
        """
        if self._ended:
            return
        job, ending = self.job, self.ending
        if job is not None and not job.interrupted:
            ending.fail(job.error())
        elif job is not None and ending.status == "finished":
            ending.status, ending.reason = "interrupted", job.interrupted
        self.stop_recording()
        begun = self.directory.read_json("run.json")
        if begun.get("status") == "running":
            if ending.status == "failed" and (full := scratch.shortage(self.directory.path)):
                ending.fail(StorageError(full))  # ranks that cannot write their records end as if the job had failed
            ended_t = time.monotonic()
            noise = json_values(self.directory.stall_log().summary(number(begun, "started_t"), ended_t))
            run_metadata.amend(self.directory, **asdict(ending), ended_t=ended_t, noise=noise, **changes)
        self.directory.free_reserve()
        self._ended = True


def fail_ended(run: RunDirectory, error: TestbedError) -> None:
    """Record that the lab failed after the run's end; an existing reason is kept. Raises StorageError."""
    written = run.read_json("run.json")
    ending = Ending(*(str(written.get(field.name, "")) for field in fields(Ending)))
    ending.fail(LabError(str(error)))
    run_metadata.amend(run, **asdict(ending))
