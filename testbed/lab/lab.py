"""A running lab as a Python object: every verb of the command line is a method here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.core.certification import admission
from testbed.core.certification.certificate import Certificate
from testbed.core.faults.fault_registry import compile_fault, registry
from testbed.core.faults.fault_target import all_targets
from testbed.core.plan.addressing import MANAGEMENT, PLANT, PROMETHEUS_PORT
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.core.units import MOST_DURATION_S
from testbed.core.workload import progress_schema, workload_layout, workload_words
from testbed.core.workload.progress_source import Progress
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload, Start, Workload
from testbed.errors import (
    Interrupted,
    JobFailed,
    LabError,
    StorageError,
    TestbedError,
    UnknownName,
    UserError,
)
from testbed.host import lab_nodes, lab_owner, strategy_packages
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.files import beneath, runs_folder, store
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_owner import Owner
from testbed.host.linux import invocation
from testbed.host.linux.program_user import ProgramUser
from testbed.host.metrics.port_forward import Forwarder, into_namespace
from testbed.keeper import client
from testbed.lab import capture as capturing
from testbed.lab import certify as certification
from testbed.lab import fiber_status, job_status, lab_logs, program_rights, program_start, ssh_access, status, teardown
from testbed.lab.capture import Capture
from testbed.lab.fiber_status import FiberStatus
from testbed.lab.injected_fault import Fault
from testbed.lab.job_status import JobStatus
from testbed.lab.jobs import job_logs, master_port, run_metadata
from testbed.lab.jobs.attached_job import AttachedJob
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim
from testbed.lab.jobs.lab_slots import LabSlots, gives_slot_back
from testbed.lab.jobs.node_scratch import NodeScratch
from testbed.lab.jobs.process_ends import nodes_without_power
from testbed.lab.jobs.program_job import ProgramJob
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.jobs.running_job import RunningJob

if TYPE_CHECKING:
    from testbed.lab.savable_report import SavableReport


_FUTURE: Final = 1 << 53
"""A number that no event has yet."""


class Lab:
    """A running lab. As a context manager it is taken down on exit, whatever happened inside."""

    def __init__(self, folder: LabFolder) -> None:
        self._folder = folder
        self.name = folder.name
        self.topology = _read_topology(folder)
        self.certificate: Certificate | None = _read_certificate(folder)
        self.strict = False
        """Whether jobs are refused on a noisy host."""
        self.allow_uncertified = False
        """Whether jobs may run even if the lab is not certified; every page of their reports is marked."""
        self.run_directory: RunDirectory | None = None
        self.recorder: Recorder | None = None
        self._job: RunningJob | None = None
        self._slots = LabSlots(folder)
        self._used = False
        self._ending = run_metadata.Ending()
        """How the current run ends if nothing else happens to it."""

    @property
    def owner(self) -> Owner | None:
        """Who brought the lab up, when, and from which login; None if that is unknown."""
        return lab_owner.owner(self._folder)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt | Interrupted):
            self._ending = run_metadata.Ending("interrupted", "interrupted by the user")
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
        if for_s is not None and not 0 < for_s <= MOST_DURATION_S:
            raise UserError(
                f"expected a fault duration greater than 0 s and at most {MOST_DURATION_S:g} s (7 days), "
                f"got {for_s:g} s; omit it to keep the fault until it is healed"
            )
        written = {key.removesuffix("_"): str(value) for key, value in parameters.items()}
        self._refuse_fault(fault, target, written)
        record = client.keeper(self._folder).inject(kind=fault, target=target, parameters=written, for_s=for_s)
        mine = Fault.of(record, self)
        if wait and mine.lasts_s is not None:
            self._await_end(mine, time.monotonic() + mine.lasts_s + 5.0)
        return mine

    def _refuse_fault(self, fault: str, target: str, parameters: Mapping[str, str]) -> None:
        """Raise UserError or UnknownName for a fault that the keeper, which compiles it again, would refuse."""
        kind = registry().get(fault)
        of_ranks = kind is not None and kind.of_ranks
        compile_fault(
            self.topology,
            fault,
            target,
            parameters,
            client.keeper(self._folder).ranks_per_node() if of_ranks else 1,
        )

    def _await_end(self, fault: Fault, until: float) -> None:
        """Return when ``fault`` has ended, or at ``until``. The keeper answers when something has happened."""
        with client.Connection(self._folder) as connection:
            since = connection.keeper.events(since=_FUTURE)["next"]
            fault.refresh()
            while fault.ended is None and (left_s := until - time.monotonic()) > 0:
                since = connection.keeper.events(since=since, wait_s=left_s)["next"]
                fault.refresh()

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
        if not client.answers(self._folder):
            left = teardown.heal(self._folder, what)
            if what is not None and not left:
                self._refuse_unknown(what, teardown.faults_ever(self._folder))
            return tuple(Fault.of(it, self) for it in left)
        active = [it for it in self.faults() if it.ended is None]
        chosen = [it for it in active if what in (None, it.id, it.target, *it.links, *it.nodes)]
        if what is not None and not chosen:
            self._refuse_unknown(what, {name for it in self.faults() for name in (it.id, it.target)})
        ended = client.keeper(self._folder).heal(ids=[it.id for it in chosen], everything=what is None)
        return tuple(Fault.of(it, self) for it in ended)

    def _refuse_unknown(self, what: str, faults: Set[str]) -> None:
        """Raise UnknownName unless ``what`` can be healed; ``faults`` are ids and targets of all faults so far."""
        if what.partition(":")[0] not in (known := faults | all_targets(self.topology)):
            raise UnknownName("fault, link, node or site", what, sorted(known))

    def without_keeper(self) -> str:
        """Return what is left of a lab whose keeper is dead, and what to do; empty while a keeper is alive."""
        if client.answers(self._folder) or teardown.keeper_alive(self._folder):
            return ""
        return status.without_keeper(self._folder)[0]

    def faults(self) -> tuple[Fault, ...]:
        """Return all faults since the lab came up, including ended ones (of thousands of those, the latest)."""
        return tuple(Fault.of(it, self) for it in client.keeper(self._folder).faults())

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
        try:
            content = json.dumps(self.certificate.to_dict(), indent=1).encode()
            beneath.replace(self._folder.path, self._folder.certificate.name, content)
        except OSError as error:
            raise StorageError(f"cannot write {self._folder.certificate}: {error.strerror}") from error
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
        hello = client.keeper(self._folder).hello()
        if hello["prometheus_ended"]:
            logs = invocation.command("logs", "-l", self.name)
            raise LabError(f"Prometheus of lab {self.name} {hello['prometheus_ended']}; see: {logs}")
        if not hello["prometheus"]:
            raise UserError(
                f"lab {self.name} runs no Prometheus; only a lab brought up with"
                f" `{invocation.command('up', '--observe', 'metro-40km')}` has one"
            )
        address, _, there = hello["prometheus"].rpartition(":")
        return Forwarder(into_namespace(lab_nodes.netns(self._folder, MANAGEMENT), (address, int(there))), port)

    def logs(self, what: str | None = None, follow: bool = False, job: str | None = None) -> Iterator[str]:
        """Yield lines of the logs of keeper, emulator, agents and Prometheus, or of one node or rank: the output of its
        program in the lab's latest run, and of no earlier lab's.

        ``follow`` continues with the next run, and ends with LabError when the lab is taken down. ``job``: of that
        job's run, until it ends; without ``what``, of all its ranks.
        """
        if job is not None:
            yield from job_logs.lines(self._folder, self.topology, job, what, follow)
            return
        own = self.run_directory.path if self.run_directory is not None else None
        yield from lab_logs.lines(self._folder, self.topology, what, follow, own)

    def jobs(self) -> tuple[JobStatus, ...]:
        """Return all jobs since the lab came up, of this process and of others, with their figures."""
        return tuple(job_status.of(it) for it in client.keeper(self._folder).jobs())

    def job(self, id: str) -> RunningJob:
        """Return a job by its id (``j1``), of this process or of another one, to wait for it or to stop it.

        Raises UnknownName.
        """
        if self._job is not None and self._job.id == id:
            return self._job
        return AttachedJob(self._folder, id)

    # ---- working

    def claimed(self, kind: str, what: str, *, detached: bool = False) -> AbstractContextManager[JobClaim]:
        """Hold the lab's job slot for the one job that begins inside, and for as long as the context lasts.

        Raises LabBusy if another job has it.
        """
        return self._slots.held(kind, what, detached=detached)

    @property
    def runs_as_root(self) -> bool:
        """Whether :meth:`exec` runs programs as root with this host's files: in namespaces, not in containers."""
        return lab_nodes.driver(self._folder) != "containerlab" and os.geteuid() == 0

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run a program inside a node, gateway (``east-gw``), ``plant`` or ``mgmt``, attached to this terminal; return
        its exit status. In namespaces it runs as root."""
        nodes = set(self.topology.node_names)
        others = {site.gateway for site in self.topology.sites} | {PLANT, MANAGEMENT}
        if node not in nodes | others:
            raise UnknownName("node", node, sorted(nodes | others))
        return lab_nodes.place(self._folder, node).visit(argv)

    def ssh_config(self) -> str:
        """Return an ssh_config(5) with which ``ssh -F FILE east-0`` runs commands in nodes, as programs of
        :meth:`launch` run. Raises MissingTool where OpenSSH is missing, UserError in containers."""
        if lab_nodes.driver(self._folder) == "containerlab":
            enter = invocation.command("exec", *lab_owner.flag(self.name), self.topology.node_names[0], "bash")
            raise UserError(f"ssh is for labs of namespaces; these nodes are containers. Enter them with: {enter}")
        user = program_rights.of_driver("netns")
        assert user is not None
        return ssh_access.configuration(self._folder, self.topology, user)

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
        return self._launch(
            workload, directory, echo, echo_error, as_root=as_root, tell=tell, read_only=read_only, note=note
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
        if isinstance(workload, AgentWorkload):
            return self._train(workload)
        return self._launch(workload, None, None, None, read_only=read_only, note=note, own_run=own_run)

    @gives_slot_back
    def _launch(
        self,
        workload: ProgramWorkload,
        directory: Path | None,
        echo: Callable[[str], None] | None,
        echo_error: Callable[[str], None] | None,
        *,
        as_root: bool = False,
        tell: Callable[[str], None] | None = None,
        read_only: bool = False,
        note: Callable[[str], None] | None = None,
        own_run: bool = True,
    ) -> ProgramJob:
        """Start a program; ``own_run`` as of :meth:`start`, the others as of :meth:`launch`."""
        argv, folder = workload.command, Path(workload.folder) if workload.folder else Path.cwd()
        contained = lab_nodes.driver(self._folder) == "containerlab"
        if as_root and contained:
            raise UserError("--as-root is for namespaces: in containers programs never run as root")
        user = program_rights.in_containers(folder) if contained else program_rights.of_driver("netns", folder)
        if as_root:
            user = None
        if not contained:
            program_start.refuse_unstartable(user, argv, folder, workload.environment.get("PATH"))
        if user is not None and not contained:
            program_rights.refuse_program(user, argv, folder)
            self._refuse_folder(user, directory)
        self._refuse_uncertified()
        self._refuse_powerless()
        if user is not None and contained:
            self._refuse_in_container(user, argv, folder, read_only)
        claim = self._slots.take("launch", shlex.join(argv))
        run = self._unused_run(directory)
        if tell is not None:
            tell(runs_folder.note(run.path, directory))
        lab_nodes.pin(self._folder, self.topology.node_names, run.path)
        run_metadata.amend(run, program_user=user.to_dict() if user else None)
        port = master_port.free(self._folder, self.topology.node_names[0])
        recorder = Recorder(self._folder, self.topology, run, program=True)
        recorder.start()
        if not own_run:
            self.recorder = recorder
        try:
            scratch = NodeScratch(self._folder, self.topology.node_names, run, workload, folder, user)
            if note is not None:
                for line in self._notes(scratch, workload, user, read_only):
                    note(line)
            self._job = job = ProgramJob(
                self._folder,
                self.topology,
                workload,
                run,
                claim.id,
                port,
                scratch,
                user=user,
                echo=echo or (lambda line: None),
                echo_error=echo_error,
                concluded=lambda job: self._slots.give_back(
                    claim, job, (lambda: _conclude(job, run, recorder)) if own_run else (lambda: None)
                ),
            )
            self._begun(claim, job, run)
        except BaseException as error:
            if not own_run:
                raise
            recorder.stop()
            failed = isinstance(error, TestbedError)
            how = run_metadata.Ending(
                "failed" if failed else "interrupted",
                str(error) if failed else "interrupted by the user",
                str(error) if failed else "",
            )
            run_metadata.end(run, how)
            run.give_to_caller()
            raise
        return job

    def _notes(
        self, scratch: NodeScratch, workload: ProgramWorkload, user: ProgramUser | None, read_only: bool
    ) -> Iterator[str]:
        """Yield what is worth knowing of the disk before a program begins. Raises HostError."""
        if scratch.shared:
            yield f"note: /tmp is shared by all nodes, because {scratch.shared}; $TESTBED_SCRATCH is each node's own"
        if user is not None and not read_only:
            node = self.topology.node_names[0]
            where = scratch.place(node)
            inside = where if isinstance(where, ContainerPlace) else None
            home = workload.environment.get("HOME") or scratch.home(node)
            if found := program_rights.unwritable(user, inside, scratch.working, home):
                yield f"note: {found}"

    def _stop_job(self, job: RunningJob, why: str) -> None:
        """End a job because somebody outside of this process asked for it."""
        self._ending = run_metadata.Ending("interrupted", why)
        if isinstance(job, ProgramJob):
            job.interrupted = job.interrupted or why
        job.stop()

    @property
    def stop_requested(self) -> str:
        """Why another process has asked the latest job to end; empty if none has."""
        return self._slots.stop_why

    def interrupt(self, why: str) -> None:
        """Stop the current job, if it runs, and have its run recorded as interrupted. Raises LabError."""
        if self._job is not None and not self._job.over():
            self._stop_job(self._job, why)

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
        return self._train(workload_words.changed(plain, strategy, compute, model, noise, options, prefix=""))

    @gives_slot_back
    def _train(self, workload: AgentWorkload) -> Job:
        workload_layout.refuse_mistakes(workload, self.topology)
        self._refuse_uncertified()
        if not client.keeper(self._folder).ranks():
            raise LabError(
                f"lab {self.name} has no training agents: it was brought up with --no-agents, torch is not installed,"
                " or the ranks' user cannot run this Python"
            )
        user = program_rights.of_driver(lab_nodes.driver(self._folder))
        if user is not None:
            self._refuse_folder(user)
            program_rights.refuse_files(user, program_rights.agent_files(workload))
        claim = self._slots.take("train", f"{workload.strategy}, {workload.steps} steps")
        run = self._unused_run()
        lab_nodes.pin(self._folder, self.topology.node_names, run.path)
        if user is not None:
            run.admit((user.uid, user.gid), len(self.topology.node_names))
        # The report asks the twin of this workload, whose shape the ranks do not record.
        told = workload.to_dict()
        run_metadata.amend(run, workload=told, program_user=user.to_dict() if user else None)
        self.recorder = Recorder(self._folder, self.topology, run)
        self.recorder.start()
        self._job = job = Job(
            self._folder,
            self.topology,
            workload,
            run.ranks,
            claim.id,
            master_port.free(self._folder, self.topology.node_names[0]),
            note=lambda attempts: run_metadata.amend(run, attempts=attempts),
            user=user,
            concluded=lambda job: self._slots.give_back(claim, job),
        )
        self._begun(claim, job, run)
        return job

    def _begun(self, claim: JobClaim, job: Job | ProgramJob, run: RunDirectory) -> None:
        """Tell the keeper of a job that has started; where that fails, end the job, which its caller never gets."""
        try:
            self._slots.began(claim, job, run.path, self._stop_job)
        except BaseException:
            with contextlib.suppress(TestbedError):
                job.stop()
            raise

    def _refuse_folder(self, user: ProgramUser, root: Path | None = None) -> None:
        """Raise UserError if programs of ``user`` cannot write below the next run directory."""
        if root is None and self.run_directory is not None and not self._used:
            root = self.run_directory.path.parent
        program_rights.refuse_folder(user, runs_folder.ready(root, 0))

    def _refuse_in_container(self, user: ProgramUser, argv: Sequence[str], folder: Path, read_only: bool) -> None:
        """Mount ``folder`` into all nodes. Raises UserError if programs of ``user`` cannot write in it."""
        place = lab_nodes.place(self._folder, self.topology.node_names[0], job=True, user=user)
        assert isinstance(place, ContainerPlace)
        client.keeper(self._folder).share_folder(folder=str(folder))
        program_rights.refuse_in_container(user, place, argv, folder, read_only=read_only)
        program_start.refuse_unstartable_in_container(place, argv, folder)

    def _refuse_powerless(self) -> None:
        """Raise LabError if a fault has cut a node's power: its namespace could still run programs."""
        if dark := sorted(nodes_without_power(self._folder)):
            heal = invocation.command("heal", "-l", self.name)
            raise LabError(f"a fault has cut the power of {', '.join(dark)}; heal it: {heal}")

    def _refuse_uncertified(self) -> None:
        admission.refuse(
            self.certificate,
            self.topology.scale,
            strict=self.strict,
            allow_uncertified=self.allow_uncertified,
            measure_again=invocation.command("certify", "-l", self.name),
        )

    def open_run(self, root: Path | None = None) -> RunDirectory:
        """Create a run directory for the next job."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.run_directory = RunDirectory.create(root or runs_folder.ready(need_bytes=0), f"{self.name}-{stamp}")
        self._used = False
        run_metadata.begin(self.run_directory, self._folder, self.topology, self.certificate)
        lab_logs.note_run(self._folder, self.run_directory.path)
        return self.run_directory

    def _unused_run(self, root: Path | None = None) -> RunDirectory:
        """Return a run directory without a job: each holds one, so that records do not mix."""
        self._end_run()
        self._ending = run_metadata.Ending()
        run = self.open_run(root) if self.run_directory is None or self._used else self.run_directory
        self._used = True
        return run

    def _end_run(self, give: bool = True) -> None:
        """Record the end of the current run. ``give``: it belongs to the caller now, as no rank writes any more."""
        if isinstance(self._job, ProgramJob):
            self._job.stop()
        how = replace(self._ending)
        if isinstance(self._job, ProgramJob) and self._job.interrupted:
            how = run_metadata.Ending("interrupted", self._job.interrupted)
        elif self._job is not None and self._job.over() and not (isinstance(self._job, Job) and self._job.stopped):
            how.fail(self._job.failure(), tells_nothing=not isinstance(self._job.failed(), JobFailed))
        if self.recorder is not None:
            self.recorder.stop()
            how.fail(self.recorder.lab_failure, tells_nothing=True)
            self.recorder = None
        if self.run_directory is not None and self._used:
            run_metadata.end(self.run_directory, how)
            if give:
                self.run_directory.give_to_caller()

    def report(self) -> SavableReport:
        """Return the report of this lab object's last job, and write it into the run directory. Ends the job first if
        it is still running."""
        if self.run_directory is None:
            raise UserError(f"no job was run in lab {self.name} yet; call train() or launch() first")
        from testbed.lab.savable_report import SavableReport  # takes 0.1 s with its imports

        if self._job is not None:
            self._job.close()
        self._end_run()
        return SavableReport.of(store.write_report(self.run_directory))

    def down(self) -> None:
        """Take the lab down; does nothing if it is already down."""
        try:
            self._end_run(give=False)
        finally:  # also when the disk is full
            self._slots.leave()
            teardown.down(self._folder)
        if self.run_directory is not None and self._used:
            self.run_directory.give_to_caller()


def _conclude(job: ProgramJob, run: RunDirectory, recorder: Recorder) -> None:
    """Record the end of a program's run. Raises StorageError."""
    recorder.stop()
    how = run_metadata.Ending()
    if job.interrupted:
        how = run_metadata.Ending("interrupted", job.interrupted)
    else:
        how.fail(job.failure(), tells_nothing=not isinstance(job.failed(), JobFailed))
    how.fail(recorder.lab_failure, tells_nothing=True)
    run_metadata.end(run, how)
    run.give_to_caller()


def _read_topology(folder: LabFolder) -> Topology:
    try:
        return topology_from_dict(json.loads(folder.topology.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"lab {folder.name} is incomplete: {folder.topology.name} cannot be read; {lab_owner.or_down(folder)}"
        ) from error


def _read_certificate(folder: LabFolder) -> Certificate | None:
    try:
        return Certificate.from_dict(json.loads(folder.certificate.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
