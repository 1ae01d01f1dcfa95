"""The processes of rank programs: what they are started with, and how each is ended.

Programs run without privileges; ``jobs/rank_launcher.py`` starts them. In namespaces the protocol runs over stdin and
stdout of a program. In a container the watchdog needs stdin for itself, and an mpiexec connects neither: there the
protocol runs over FIFOs in a folder that both sides see.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, MANAGEMENT, MASTER_PORT, Addressing
from testbed.core.plan.resources import Rank
from testbed.core.topology.model import Topology
from testbed.core.validation.library import PYTHON, CollectiveLibrary
from testbed.core.workload.members import members
from testbed.core.workload.mpi_launch import OF_DAEMONS
from testbed.errors import HostError
from testbed.host import collective_libraries, lab_nodes, runner
from testbed.host.drivers.container_place import PROGRAMS
from testbed.host.drivers.containerlab import agent_ids
from testbed.host.files import beneath
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Place
from testbed.host.linux import process
from testbed.host.linux.inside import is_inside, pid_on_host
from testbed.keeper import client
from testbed.lab.jobs import rank_environment
from testbed.lab.jobs.rank_launcher import Mpiexec, shared_variables, start_mpiexec, start_rank
from testbed.lab.validation.output_capture import CappedLog
from testbed.lab.validation.rank_channel import Lines

__all__ = ["Program", "Starter", "end", "exit_code"]

END_BOUND_S: Final = 10.0

_OURS: Final = ("*.operations", "*.answers", "reach*", "watched", "watchdog.py", "launcher_client.py")
"""Files that only running programs need: FIFOs, and those of launchers (``host/launcher_shim.py``)."""

_REDIRECTED: Final = 'exec <"$1" >"$2"; shift 2; exec "$@"'
"""Shell command that runs a program between two FIFOs."""


@dataclass
class Program:
    """One rank. ``child`` is the process that represents it on the host; None: mpiexec represents all ranks."""

    rank: Rank
    lines: Lines
    log: CappedLog
    child: subprocess.Popen[bytes] | None = None
    pid: int = 0
    """Of the rank program itself, on this host; 0 while unknown."""
    began: int = 0
    joined: bool = False
    """Whether it has answered: before that it may still be importing modules."""
    pending: Mapping[str, Any] | None = None
    """The message that it has not answered yet."""
    looked_t: float = 0.0
    """When a message was sent or, later, answers were looked for; all earlier ones have been read."""
    not_before_t: float = 0.0
    """Its latest answer had not arrived by then."""
    ended: str = ""
    """How it ended, as text."""

    def knows_pid(self, pid: int) -> None:
        self.pid, self.began = pid, process.started(pid)

    @property
    def is_gone(self) -> bool:
        """Whether its process was known and is gone."""
        return self.began > 0 and not process.is_same(self.pid, self.began)

    def signal(self, number: signal.Signals) -> None:
        """Send only if the pid still belongs to the known process: pids are reused."""
        process.send(self.pid, self.began, number)

    def end(self) -> None:
        """SIGKILL; return when it is gone."""
        self.signal(signal.SIGKILL)
        if self.child is not None:
            end(self.child)
        self.lines.close()
        if self.began:
            process.wait_gone(self.pid, self.began, END_BOUND_S)
        self.log.close()


def end(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a child and its process group; return when it is reaped."""
    if child.returncode is None:  # until it is reaped, no other process group can have its number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()  # the watchdog in a container ends its program
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_BOUND_S)


def exit_code(child: subprocess.Popen[bytes]) -> int | None:
    """As ``poll``; when the child has ended, end its process group too, which would live on in the node unnoticed."""
    if child.returncode is None:
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        end(child)
    return child.returncode


class Starter:
    """Starts the programs of one library. ``folder``, which every node sees at the same path, is for outputs, FIFOs and
    logs.
    """

    def __init__(self, lab: LabFolder, topology: Topology, library: CollectiveLibrary, folder: Path) -> None:
        self._lab, self._topology, self._library = lab, topology, library
        self.folder, self.outputs = folder, folder / "outputs"
        self.ranks = build.ranks(topology)
        self._driver = lab_nodes.driver(lab)
        self.contained = self._driver.contained
        self._user = self._driver.own_user()
        self._logs: list[CappedLog] = []
        self._mpiexec_log: CappedLog | None = None

    @property
    def replaces(self) -> bool:
        """Whether a single rank can be started: an mpiexec starts all or none."""
        return self._library.launcher == "direct"

    def start(self) -> tuple[dict[int, Program], subprocess.Popen[bytes] | None]:
        """Start all ranks, and the mpiexec that starts them, if any. Raises MissingTool, HostError, LabError."""
        with self._translated():
            return self._start()

    def _start(self) -> tuple[dict[int, Program], subprocess.Popen[bytes] | None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.outputs.mkdir(exist_ok=True)
        shown = {self.folder}
        beneath.let_through(self.folder)
        self._give(self.outputs)  # only this folder: logs are written beside it, and ranks could make links of them
        if self.contained:
            program = Path(self._library.argv[-1])
            shown |= {program.parent} if program.is_absolute() else set()  # the user's own rank program
        for path in shown:
            client.keeper(self._lab).share_folder(folder=str(path), management=not self.replaces)
        if not self.replaces:
            return self._mpi()
        programs: dict[int, Program] = {}
        try:
            for rank in self.ranks:
                programs[rank.rank] = self.one(rank)
        except BaseException:
            for started in programs.values():
                started.end()
            raise
        return programs, None

    def one(self, rank: Rank) -> Program:
        """Start the program of one rank. Raises MissingTool, HostError."""
        with self._translated():
            return self._over_fifos(rank) if self.contained else self._over_pipes(rank)

    def sweep(self) -> None:
        """Close the logs. Remove what only running programs need, above all FIFOs, which would block a reader of the
        run's files. Remove links too: the testbed made none, and their targets must not be written or removed."""
        while self._logs:
            self._logs.pop().close()
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                ours = any(path.match(pattern) for pattern in _OURS)
                in_the_way = path == self.outputs and not path.is_dir()
                if ours or in_the_way or path.is_symlink():
                    with contextlib.suppress(OSError):  # a program may have made folders of its own
                        beneath.remove(self.folder, path.name)
        beneath.remove_all(self.outputs)

    def mpiexec_last_line(self) -> str:
        """Return the last line of the latest mpiexec's log; empty if there is none."""
        return self._mpiexec_log.last_line() if self._mpiexec_log is not None else ""

    def pid_here(self, rank: Rank, pid: int) -> int:
        """Return the pid on this host of the process of this node that a rank program reports as its own; 0 if there is
        none. The check matters because the pid will be signalled as root."""
        netns = lab_nodes.netns(self._lab, rank.node)
        if self.contained:
            return pid_on_host(netns, pid)
        return pid if is_inside(netns, pid) else 0

    # ---- inside

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
            raise HostError(f"cannot start the programs of {self._library.name}: {why}") from error

    def _log(self, name: str) -> CappedLog:
        """Open a log, which :meth:`sweep` closes whatever becomes of the program."""
        self._logs.append(CappedLog(self.folder / f"{name}.log"))
        return self._logs[-1]

    def _place(self, node: str) -> Place:
        return lab_nodes.place(self._lab, node, job=True, user=self._user)

    def _over_pipes(self, rank: Rank) -> Program:
        place, log = self._place(rank.node), self._log(f"rank-{rank.rank}")
        child = start_rank(place, self._argv(), self.folder, self._environment(rank), stderr=log.pipe)
        assert child.stdin is not None and child.stdout is not None
        with contextlib.ExitStack() as undone:
            undone.callback(end, child)
            with child.stdin, child.stdout:
                lines = _lines(partial(os.dup, child.stdin.fileno()), partial(os.dup, child.stdout.fileno()), log)
            undone.callback(lines.close)
            program = Program(rank, lines, log, child)
            program.knows_pid(child.pid)  # setpriv and nsenter exec the program
            undone.pop_all()
        return program

    def _over_fifos(self, rank: Rank) -> Program:
        place, log = self._place(rank.node), self._log(f"rank-{rank.rank}")
        into, out = self._fifos(rank)
        argv = ["sh", "-c", _REDIRECTED, "sh", str(into), str(out), *self._argv()]
        with contextlib.ExitStack() as undone:
            lines = _opened(into, out, log)
            undone.callback(lines.close)
            child = start_rank(place, argv, self.folder, self._environment(rank), stdout=log.pipe, stderr=log.pipe)
            undone.pop_all()
        return Program(rank, lines, log, child)

    def _mpi(self) -> tuple[dict[int, Program], subprocess.Popen[bytes]]:
        """Run the library's own mpiexec."""
        places = {node: self._place(node) for node in (*(rank.node for rank in self.ranks), MANAGEMENT)}
        shared = shared_variables([self._environment(rank) for rank in self.ranks])
        setpriv = "setpriv" if self.contained else runner.tool("setpriv")
        programs: dict[int, Program] = {}
        with contextlib.ExitStack() as undone:
            for rank in self.ranks:
                log = self._log(f"rank-{rank.rank}")
                programs[rank.rank] = Program(rank, _opened(*self._fifos(rank), log), log)
                undone.callback(programs[rank.rank].end)
            self._mpiexec_log = self._log("mpiexec")
            mpiexec = start_mpiexec(
                self._lab,
                self._topology,
                Mpiexec(self._library.launcher, self._launchers()),
                places,
                # If a daemon is killed its rank must end with it.
                [setpriv, "--pdeathsig", "KILL", "--", *self._argv()],
                {**shared, "TESTBED_LINES": str(self.folder)},
                files=self.folder,
                working=self.folder,
                owner=self._owner() or (os.geteuid(), os.getegid()),
                log=self._mpiexec_log.pipe,
                pass_on=["PYTHONPATH"] if self.contained or "PYTHONPATH" in os.environ else [],
            )
            undone.pop_all()
        return programs, mpiexec

    def _launchers(self) -> str:
        """Return the folder of the library's mpiexec, in nodes."""
        if self.contained:
            return PROGRAMS
        launcher = collective_libraries.program(self._library.programs[0]) if self._library.programs else None
        return str((launcher or Path(self._driver.python)).parent)

    def _environment(self, rank: Rank) -> dict[str, str]:
        net = Addressing(self._topology)
        ours = {
            "TESTBED_INTERFACE": FABRIC_INTERFACE,
            "TESTBED_ADDRESSES": ",".join(str(net.node(other.node)[0]) for other in self.ranks),
            "TESTBED_SITES": ",".join(other.site for other in self.ranks),
            "TESTBED_FOLDER": str(self.outputs),
            "PYTHONUNBUFFERED": "1",
        }
        # Ranks get the daemons' variables too: in namespaces daemons inherit mpiexec's environment.
        ours |= OF_DAEMONS.get(self._library.launcher, {})
        everyone = members(self._topology)
        extra = {**ours, **self._library.environment}
        return rank_environment.variables(self._topology, everyone, everyone[rank.rank], MASTER_PORT, extra)

    def _argv(self) -> list[str]:
        return [self._driver.python if word == PYTHON else word for word in self._library.argv]

    def _fifos(self, rank: Rank) -> tuple[Path, Path]:
        """Make new FIFOs: data written to earlier ones must not appear in these."""
        into, out = (self.folder / f"{rank.rank}.{name}" for name in ("operations", "answers"))
        for path in (into, out):
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            self._give(path)
        return into, out

    def _give(self, path: Path) -> None:
        if owner := self._owner():
            os.chown(path, *owner, follow_symlinks=False)

    def _owner(self) -> tuple[int, int] | None:
        """User and group of the programs; None: those of this process."""
        if self.contained:
            return agent_ids()
        return (self._user.uid, self._user.gid) if self._user else None


def _opened(into: Path, out: Path, log: CappedLog) -> Lines:
    """Open our ends of two FIFOs. Opening for reading and writing never waits for the other end (fifo(7))."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    return _lines(partial(os.open, into, os.O_RDWR | flags), partial(os.open, out, os.O_RDONLY | flags), log)


def _lines(into: Callable[[], int], out: Callable[[], int], log: CappedLog) -> Lines:
    """Open two file descriptors; close the first if the second fails."""
    with contextlib.ExitStack() as undone:
        first = into()
        undone.callback(os.close, first)
        lines = Lines(first, out(), log)
        undone.pop_all()
    return lines
