"""Start the ranks of a job in their nodes: each by this process, or all by the mpiexec of an MPI.

A rank in a namespace is a child of this process, and the kernel ends it with the thread that started it (PDEATHSIG); in
a container it is a child of its watchdog, which ends it at EOF on its stdin. mpiexec runs in the management network and
enters nodes through the launcher proxy (``host/launcher_proxy.py``), so its control traffic crosses no fiber. It and
its daemons have watchdogs everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from testbed.core.plan import build
from testbed.core.plan.addressing import MANAGEMENT, MANAGEMENT_V4, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload import mpi_launch
from testbed.host import lab_nodes, launcher_proxy, launcher_shim
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Place

__all__ = ["Mpiexec", "RankProcess", "shared_variables", "start_mpiexec", "start_rank"]

_OF_ONE_RANK: Final = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TESTBED_NODE", "TESTBED_SITE", "TESTBED_SITE_RANK"}
)
"""Variables of rank_environment.py that differ from rank to rank: mpiexec has one environment for all."""


class RankProcess(Protocol):
    """The process of a rank as its job sees it: subprocess.Popen, or one that an mpiexec started. ``pid`` leads a
    process group."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def start_rank(
    place: Place,
    argv: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *,
    framed: bool = False,
    stdin: int = subprocess.PIPE,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start one rank in ``place``, in a session of its own; ``framed`` as of its ``enter``.

    Where ``place`` has a watchdog, EOF on stdin ends the rank, so stdin must be a pipe. Raises MissingTool, OSError.
    """
    return subprocess.Popen(
        place.enter(argv, folder, variables, framed=framed),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **variables},
        start_new_session=True,
    )


@dataclass(frozen=True)
class Mpiexec:
    """Which mpiexec starts ranks: ``kind`` is a launcher of :func:`mpi_launch.mpiexec_argv`, ``programs`` its folder,
    ``path`` its own if its name is not the usual one."""

    kind: str
    programs: str
    path: str = ""


def shared_variables(environments: Collection[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that all ranks have, and that an mpiexec passes on."""
    first, *others = environments
    return {
        key: value
        for key, value in first.items()
        if key not in _OF_ONE_RANK and all(environment.get(key) == value for environment in others)
    }


def start_mpiexec(
    lab: LabFolder,
    topology: Topology,
    mpiexec: Mpiexec,
    places: Mapping[str, Place],
    program: Sequence[str],
    shared: Mapping[str, str],
    *,
    files: Path,
    working: Path,
    owner: tuple[int, int],
    log: IO[bytes],
    ranks_per_node: int = 1,
    pass_on: Collection[str] = (),
) -> subprocess.Popen[bytes]:
    """Start an mpiexec, which starts ``program`` as each rank; it dies with the thread that called this.

    Args:
        lab: whose nodes the ranks run on.
        topology: of the lab.
        mpiexec: which one.
        places: where ranks run, by node in the order of ranks, and where mpiexec does, by MANAGEMENT.
        program: the argument list of a rank.
        shared: variables of all ranks.
        files: folder for the launcher's own files, which all nodes see at the same path.
        working: the working directory.
        owner: user and group of mpiexec and the ranks.
        log: receives what mpiexec itself prints.
        ranks_per_node: consecutive ranks on each node.
        pass_on: further variables that ranks get from mpiexec.

    Raises HostError, MissingTool.
    """
    shared = {**shared, **mpi_launch.OF_DAEMONS.get(mpiexec.kind, {})}
    addresses = Addressing(topology).management
    hosts = {str(addresses[node]): node for node in places if node != MANAGEMENT}
    watchdog = [str(launcher_shim.watchdog(files, sys.executable))]
    argv = mpi_launch.mpiexec_argv(
        mpiexec.kind,
        programs=mpiexec.programs,
        mpiexec=mpiexec.path,
        hosts=list(hosts),
        interface=build.MANAGEMENT_BRIDGE,
        network=str(MANAGEMENT_V4),
        agent=str(launcher_shim.client(files, launcher_proxy.socket_of(files), sys.executable)),
        program=program,
        pass_on=sorted({*shared, *pass_on, "PATH"}),
        ranks_per_node=ranks_per_node,
    )
    entries = {
        host: places[node].enter_watched([], working, {**shared, "TESTBED_NODE": node}, watchdog)
        for host, node in hosts.items()
    }
    inherited = {key: value for key, value in os.environ.items() if key not in _OF_ONE_RANK}
    return launcher_proxy.start(
        files,
        places[MANAGEMENT].enter_watched(argv, working, shared, watchdog),
        entries,
        within=lab_nodes.netns(lab, MANAGEMENT),
        owner=owner,
        environment={**inherited, **shared},
        log=log,
    )
