"""The ranks of a program that an MPI's own mpiexec starts: over the fabric, without privileges, each with its output.

mpiexec runs in the management network and enters nodes through the launcher proxy (``host/launcher_proxy.py``), so what
it says to its daemons crosses no fiber. Each rank begins in a script, which gives it its variables and its own FIFO for
output, and writes its exit status down: mpiexec knows neither apart. All of it ends with the job.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, MANAGEMENT, MANAGEMENT_V4, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload import mpi_launch
from testbed.core.workload.members import Member
from testbed.core.workload.mpi_launch import Found
from testbed.errors import HostError, MissingTool, UserError
from testbed.host import installation, lab_nodes, launcher_proxy, launcher_shim, runner, scratch
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser

__all__ = ["MpiRank", "MpiRanks", "find"]

_NAMES: Final = (
    "mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "mpiexec.openmpi", "prterun",
)  # fmt: skip

_LOOK: Final = """for name; do
    found=$(command -v "$name") || continue
    printf '%s\\t%s\\n' "$found" "$("$found" --version 2>&1 </dev/null | tr '\\n\\t' '  ' | cut -c 1-300)"
done"""
"""Shell command that prints path and version of each of its arguments that is a program."""

_LOOK_BOUND_S: Final = 30.0

_BEGIN: Final = """#!/bin/sh
for rank in {ranks}; do [ -n "$rank" ] && break; done
. {folder}/"$rank".env || exit 1
exec >{folder}/"$rank".output 2>{folder}/"$rank".errors || exit 1
read -r here </proc/sys/kernel/hostname
if [ "$here" != "$TESTBED_NODE" ]; then
    echo "testbed: mpiexec started rank $rank on $here, expected $TESTBED_NODE"
    exit 1
fi
setpriv --pdeathsig KILL -- "$@"
status=$?
echo "$status" >{folder}/"$rank".status
exit "$status"
"""
"""What each rank begins in. A rank must end with its daemon, which may be killed."""

_OF_ONE_RANK: Final = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TESTBED_NODE", "TESTBED_SITE",
                                 "TESTBED_FOLDER"})  # fmt: skip
"""Variables of rank_environment.py that differ from rank to rank: mpiexec has one environment for all."""

_STATUS_BYTES: Final = 16
"""More than a status and its newline take."""


def find(lab: LabFolder, user: ProgramUser | None, command: Sequence[str], folder: Path, mpiexec: str = "") -> Found:
    """Return the mpiexec for ``command``: the one named, else the first on PATH of the library that it is linked with.

    Raises UserError, MissingTool, HostError.
    """
    place = lab_nodes.place(lab, MANAGEMENT, job=True, user=user)
    argv = ["sh", "-c", _LOOK, "sh", *([mpiexec] if mpiexec else _NAMES)]
    if isinstance(place, ContainerPlace):
        said = place.output(argv)
    else:
        try:
            said = subprocess.run(
                place.enter(argv, folder), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_LOOK_BOUND_S,
            ).stdout  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise HostError(f"mpiexec --version did not end within {_LOOK_BOUND_S:g} s") from error
    lines = [line.partition("\t") for line in said.splitlines()]
    found = [it for path, _, version in lines if (it := mpi_launch.recognize(path, version))]
    if mpiexec and not found:
        raise UserError(f"--mpiexec {mpiexec}: expected the mpiexec of MPICH or Open MPI, which programs can run")
    wanted = None if mpiexec else _linked(command[0], folder)
    if chosen := mpi_launch.choose(found, wanted):
        return chosen
    package = "openmpi-bin" if wanted == "openmpi" else "mpich"
    if wanted and found:
        raise UserError(
            f"{command[0]} is linked with {'Open MPI' if wanted == 'openmpi' else 'MPICH'}, but mpiexec is of"
            f" {found[0].version}; install the other's ({installation.apt(package)}), or name one with --mpiexec"
        )
    raise MissingTool("mpiexec", installation.apt(package))


def _linked(program: str, folder: Path) -> mpi_launch.Mpi | None:
    path = folder / program if "/" in program else Path(shutil.which(program) or "")
    with contextlib.suppress(OSError):
        return mpi_launch.linked(path.read_bytes())
    return None


class MpiRank:
    """One rank, as a process of the job: its output, and its status once it has written that down."""

    def __init__(self, ranks: MpiRanks, output: IO[bytes], errors: IO[bytes], status: Path) -> None:
        self._ranks, self._status = ranks, status
        self.stdout: IO[bytes] | None = output
        self.stderr: IO[bytes] | None = errors

    @property
    def pid(self) -> int:
        return self._ranks.launcher.pid

    def poll(self) -> int | None:
        """Return the status that the rank wrote; None while it runs, and if something else ended it."""
        with contextlib.suppress(OSError), self._status.open("rb") as stream:
            # The program's user can write anything there.
            if written := stream.read(_STATUS_BYTES).strip():
                return min(int(written), 255) if written.isdigit() else 1
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until mpiexec has ended, and so its ranks."""
        return self._ranks.launcher.wait(timeout)


class MpiRanks:
    """The ranks of one job, and the mpiexec that started them.

    Args:
        places: where ranks run, by node.
        environments: of each rank, by number.

    Raises HostError, MissingTool, StorageError.
    """

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        places: Mapping[str, runner.Place | ContainerPlace],
        members: Sequence[Member],
        command: Sequence[str],
        environments: Mapping[int, Mapping[str, str]],
        found: Found,
        user: ProgramUser | None,
        folder: Path,
    ) -> None:
        self._lab, self._found, self._user, self._cwd = lab, found, user, folder
        self.version, self._places = found.version, places
        net = Addressing(topology)
        nodes = list(dict.fromkeys(it.node for it in members))
        self._hosts = {str(net.management[node]): node for node in nodes}
        self._each = len(members) // len(nodes)
        self._folder = Path(tempfile.mkdtemp(prefix="mpi-", dir=scratch.of_lab(lab)))
        self._folder.chmod(0o711)
        self._writers: list[int] = []
        self._closing = threading.Lock()
        self._log = (self._folder / "mpiexec.log").open("w+b")
        try:
            self.children = {it.rank: self._rank(it.rank, environments[it.rank]) for it in members}
            # mpiexec has one environment for all.
            first, *others = environments.values()
            shared = {k: v for k, v in first.items() if all(it.get(k) == v for it in others)}
            self.launcher = self._start(command, shared | mpi_launch.variables(found.mpi, FABRIC_INTERFACE))
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._await_end, name="mpiexec", daemon=True).start()

    def over(self) -> bool:
        """Whether mpiexec has ended, and so all ranks."""
        return self.launcher.poll() is not None

    @property
    def status(self) -> int:
        """The status of mpiexec, which is not 0 if a rank's was not, or if it could not start them; 0 while it runs."""
        return runner.shell_status(self.launcher.poll() or 0)

    def said(self) -> str:
        """Return what mpiexec itself said, as when it could not start the ranks."""
        with contextlib.suppress(OSError, ValueError):
            return (self._folder / "mpiexec.log").read_text(errors="replace")
        return ""

    def close(self) -> None:
        """Remove what only running ranks need."""
        self._end_output()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- inside

    def _await_end(self) -> None:
        self.launcher.wait()
        self._end_output()

    def _end_output(self) -> None:
        """Close our ends of the FIFOs, so that readers see their end when the last rank has closed its own."""
        with self._closing:
            writers, self._writers = self._writers, []
        for it in writers:
            os.close(it)

    def _give(self, path: Path) -> Path:
        owner = self._owner()
        os.chown(path, *owner, follow_symlinks=False)
        return path

    def _owner(self) -> tuple[int, int]:
        return (self._user.uid, self._user.gid) if self._user else (os.geteuid(), os.getegid())

    def _rank(self, rank: int, environment: Mapping[str, str]) -> MpiRank:
        """Make the files of one rank: what it gets, and where it writes."""
        lines = [f"export {key}={shlex.quote(value)}\n" for key, value in environment.items() if key.isidentifier()]
        (self._folder / f"{rank}.env").write_text("".join(lines))
        (self._folder / f"{rank}.env").chmod(0o600)
        self._give(self._folder / f"{rank}.env")  # values may be secrets
        status = self._folder / f"{rank}.status"
        status.touch(mode=0o600)
        output, errors = (self._stream(self._folder / f"{rank}.{name}") for name in ("output", "errors"))
        return MpiRank(self, output, errors, self._give(status))

    def _stream(self, path: Path) -> IO[bytes]:
        """Make a FIFO that ranks can write, and return its end for reading."""
        os.mkfifo(path, 0o600)
        # A reader before the writer, or opening for writing would wait.
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._writers.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        os.set_blocking(reader, True)
        self._give(path)
        return os.fdopen(reader, "rb")

    def _start(self, command: Sequence[str], shared: Mapping[str, str]) -> subprocess.Popen[bytes]:
        shared = {**shared, **mpi_launch.OF_DAEMONS.get(self._found.mpi, {})}
        begin = self._folder / "rank"
        ranks = " ".join(f'"${name}"' for name in mpi_launch.RANK_VARIABLES)
        begin.write_text(_BEGIN.format(folder=shlex.quote(str(self._folder)), ranks=ranks))
        begin.chmod(0o755)
        place = lab_nodes.place(self._lab, MANAGEMENT, job=True, user=self._user)
        programs, mpiexec = str(Path(self._found.path).parent), self._found.path
        argv = mpi_launch.mpiexec_argv(
            self._found.mpi,
            programs=programs,
            mpiexec=mpiexec,
            hosts=list(self._hosts),
            interface=build.MANAGEMENT_BRIDGE,
            network=str(MANAGEMENT_V4),
            agent=str(launcher_shim.client(self._folder, launcher_proxy.socket_of(self._folder), sys.executable)),
            program=[str(begin), *command],
            pass_on=sorted(shared.keys() | {"PATH"}),
            ranks_per_node=self._each,
        )
        return launcher_proxy.start(
            self._folder,
            self._entered(place, argv, shared),
            {host: self._daemons(node, shared) for host, node in self._hosts.items()},
            within=lab_nodes.netns(self._lab, MANAGEMENT),
            owner=self._owner(),
            environment={**{k: v for k, v in os.environ.items() if k not in _OF_ONE_RANK}, **shared},
            log=self._log,
        )

    def _daemons(self, node: str, shared: Mapping[str, str]) -> list[str]:
        return self._entered(self._places[node], [], {**shared, "TESTBED_NODE": node})

    def _entered(
        self, place: runner.Place | ContainerPlace, argv: Sequence[str], shared: Mapping[str, str]
    ) -> list[str]:
        """Return the argument list that runs ``argv`` in a place, and ends at EOF on its stdin."""
        if isinstance(place, ContainerPlace):
            return place.enter(argv, self._cwd, shared)
        watchdog = launcher_shim.watchdog(self._folder, sys.executable)
        return [runner.tool("setsid"), *place.enter([str(watchdog), *argv], self._cwd, shared, tied=False)]
