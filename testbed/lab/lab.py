"""A running lab as a Python object: every verb of the command line is a method here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.certification.certificate import Certificate
from testbed.core.plan.addressing import MANAGEMENT, PLANT, PROMETHEUS_PORT
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.core.workload import progress_schema, workload_words
from testbed.core.workload.progress_source import Progress
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload, Start, Workload
from testbed.errors import Interrupted, LabError, UnknownName, UserError
from testbed.host import lab_nodes, lab_owner, strategy_packages
from testbed.host.files import store
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_owner import Owner
from testbed.host.linux import invocation
from testbed.host.metrics.port_forward import Forwarder
from testbed.keeper import client
from testbed.lab import capture as capturing
from testbed.lab import certify as certification
from testbed.lab import fiber_status, job_status, lab_logs, outside_access, status, teardown
from testbed.lab.capture import Capture
from testbed.lab.fiber_status import FiberStatus
from testbed.lab.injected_fault import Fault, LabFaults
from testbed.lab.job_status import JobStatus
from testbed.lab.jobs import attached_job
from testbed.lab.jobs.attached_job import AttachedJob
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim
from testbed.lab.jobs.job_run import JobRun
from testbed.lab.jobs.lab_jobs import LabJobs, Launch
from testbed.lab.jobs.program_job import ProgramJob
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import BY_USER, RunningJob

if TYPE_CHECKING:
    from testbed.lab.savable_report import SavableReport


class Lab:
    """A running lab. As a context manager it is taken down on exit, whatever happened inside."""

    def __init__(self, folder: LabFolder) -> None:
        self._folder = folder
        self.name = folder.name
        self.topology = _read_topology(folder)
        self.certificate: Certificate | None = certification.read_stored(folder)
        self.strict = False
        """Whether jobs are refused on a noisy host."""
        self.allow_uncertified = False
        """Whether jobs may run even if the lab is not certified; every page of their reports is marked."""
        self._faults = LabFaults(folder, self.topology)
        self._jobs = LabJobs(self, folder)

    @property
    def owner(self) -> Owner | None:
        """Who brought the lab up, when, and from which login; None if that is unknown."""
        return lab_owner.owner(self._folder)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt | Interrupted):
            self._jobs.interrupt(BY_USER)
        self.down()

    # ---- faults

    def inject(
        self, fault: str, target: str, /, *, for_s: float | None = None, wait: bool = False, **parameters: str | float
    ) -> Fault:
        """Inject a fault; the keeper ends it after ``for_s`` seconds even if this process has ended.

        ``wait`` returns when the fault has ended, after ``for_s`` or by itself. ``parameters`` are those of the command
        line: ``down="200ms", times=5``; a Python keyword takes a trailing underscore: ``from_="1%"``.

        Raises UserError or UnknownName before anything is changed.
        """
        written = {key.removesuffix("_"): str(value) for key, value in parameters.items()}
        return self._faults.inject(fault, target, written, for_s, wait=wait)

    def cut(self, target: str, *, for_s: float | None = None, carrier: str | None = None) -> Fault:
        """Cut a link, one direction of it, or every link in a duct; ``carrier`` as in ``inject cut``."""
        if carrier is None:
            return self.inject("cut", target, for_s=for_s)
        return self.inject("cut", target, for_s=for_s, carrier=carrier)

    def heal(self, what: str | None = None) -> tuple[Fault, ...]:
        """End one fault (by id), all faults of one target, link or node, or all; return those that ended now.

        If the keeper is gone, heals the lab from its journal. Every fault is tried; the error lists all that failed.
        Raises UnknownName, HostError.
        """
        return self._faults.heal(what)

    def without_keeper(self) -> str:
        """Return what is left of a lab whose keeper is dead, and what to do; empty while a keeper is alive."""
        if client.answers(self._folder) or teardown.keeper_alive(self._folder):
            return ""
        return status.without_keeper(self._folder)[0]

    def faults(self) -> tuple[Fault, ...]:
        """Return all faults since the lab came up, including ended ones (of thousands of those, the latest)."""
        return self._faults.all()

    # ---- looking

    def status(self) -> status.LabStatus:
        return status.status(self._folder, self.topology, self.certificate)

    def fiber(self, target: str) -> tuple[FiberStatus, ...]:
        """Return what the emulator applies to and counts of each direction of ``target`` now: ``north:west``, or both
        of ``north``. Raises UnknownName; LabError if the keeper does not answer or the emulator has died."""
        return fiber_status.look(self._folder, self.topology, target)

    def capture(
        self,
        target: str,
        file: Path | str | int,
        *,
        before: bool = False,
        for_s: float | None = None,
        most_bytes: int | None = capturing.MOST_BYTES,
        snaplen: int = capturing.LONGEST_SNAPLEN,
    ) -> Capture:
        """Write the packets of a fiber to ``file`` (pcapng, for tcpdump and Wireshark) until the capture is stopped.

        Those of ``north:west`` arrive at the gateway of west, after delay and loss; with ``before`` they are captured
        as the other gateway sends them. Arguments and errors as of :func:`testbed.lab.capture.capture`::

            with lab.capture("north:west", "x.pcapng") as capture:
                lab.launch(["python", "train.py"])
            print(capture.packets, capture.dropped)
        """
        target_file = file if isinstance(file, int) else Path(file)
        return capturing.capture(
            self._folder,
            self.topology,
            target,
            target_file,
            before=before,
            for_s=for_s,
            most_bytes=most_bytes,
            snaplen=snaplen,
        )

    def certify(
        self,
        thorough: bool = False,
        tell: Callable[[str], None] | None = None,
        *,
        calibrate_first: bool = False,
    ) -> Certificate:
        """Measure all fibers now and store the certificate with the lab, whatever its verdict.

        ``tell`` receives the current measurement and its estimated duration. ``calibrate_first`` measures anew what
        calibration takes off each delay, as while the lab came up.
        """
        self.certificate = certification.certify(
            self._folder, self.topology, thorough=thorough, calibrate_first=calibrate_first, tell=tell
        )
        certification.store(self._folder, self.certificate)
        return self.certificate

    @property
    def prometheus(self) -> str:
        """``address:port`` of Prometheus in the lab's management network; empty if none is running."""
        return str(client.keeper(self._folder).hello()["prometheus"])

    def observe(self, port: int = PROMETHEUS_PORT) -> Forwarder:
        """Forward ``port`` of 127.0.0.1 to the lab's Prometheus until the forwarder is closed.

        Raises UserError when the lab was brought up without ``observe`` or the port is not available; LabError when
        Prometheus has ended.
        """
        return outside_access.forward_prometheus(self._folder, port)

    def logs(self, what: str | None = None, follow: bool = False, job: str | None = None) -> Iterator[str]:
        """Yield lines of the logs of keeper, emulator, agents and Prometheus, or of one node or rank: the output of its
        program in the lab's latest run, and of no earlier lab's.

        ``follow`` continues with the next run, and ends with LabError when the lab is taken down. ``job``: of that
        job's run, until it ends; without ``what``, of all its ranks.
        """
        if job is not None:
            yield from attached_job.output_lines(self._folder, self.topology, job, what, follow)
            return
        own = None if self.run_directory is None else self.run_directory.path
        yield from lab_logs.lines(self._folder, self.topology, what, follow, own)

    def jobs(self) -> tuple[JobStatus, ...]:
        """Return all jobs since the lab came up, of this process and of others, with their figures."""
        return tuple(job_status.of(job) for job in client.keeper(self._folder).jobs())

    def job(self, id: str) -> RunningJob:
        """Return a job by its id (``j1``), of this process or of another one, to wait for it or to stop it.

        Raises UnknownName.
        """
        own = self._jobs.job
        return own if own is not None and own.id == id else AttachedJob(self._folder, id)

    # ---- working

    def claimed(self, kind: str, what: str, *, detached: bool = False) -> AbstractContextManager[JobClaim]:
        """Hold the lab's job slot as long as the context lasts, for the one job that begins inside. Raises LabBusy."""
        return self._jobs.claimed(kind, what, detached=detached)

    @property
    def current_run(self) -> JobRun | None:
        """The run of this object's latest job, or of its next one; None before the first."""
        return self._jobs.run

    @property
    def run_directory(self) -> RunDirectory | None:
        """The directory of :attr:`current_run`."""
        return None if self._jobs.run is None else self._jobs.run.directory

    @property
    def recorder(self) -> Recorder | None:
        """What records metrics and events of the current run, as long as that goes on."""
        return None if self._jobs.run is None else self._jobs.run.recorder

    @property
    def runs_as_root(self) -> bool:
        """Whether :meth:`exec` runs programs as root with this host's files: in namespaces, not in containers."""
        return lab_nodes.driver(self._folder).visits_as_root()

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run a program inside a node, gateway (``east-gw``), ``plant`` or ``mgmt``, attached to this terminal; return
        its exit status. In namespaces it runs as root."""
        places = {*self.topology.node_names, *(site.gateway for site in self.topology.sites), PLANT, MANAGEMENT}
        if node not in places:
            raise UnknownName("node", node, sorted(places))
        return lab_nodes.place(self._folder, node).visit(argv)

    def ssh_config(self) -> str:
        """Return an ssh_config(5) with which ``ssh -F FILE east-0`` runs commands in nodes, as programs of
        :meth:`launch` run. Raises MissingTool where OpenSSH is missing, UserError in containers."""
        return outside_access.ssh_config(self._folder, self.topology)

    def launch(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        ranks_per_node: int = 1,
        progress: Progress | str | Mapping[str, Any] | None = None,
        start: Start = "direct",
        mpiexec: str = "",
        directory: Path | None = None,
        echo: Callable[[str], None] | None = None,
        echo_error: Callable[[str], None] | None = None,
        as_root: bool = False,
        tell: Callable[[str], None] | None = None,
        read_only: bool = False,
        keep_scratch: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> ProgramJob:
        """Start a user's program once per rank with torchrun's environment, and return the job.

        ``start``: "mpi" has the program's own MPI start the ranks, over the fabric (``mpiexec``: by this one);
        "per-node" starts the program once on each node, which starts ``ranks_per_node`` ranks itself, as torchrun does.

        It runs as the user who called sudo, else the owner of the working directory, else a uid of the testbed's own,
        in containers of the image. ``as_root``, in namespaces: as root, which can change every file of this host, this
        run's too. In containers the user must be able to write in the working directory, unless ``read_only``.

        ``progress`` says where its steps are read, as in an experiment file: a preset's name, or ``{"line": …}``,
        ``{"csv": …}``, ``{"tensorboard": …}``, ``{"prometheus": …}``; without it, where it calls
        ``testbed_agents.step``.

        Each node has a folder of its own on disk, TESTBED_SCRATCH, with TMPDIR inside; it goes with the lab, or with
        ``keep_scratch`` is a folder of the run directory. ``note`` receives, before the program begins, that its nodes
        share /tmp and why, and folders that it cannot write.

        Its output is kept in a new run directory below ``directory`` (default: ``$TESTBED_RUNS``, else the caller's
        data folder); ``tell`` receives where, before the program begins. ``echo`` receives each line of output,
        prefixed with its rank; with ``echo_error`` only those of stdout, as that receives those of stderr.

        Raises FidelityError and NoisyHost like :meth:`train`, LabError if a node has no power, LabBusy if a job is
        running, UserError if the user cannot read the program, CannotStart if the command does not exist or cannot be
        executed.
        """
        if not argv:
            write = invocation.command("launch", *lab_owner.flag(self.name), "--", "python", "train.py")
            raise UserError(f"missing command to launch; write: {write}")
        if isinstance(progress, str | Mapping):
            progress = progress_schema.parse_value(progress)
        workload = ProgramWorkload(
            tuple(argv), dict(environment or {}), ranks_per_node, progress, start=start, mpiexec=mpiexec,
            keep_scratch=keep_scratch,
        )  # fmt: skip
        return self._jobs.launch(
            Launch(workload, directory, echo, echo_error, as_root, tell, read_only=read_only, note=note)
        )

    def start(
        self,
        workload: Workload,
        *,
        own_run: bool = True,
        read_only: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> RunningJob:
        """Start a job of any kind, in the lab's next run: :meth:`train` and :meth:`launch` by one name.

        ``own_run``: the run ends with the job. Otherwise a program's run goes on, as an agents' job's does, until
        :meth:`report` or the next job. Raises what those two raise.
        """
        if (agents := workload.agents) is not None:
            return self._jobs.train(agents)
        assert workload.program is not None
        return self._jobs.launch(Launch(workload.program, read_only=read_only, note=note, own_run=own_run))

    @property
    def stop_requested(self) -> str:
        """Why another process has asked the latest job to end; empty if none has."""
        return self._jobs.stop_why

    def interrupt(self, why: str) -> None:
        """Stop the current job, if it runs, and have its run recorded as interrupted. Raises LabError."""
        self._jobs.stop(why)

    def train(
        self,
        steps: int = 500,
        *,
        strategy: str | None = None,
        compute: object = None,
        model: object = None,
        noise: object = None,
        options: Mapping[str, object] | None = None,
        **workload: Any,
    ) -> Job:
        """Start the testbed's own training job (see :class:`AgentWorkload`) and return it.

        Args:
            strategy: a name of ``testbed ls strategies``, or ``diloco:every=50,outer.rate=0.7``; default: ddp.
            compute: ``80ms`` declares how long a step computes, ``{"real": True, "at_least": "80ms"}`` too, with the
                agents' model inside that time; None for real compute.
            model: parameters at full scale, as in ``1.3B``, of a model of declared compute.
            noise: of declared compute, as in ``5%``.
            options: of the strategy, as in ``{"every": 50, "outer.rate": 0.7}``.
            workload: further fields of AgentWorkload.

        Raises:
            FileMistakes: everything that is wrong with strategy and compute, in this lab.
            FidelityError: a fiber is outside tolerance, unless :attr:`allow_uncertified` is set.
            NoisyHost: the fibers were not measurable, unless :attr:`allow_uncertified` is set; or the host was noisy
                and :attr:`strict` is set.
            LabBusy: a job is running.
        """
        strategy_packages.register()
        if workload.get("data") is not None:
            workload["data"] = str(workload["data"])
        plain = AgentWorkload(steps, **workload)
        return self._jobs.train(workload_words.changed(plain, strategy, compute, model, noise, options, prefix=""))

    def open_run(self, root: Path | None = None) -> RunDirectory:
        """Create a run directory for the next job."""
        return self._jobs.open_run(root)

    def report(self) -> SavableReport:
        """Return the report of this lab object's last job, and write it into the run directory. Ends the job first if
        it is still running."""
        run = self._jobs.close_run()
        if run is None:
            raise UserError(f"no job was run in lab {self.name} yet; call train() or launch() first")
        from testbed.lab.savable_report import SavableReport  # takes 0.1 s with its imports

        return SavableReport.of(store.write_report(run))

    def down(self) -> None:
        """Take the lab down; does nothing if it is already down."""
        try:
            self._jobs.end_run()
        finally:  # also when the disk is full
            self._jobs.leave()
            teardown.down(self._folder)
        self._jobs.give_run()


def _read_topology(folder: LabFolder) -> Topology:
    try:
        return topology_from_dict(json.loads(folder.topology.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"lab {folder.name} is incomplete: {folder.topology.name} cannot be read; {lab_owner.or_down(folder)}"
        ) from error
