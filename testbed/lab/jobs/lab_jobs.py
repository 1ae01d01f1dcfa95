"""The jobs that one process starts in a lab: check what a job needs, take its slot, open its run, start it.

A job that is refused makes no run directory.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testbed.core.certification import admission
from testbed.core.certification.certificate import Certificate
from testbed.core.topology.model import Topology
from testbed.core.workload import workload_layout
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload
from testbed.errors import Interrupted, LabError, UserError
from testbed.host import lab_nodes
from testbed.host.files import runs_folder
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper import client
from testbed.lab import lab_logs, program_rights
from testbed.lab.jobs import rank_environment, run_metadata
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim, outcome_of_error
from testbed.lab.jobs.job_run import JobRun
from testbed.lab.jobs.node_scratch import NodeScratch
from testbed.lab.jobs.process_ends import nodes_without_power
from testbed.lab.jobs.program_job import ProgramJob
from testbed.lab.jobs.rank_output import Echo
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import RunningJob

__all__ = ["LabJobs", "Launch"]


@dataclass(frozen=True)
class Launch:
    """A request to launch a program; its fields are those of :meth:`testbed.lab.lab.Lab.launch`.

    ``own_run``: the run ends with the job.
    """

    workload: ProgramWorkload
    directory: Path | None = None
    echo: Echo | None = None
    echo_error: Echo | None = None
    as_root: bool = False
    tell: Callable[[str], None] | None = None
    read_only: bool = False
    note: Callable[[str], None] | None = None
    own_run: bool = True


class _Lab(Protocol):
    """The lab as its jobs see it."""

    name: str
    topology: Topology
    certificate: Certificate | None
    strict: bool
    allow_uncertified: bool


class LabJobs:
    """Starts one job after the other; :attr:`run` is the run of the latest one, or of the next."""

    def __init__(self, lab: _Lab, folder: LabFolder) -> None:
        self._lab, self._folder = lab, folder
        self.run: JobRun | None = None
        self._claim: JobClaim | None = None
        self._held: JobClaim | None = None
        """A claim of the caller's, who gives it back."""
        self._held_is_used = False

    @property
    def stop_why(self) -> str:
        """Why the latest job was to end, from outside; empty if none asked."""
        return "" if self._claim is None else self._claim.stop_why

    @property
    def job(self) -> RunningJob | None:
        """The latest job; None if it could not be started."""
        return None if self.run is None else self.run.job

    @contextlib.contextmanager
    def claimed(self, kind: str, what: str, *, detached: bool = False) -> Iterator[JobClaim]:
        """Hold the slot as long as the context lasts; the end of its job does not give it back. Raises LabBusy."""
        claim = self._held = self._claim = JobClaim.take(self._folder, kind, what, detached=detached)
        self._held_is_used = False
        try:
            yield claim
        except BaseException as error:
            claim.release(*outcome_of_error(error))
            raise
        finally:
            self._held = None
            claim.release("finished")

    def open_run(self, root: Path | None = None) -> RunDirectory:
        """Create a run directory for the next job."""
        name = f"{self._lab.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        run = JobRun(RunDirectory.create(root or runs_folder.ready(need_bytes=0), name))
        self.run = run
        run_metadata.begin(run.directory, self._folder, self._lab.topology, self._lab.certificate)
        lab_logs.note_run(self._folder, run.directory.path)
        return run.directory

    def train(self, workload: AgentWorkload) -> Job:
        """Start a job of the agents. Raises as :meth:`testbed.lab.lab.Lab.train` does."""
        topology, nodes = self._lab.topology, self._lab.topology.node_names
        workload_layout.refuse_mistakes(workload, topology)
        self._refuse_uncertified()
        if not client.keeper(self._folder).ranks():
            raise LabError(
                f"lab {self._lab.name} has no training agents: it was brought up with --no-agents, torch is not"
                " installed, or the ranks' user cannot run this Python"
            )
        user = lab_nodes.driver(self._folder).own_user()
        if user is not None:
            self._refuse_folder(user)
            program_rights.refuse_files(user, program_rights.agent_files(workload))
        with self._starting("train", f"{workload.strategy}, {workload.steps} steps") as (run, claim):
            directory = run.directory
            lab_nodes.pin(self._folder, nodes, directory.path)
            if user is not None:
                directory.admit((user.uid, user.gid), len(nodes))
            # The report asks the twin of this workload, whose shape the ranks do not record.
            run_metadata.amend(directory, workload=workload.to_dict(), program_user=user.to_dict() if user else None)
            run.record(Recorder(self._folder, topology, directory))
            job = Job(
                self._folder,
                topology,
                workload,
                directory.ranks,
                claim.id,
                rank_environment.free_port(self._folder, nodes[0]),
                note=lambda attempts: run_metadata.amend(directory, attempts=attempts),
                user=user,
                concluded=run.job_ended,
            )
            run.started(job)
        return job

    def launch(self, request: Launch) -> ProgramJob:
        """Start a program. Raises as :meth:`testbed.lab.lab.Lab.launch` does."""
        workload, topology = request.workload, self._lab.topology
        folder = Path(workload.folder) if workload.folder else Path.cwd()
        user = self._program_user(request, folder)
        with self._starting("launch", shlex.join(workload.command), request.directory, request.own_run) as (run, claim):
            directory = run.directory
            if request.tell is not None:
                request.tell(runs_folder.note(directory.path, request.directory))
            lab_nodes.pin(self._folder, topology.node_names, directory.path)
            run_metadata.amend(directory, program_user=user.to_dict() if user else None)
            port = rank_environment.free_port(self._folder, topology.node_names[0])
            run.record(Recorder(self._folder, topology, directory, program=True))
            scratch = NodeScratch(self._folder, topology.node_names, directory, workload, folder, user)
            if request.note is not None:
                for line in self._notes(request, scratch, user):
                    request.note(line)
            job = ProgramJob(
                self._folder,
                topology,
                workload,
                directory,
                claim.id,
                port,
                scratch,
                user=user,
                echo=request.echo or (lambda line: None),
                echo_error=request.echo_error,
                concluded=run.job_ended,
            )
            run.started(job)
        return job

    def interrupt(self, why: str) -> None:
        """Have the current run recorded as interrupted."""
        if self.run is not None:
            self.run.interrupt(why)

    def stop(self, why: str) -> None:
        """Stop the latest job, if it runs, and have its run recorded as interrupted. Raises LabError."""
        if self.run is not None and self.job is not None and not self.job.over():
            self.run.stop(why)

    def end_run(self) -> None:
        """Record the end of the current run, and end the job's processes of this one. Raises StorageError."""
        if self.run is not None:
            self.run.end()

    def close_run(self) -> RunDirectory | None:
        """End the job if it still runs, then its run; return the run's directory. None before the first run."""
        if self.run is None:
            return None
        if self.run.job is not None:
            self.run.job.close()
        self.end_run()
        self.give_run()
        return self.run.directory

    def give_run(self) -> None:
        """Give the run to the user who called sudo, once no rank writes into it any more."""
        if self.run is not None and self.run.used:
            self.run.directory.give_to_caller()

    def leave(self) -> None:
        """Give the slot back whatever the job does: this process takes the lab down."""
        if self._claim is not None:
            self._claim.release("stopped", "the lab was taken down", Interrupted.exit_code)

    # ---- inside

    @contextlib.contextmanager
    def _starting(
        self, kind: str, what: str, root: Path | None = None, own_run: bool = False
    ) -> Iterator[tuple[JobRun, JobClaim]]:
        """Take the slot, unless the caller holds it, and a run for the job that starts in the context."""
        claim, run = self._take(kind, what), None
        releases = claim is not self._held
        try:
            self.end_run()
            self.give_run()
            if self.run is None or self.run.used:
                self.open_run(root)
            run = self.run
            assert run is not None
            run.begin(claim, ends_with_job=own_run, releases=releases)
            yield run, claim
        except BaseException as error:
            if run is not None:
                run.not_started(error)
            elif releases:
                claim.release(*outcome_of_error(error))
            raise

    def _take(self, kind: str, what: str) -> JobClaim:
        """Take the slot for a job that is about to start, unless the caller holds it. Raises LabBusy, LabError."""
        if self._held is None:
            self._claim = JobClaim.take(self._folder, kind, what)
            return self._claim
        if self._held_is_used:
            raise LabError(f"job {self._held.id} has had its one job; leave its context to start another")
        self._held_is_used = True
        return self._held

    def _program_user(self, request: Launch, folder: Path) -> ProgramUser | None:
        """Return who a program runs as; None for root. Raises UserError, CannotStart, and what the lab refuses."""
        argv, path = request.workload.command, request.workload.environment.get("PATH")
        driver = lab_nodes.driver(self._folder)
        contained = driver.contained
        if request.as_root and contained:
            raise UserError("--as-root is for namespaces: in containers programs never run as root")
        user = None if request.as_root else driver.launch_user(folder)
        if not contained:
            program_rights.refuse_unstartable(user, argv, folder, path)
        if user is not None and not contained:
            program_rights.refuse_program(user, argv, folder)
            self._refuse_folder(user, request.directory)
        self._refuse_uncertified()
        self._refuse_powerless()
        if user is not None and contained:
            self._refuse_in_container(user, request, folder)
        return user

    def _notes(self, request: Launch, scratch: NodeScratch, user: ProgramUser | None) -> Iterator[str]:
        """Yield what is worth knowing of the disk before a program begins. Raises HostError."""
        if scratch.shared:
            yield f"note: /tmp is shared by all nodes, because {scratch.shared}; $TESTBED_SCRATCH is each node's own"
        if user is not None and not request.read_only:
            node = self._lab.topology.node_names[0]
            home = request.workload.environment.get("HOME") or scratch.home(node)
            if unwritable := program_rights.unwritable(user, scratch.place(node), scratch.working, home):
                yield f"note: {unwritable}"

    def _refuse_folder(self, user: ProgramUser, root: Path | None = None) -> None:
        """Raise UserError if programs of ``user`` cannot write below the next run directory."""
        if root is None and self.run is not None and not self.run.used:
            root = self.run.directory.path.parent
        program_rights.refuse_folder(user, runs_folder.ready(root, 0))

    def _refuse_in_container(self, user: ProgramUser, request: Launch, folder: Path) -> None:
        """Mount ``folder`` into all nodes. Raises UserError if programs of ``user`` cannot write in it."""
        argv = request.workload.command
        place = lab_nodes.place(self._folder, self._lab.topology.node_names[0], job=True, user=user)
        client.keeper(self._folder).share_folder(folder=str(folder))
        program_rights.refuse_in_container(user, place, argv, folder, read_only=request.read_only)
        program_rights.refuse_unstartable_in_container(place, argv, folder)

    def _refuse_powerless(self) -> None:
        """Raise LabError if a fault has cut a node's power: its namespace could still run programs."""
        if dark := sorted(nodes_without_power(self._folder)):
            heal = invocation.command("heal", "-l", self._lab.name)
            raise LabError(f"a fault has cut the power of {', '.join(dark)}; heal it: {heal}")

    def _refuse_uncertified(self) -> None:
        admission.refuse(
            self._lab.certificate,
            self._lab.topology.scale,
            strict=self._lab.strict,
            allow_uncertified=self._lab.allow_uncertified,
            measure_again=invocation.command("certify", "-l", self._lab.name),
        )
