"""A job whose ranks run a program of the user's, inside their nodes, with torchrun's environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.analysis import launched_end
from testbed.core.topology.model import Topology
from testbed.core.workload import mpi_launch
from testbed.core.workload.members import Member, members
from testbed.core.workload.workload import ProgramWorkload
from testbed.errors import JobFailed, LabError, TestbedError
from testbed.host import lab_nodes, remote_starts, runner
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Place, netns
from testbed.host.linux import job_processes, namespace
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper import client
from testbed.keeper.protocol import RankState
from testbed.lab.interruption import further_interrupts
from testbed.lab.jobs import mpi_ranks, rank_environment, rank_output, reporting, run_metadata
from testbed.lab.jobs.mpi_ranks import MpiRanks
from testbed.lab.jobs.node_scratch import NodeScratch
from testbed.lab.jobs.process_ends import ProcessEnds
from testbed.lab.jobs.progress_reader import Places, ProgressReader
from testbed.lab.jobs.rank_launcher import RankProcess, start_rank
from testbed.lab.jobs.rank_output import Echo
from testbed.lab.jobs.rank_signals import INTERRUPT_GRACE_S, RankSignals
from testbed.lab.jobs.reported_steps import Limits, ReportedSteps
from testbed.lab.jobs.running_job import BY_USER, RunningJob
from testbed.lab.jobs.same_files import SameFiles

__all__ = ["GRACE_S", "INTERRUPT_GRACE_S", "ProgramJob"]

GRACE_S = 5.0
"""How long ranks may take to exit by themselves after another has failed."""

LOOK_S = 0.02


class ProgramJob(RunningJob):
    """Runs a program once per rank until all have ended, followed by a thread.

    Each line of output goes to ``echo``, prefixed with its rank, and into ``ranks/rank-<r>.log``. When one rank fails,
    the others are ended after :data:`GRACE_S`, as with torchrun. A workload with a limit is ended at the limit: in
    order after ``for_s``, as failed after ``timeout_s`` or ``stall_s``. All ranks are also ended by :meth:`stop`, and
    when ``echo`` raises, as in ``testbed launch -- yes | head``. They run as ``user``, without one as root.
    ``TESTBED_FOLDER`` is a folder that each rank can write. What the workload's ``progress`` reads of its steps goes
    into ``ranks/rank-<r>.jsonl``. run.json records the command, the members, the status of
    each rank (None: ended by the testbed), who ended it, and when its process began and ended.

    ``concluded`` is called once, by the thread, when run.json has all that; :meth:`over` holds after it has returned.
    """

    status_by_report = False

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        workload: ProgramWorkload,
        run: RunDirectory,
        job: str,
        port: int,
        scratch: NodeScratch,
        *,
        user: ProgramUser | None = None,
        echo: Echo = lambda line: None,
        echo_error: Echo | None = None,
        concluded: Callable[[ProgramJob], None] = lambda job: None,
    ) -> None:
        """``job``: its id. ``port``: MASTER_PORT, free on rank 0's node. Raises LabError, HostError, StorageError."""
        self.workload, self.id = workload, job
        self.members = members(topology, workload.processes_per_node)
        self._lab, self._topology, self._run, self._user, self._port = lab, topology, run, user, port
        self._echo, self._echo_error, self._concluded = echo, echo_error or echo, concluded
        self._scratch, self._contained = scratch, lab_nodes.driver(lab).contained
        self._shortage = ""
        self._files = SameFiles(lab, topology.node_names, scratch.working)
        self._ends = ProcessEnds(lab)
        self._children: dict[int, RankProcess] = {}
        self._signals = RankSignals()
        self._final: dict[str, Any] = {}
        """The workload's record in run.json, once all have ended."""
        self._mpi: MpiRanks | None = None
        self._readers: list[threading.Thread] = []
        self._began_t: dict[int, float] = {}
        self._stopping = self._signals.wanted
        self._broken: list[Exception] = []
        self._error: TestbedError | None = None
        self._reported = ReportedSteps(run.ranks, self.members)
        self._limits = Limits(workload, self._reported)
        self._progress = ProgressReader(
            workload.progress, self.members, self._places(), lambda why: self._tell(f"progress: {why}")
        )
        self._unread = ""
        self._stdbuf: str | None = None
        """Path of stdbuf's library in the nodes; None: not looked for yet."""
        self._begun = threading.Event()
        self._not_begun: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="program-job", daemon=True)
        self._thread.start()
        self._await_begin()

    # ---- what every job can be asked

    @property
    def steps(self) -> int | None:
        return self.workload.steps

    @property
    def step(self) -> int:
        """The latest step that counts, by the definition of reports (``core/analysis/program_steps.py``)."""
        return self._reported.step

    @property
    def last(self) -> Mapping[str, Any]:
        return self._reported.last

    @property
    def began_t(self) -> float | None:
        """The first report of a step; of a program whose steps are not read, when the last rank was started."""
        if not self.reports_steps:
            return self._started_t
        return self._reported.first_t

    @property
    def reports_steps(self) -> bool:
        return self.workload.progress is not None

    @property
    def lingers(self) -> bool:
        return self.reports_steps

    @property
    def tokens_per_step(self) -> float | None:
        return self._reported.tokens_per_step

    def ranks_up(self, agents: Sequence[RankState]) -> int:
        codes = dict(self._ends.codes)
        if self.over():
            return sum(code == 0 for code in codes.values())
        return len(self.members) - sum(code != 0 for code in codes.values())

    def failure(self) -> str:
        if self._error is not None:
            return str(self._error)
        if self._limits.exceeded:
            return self._limits.exceeded
        if self._broken:
            return f"the output could not be shown any more: {self._broken[0]}"
        sentence = launched_end.sentence(self._final or self._ended([*self._ends.so_far]))
        if not sentence and self._mpi is not None and self._mpi.status:
            sentence = f"mpiexec ended with status {self._mpi.status}"
        return f"{sentence}; {self._shortage}" if sentence and self._shortage else sentence

    def failed(self) -> TestbedError:
        return self._error or JobFailed(self.failure())

    def over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float = 600.0) -> None:
        self.exit_status(timeout)
        if self.failure():
            raise self.failed()

    def stop(self) -> None:
        """End all ranks, by SIGTERM and then SIGKILL; return when they have ended."""
        self.terminate()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop_because(self, why: str) -> None:
        self.interrupted = self.interrupted or why
        self.stop()

    def end_children(self) -> None:
        self.stop()

    def interrupt(self) -> signal.Signals:
        """Pass on a Ctrl-C, and return at once: the first one is SIGINT, on which programs save their state, the second
        SIGTERM, the third SIGKILL, each to the whole process group of each rank. Return which it is.

        Ranks that do not end get the next one after :data:`INTERRUPT_GRACE_S` and 5 s. Safe in a signal's handler.
        """
        self._note_interrupted()
        return self._signals.next()

    def terminate(self) -> None:
        """Ask all ranks to end, by SIGTERM and after 5 s SIGKILL; return at once. Safe in a signal's handler."""
        self._note_interrupted()
        self._signals.ask(signal.SIGTERM)

    def _note_interrupted(self) -> None:
        if not self.over():
            self.interrupted = self.interrupted or BY_USER

    def close(self, *, interrupted: bool = False) -> None:
        if interrupted:
            self._signals.ask(signal.SIGINT, GRACE_S)
            self._note_interrupted()
            with further_interrupts(self.interrupt):  # a user who does not want to wait
                self._thread.join()
        else:
            self.stop()

    @property
    def same_files(self) -> dict[str, list[str]]:
        """Files below the working directory that several nodes wrote, and these nodes: most likely by accident."""
        return self._files.found()

    @property
    def sessions(self) -> tuple[int, ...]:
        return tuple(child.pid for child in self._children.values())

    @property
    def worst_status(self) -> int:
        """The worst status of the ranks that have ended by themselves so far; 0 if none has."""
        return max([*self._statuses().values(), self._mpi.status if self._mpi is not None else 0])

    def exit_status(self, timeout: float | None = None) -> int:
        """Wait until all ranks have ended; return the worst status of those that ended by themselves.

        128 + n stands for signal n, as in a shell; 0 if none ended by itself. KeyboardInterrupt meanwhile goes to the
        ranks (:meth:`interrupt`), and is raised when they have ended; another exception ends them. Raises LabError
        after ``timeout`` seconds (None: no limit), the error of ``echo`` if it failed, StorageError.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self._pass_on_interrupts()
            raise
        except BaseException:
            self.stop()
            raise
        if self._thread.is_alive():
            raise LabError(f"the program has not ended within {timeout:g} s")
        if self._broken:
            raise self._broken[0]
        if self._error is not None:
            raise self._error
        return self.worst_status

    def _pass_on_interrupts(self) -> None:
        """Pass on a Ctrl-C, and each further one, until all ranks have ended."""
        self.interrupt()
        while not self.over():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                self.interrupt()

    # ---- the thread

    def _statuses(self) -> dict[int, int]:
        return {rank: runner.shell_status(code) for rank, code in self._ends.codes.items()}

    def _await_begin(self) -> None:
        """Return when all ranks have been started. Raises what kept them from it."""
        try:
            self._begun.wait()
        except BaseException:
            self.stop()
            raise
        if self._not_begun is not None:
            self._thread.join()
            raise self._not_begun

    def _work(self) -> None:
        """Start the ranks, which the kernel ends with the thread that started them (PDEATHSIG), and follow them."""
        try:
            self._start()
        except BaseException as error:
            self._not_begun = error
            return
        finally:
            self._begun.set()
        self._follow()

    def _start(self) -> None:
        client.keeper(self._lab).share_folder(folder=str(self._scratch.working))
        client.keeper(self._lab).announce_program(ranks_per_node=self.workload.processes_per_node)
        self._rsh = client.keeper(self._lab).allow_remote_starts()
        run_metadata.amend(self._run, workload=self._described())
        self._give_folders()
        self._python = self._run.offer("python/testbed_agents.py", reporting.source())
        self._progress.begin(time.monotonic())
        self._files.watch()
        try:
            if self.workload.start == "mpi":
                self._start_by_mpiexec()
            else:
                for member in self.members:
                    self._start_rank(member)
        except BaseException:
            self._signals.end()
            self._progress.end()
            self._files.close()
            raise
        self._started_t = time.monotonic()

    def _described(self) -> dict[str, Any]:
        members = [member.to_dict() for member in self.members]
        observed = {"progress_unread": self._unread} if self._unread else {}
        if self._mpi is not None:
            observed["mpi"] = self._mpi.version
        return {**self.workload.to_dict(), "members": members, "scratch": self._scratch.to_dict(), **observed}

    def _places(self) -> Places:
        return Places(
            self._scratch.working,
            self._run,
            lambda member: self._scratch.folders[member.node],
            lambda node: netns(self._lab, node),
        )

    def _variables(self, member: Member, where: Place) -> dict[str, str]:
        own = {"TESTBED_FOLDER": str(self._run.ranks / f"rank-{member.rank}"), **self._scratch.variables(member.node)}
        own[remote_starts.VARIABLE] = self._rsh
        own[job_processes.VARIABLE] = job_processes.mark(self._lab.name, self.id)
        if self._user and self._contained:
            own |= {"USER": self._user.name, "LOGNAME": self._user.name}
        if home := self._scratch.home(member.node):
            own["HOME"] = home
        own |= self._progress.variables(member)
        if self._stdbuf is None:
            self._stdbuf = reporting.stdbuf(where)
        theirs = {**where.inherited(), **self.workload.environment}
        own |= reporting.variables(self._contained, self._python, theirs, self._stdbuf)
        own |= {key: value for key, value in self.workload.environment.items() if key != "PYTHONPATH"}
        if self.workload.start == "per-node":
            ranks_per_node = self.workload.ranks_per_node
            return rank_environment.of_node(self._topology, self.members, member, self._port, ranks_per_node, own)
        return rank_environment.variables(self._topology, self.members, member, self._port, own)

    def _start_rank(self, member: Member) -> None:
        where = self._scratch.place(member.node)
        variables = self._variables(member, where)
        self._began_t[member.rank] = time.monotonic()
        stdin = subprocess.PIPE if where.watched else subprocess.DEVNULL
        child = start_rank(where, self.workload.command, self._scratch.working, variables, framed=True, stdin=stdin)
        self._children[member.rank] = child
        self._files.add(child.pid, member.node)
        self._signals.children[member.rank] = child
        if where.watched:
            self._signals.watched.add(member.rank)
            with contextlib.suppress(OSError):  # it has ended already, and its status says why
                assert child.stdin is not None
                os.write(child.stdin.fileno(), runner.END_OF_INPUT)
        self._follow_rank(member, child, where.watched, where.watched)

    def _start_by_mpiexec(self) -> None:
        """Start all ranks by the mpiexec of the program's MPI."""
        folder = self._scratch.working
        places = {member.node: self._scratch.place(member.node) for member in self.members}
        client.keeper(self._lab).share_folder(folder=str(folder), management=True)
        mpiexec = mpi_ranks.find(self._lab, self._user, self.workload.command, folder, self.workload.mpiexec)
        if caution := mpi_launch.caution(mpiexec):
            self._tell(f"[mpiexec] note: {caution}")
        environments = {member.rank: self._variables(member, places[member.node]) for member in self.members}
        began_t = time.monotonic()
        self._mpi = MpiRanks(
            self._lab, self._topology, places, self.workload.command, environments, mpiexec, self._user,
            folder,
        )  # fmt: skip
        self._signals.children[0] = self._mpi.launcher
        run_metadata.amend(self._run, workload=self._described())
        for member in self.members:
            self._began_t[member.rank] = began_t
            self._children[member.rank] = child = self._mpi.children[member.rank]
            self._follow_rank(member, child, places[member.node].watched, True)

    def _follow_rank(self, member: Member, child: RankProcess, contained: bool, watched: bool) -> None:
        """Read a rank's output, and watch its end. ``watched``: signals are reported as a shell does, 128 + n."""
        handle = netns(self._lab, member.node)
        first = Path(*handle.readlink().parts[:3]) if contained else Path(f"/proc/{child.pid}")
        self._ends.watch(member, first, watched)
        label = member.node if self.workload.start == "per-node" else f"rank {member.rank}"
        reader = threading.Thread(
            target=rank_output.copy,
            args=(
                member.rank,
                label,
                child,
                self._run,
                (self._tell, self._tell_error),
                (self._progress.stream(member.rank), self._progress.stream(member.rank)),
            ),
            daemon=True,
        )
        reader.start()
        self._readers.append(reader)

    def _tell(self, line: str) -> None:
        self._pass_on(self._echo, line)

    def _tell_error(self, line: str) -> None:
        self._pass_on(self._echo_error, line)

    def _pass_on(self, echo: Echo, line: str) -> None:
        try:
            if not self._broken:
                echo(line)
        except Exception as error:
            self._broken.append(error)

    def _give_folders(self) -> None:
        """Make a folder for the files of each rank, which its program can write."""
        user = self._user
        self._run.admit((user.uid, user.gid) if user else (0, 0), len(self.members), records=False)
        client.keeper(self._lab).share_folder(folder=str(self._run.ranks))

    def _follow(self) -> None:
        try:
            self._wait()
            if any(self._ends.codes.values()):
                self._shortage = self._scratch.shortage()  # at once: what ends the others may free the space
            # Ranks that are ended here because another failed have no status of their own.
            if len(self._ends.codes) < len(self._children):
                self._signals.end()
                self._end_left_behind()
            self._files.close()
            self._record(all_ended_t=time.monotonic())
        except TestbedError as error:
            self._error = error
        finally:
            self._signals.end()
            if self._mpi is not None:
                self._mpi.close()
            for child in self._signals.children.values():
                if child.stdin is not None:
                    with contextlib.suppress(OSError):
                        child.stdin.close()
            self._files.close()
            if self._broken:
                self.interrupted = self.failure()
            try:
                self._concluded(self)
            except TestbedError as error:
                self._error = self._error or error

    def _end_left_behind(self) -> None:
        """End what ranks that were ended have left behind, such as children that heed no SIGTERM: with the job's slot
        given back, nobody could end those any more, and their traffic would count as the next job's."""
        inodes = set[int]()
        for node in dict.fromkeys(member.node for member in self.members):
            with contextlib.suppress(TestbedError):  # a container that has exited has no processes
                inodes.add(namespace.inode(netns(self._lab, node)))
        with contextlib.suppress(OSError):
            job_processes.end(inodes - {0}, job_processes.mark(self._lab.name, self.id), grace_s=GRACE_S)

    def _record(self, all_ended_t: float) -> None:
        until_t = time.monotonic() + GRACE_S
        for reader in self._readers:  # grandchildren may keep the pipes open forever
            reader.join(max(0.0, until_t - time.monotonic()))
        self._unread = self._progress.end()
        if self._unread:
            self._tell(f"progress: {self._unread}")
        for line in self._mpi.said().splitlines() if self._mpi is not None else ():
            self._tell(f"[mpiexec] {line.rstrip()}")
        self._final = self._ended(self._ends.told(), all_ended_t)
        run_metadata.amend(self._run, workload=self._final)

    def _ended(self, ends: Sequence[Mapping[str, Any]], all_ended_t: float | None = None) -> dict[str, Any]:
        """Return the workload's record with the ``ends`` of ranks; ``all_ended_t``: when the others were ended."""
        codes, ranks = self._statuses(), sorted(self._children)
        ended_t = {end["rank"]: end["t"] for end in ends}
        return {
            **self._described(),
            **({"ended_in_order": True} if self._limits.in_order else {}),
            "same_files": self.same_files,
            **({"exceeded": self._limits.exceeded} if self._limits.exceeded else {}),
            "statuses": [codes.get(rank) for rank in ranks],
            "ends": list(ends),
            "began_t": [self._began_t[rank] for rank in ranks],
            "ended_t": [ended_t.get(rank, all_ended_t) for rank in ranks],
        }

    def _wait(self) -> None:
        """Wait until all have ended, or the grace period after a failure is over, or a limit is reached, or the job is
        stopped, or its output cannot be shown."""
        failed_at: float | None = None
        while True:
            self._note_ends()
            if len(self._ends.codes) == len(self._children) or self._broken or self._stopping.is_set():
                return
            if self._mpi is not None and self._mpi.over():  # it has ended the other ranks
                self._note_ends()
                return
            if failed_at is None and any(self._ends.codes.values()):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
                return
            if failed_at is None and self._limits.reached(self._started_t):
                return
            self._stopping.wait(LOOK_S)

    def _note_ends(self) -> None:
        for rank, child in self._children.items():  # poll every child: any of them may fail
            if (code := child.poll()) is not None:
                self._ends.note(rank, code)
