"""The ranks of a program that an MPI's own mpiexec starts: over the fabric, without privileges, each with its output.

Each rank begins in a script, which gives it its variables and its own FIFO for
output, and writes its exit status down: mpiexec knows neither apart. All of it ends with the job.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from testbed.core.plan.addressing import FABRIC_INTERFACE, MANAGEMENT
from testbed.core.topology.model import Topology
from testbed.core.workload import mpi_launch
from testbed.core.workload.mpi_launch import Found
from testbed.errors import MissingTool, UserError
from testbed.host import installation, lab_nodes, runner, scratch
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Place
from testbed.host.linux.program_user import ProgramUser
from testbed.lab.jobs.rank_launcher import Mpiexec, shared_variables, start_mpiexec

__all__ = ["MpiRank", "MpiRanks", "find"]

_NAMES: Final = (
    "mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "mpiexec.openmpi", "prterun",
)  # fmt: skip

_LOOK: Final = """for name; do
    found=$(command -v "$name") || continue
    printf '%s\\t%s\\n' "$found" "$("$found" --version 2>&1 </dev/null | tr '\\n\\t' '  ' | cut -c 1-300)"
done"""
"""Shell command that prints path and version of each of its arguments that is a program."""

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

_STATUS_BYTES: Final = 16
"""More than a status and its newline take."""


def find(lab: LabFolder, user: ProgramUser | None, command: Sequence[str], folder: Path, mpiexec: str = "") -> Found:
    """Return the mpiexec for ``command``: the one named, else the first on PATH of the library that it is linked with.

    Raises UserError, MissingTool, HostError.
    """
    place = lab_nodes.place(lab, MANAGEMENT, job=True, user=user)
    output = place.output(["sh", "-c", _LOOK, "sh", *([mpiexec] if mpiexec else _NAMES)], folder)
    lines = [line.partition("\t") for line in output.splitlines()]
    launchers = [launcher for path, _, version in lines if (launcher := mpi_launch.recognize(path, version))]
    if mpiexec and not launchers:
        raise UserError(f"--mpiexec {mpiexec}: expected the mpiexec of MPICH or Open MPI, which programs can run")
    wanted = None if mpiexec else _linked(command[0], folder)
    if chosen := mpi_launch.choose(launchers, wanted):
        return chosen
    package = "openmpi-bin" if wanted == "openmpi" else "mpich"
    if wanted and launchers:
        raise UserError(
            f"{command[0]} is linked with {'Open MPI' if wanted == 'openmpi' else 'MPICH'}, but mpiexec is of"
            f" {launchers[0].version}; install the other's ({installation.apt(package)}), or name one with --mpiexec"
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
        places: where ranks run, by node in the order of ranks.
        environments: of each rank, by number.

    Raises HostError, MissingTool, StorageError.
    """

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        places: Mapping[str, Place],
        command: Sequence[str],
        environments: Mapping[int, Mapping[str, str]],
        mpiexec: Found,
        user: ProgramUser | None,
        folder: Path,
    ) -> None:
        self._user, self.version = user, mpiexec.version
        self._folder = Path(tempfile.mkdtemp(prefix="mpi-", dir=scratch.of_lab(lab)))
        self._folder.chmod(0o711)
        self._writers: list[int] = []
        self._closing = threading.Lock()
        self._log = (self._folder / "mpiexec.log").open("w+b")
        try:
            self.children = {rank: self._rank(rank, environment) for rank, environment in environments.items()}
            self.launcher = start_mpiexec(
                lab,
                topology,
                Mpiexec(mpiexec.mpi, str(Path(mpiexec.path).parent), mpiexec.path),
                {**places, MANAGEMENT: lab_nodes.place(lab, MANAGEMENT, job=True, user=user)},
                [str(self._begin()), *command],
                shared_variables(environments.values()) | mpi_launch.variables(mpiexec.mpi, FABRIC_INTERFACE),
                files=self._folder,
                working=folder,
                owner=self._owner(),
                log=self._log,
                ranks_per_node=len(environments) // len(places),
            )
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
        for writer in writers:
            os.close(writer)

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

    def _begin(self) -> Path:
        """Make the script in which each rank begins."""
        begin = self._folder / "rank"
        ranks = " ".join(f'"${name}"' for name in mpi_launch.RANK_VARIABLES)
        begin.write_text(_BEGIN.format(folder=shlex.quote(str(self._folder)), ranks=ranks))
        begin.chmod(0o755)
        return begin
