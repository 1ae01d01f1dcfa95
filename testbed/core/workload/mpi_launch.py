"""Command lines for MPI's own launchers: daemons through a replacement for ssh, and TCP over the fabric alone.

The traps of one host, all measured: the ranks of different nodes are on one machine, and MPI would use shared memory
between them, so that no byte crosses a fiber; it would take the management network, which all nodes share; its daemons
would start others by ssh. Open MPI's hierarchical collectives (han) crash where each node has a network namespace of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "OF_DAEMONS",
    "RANK_VARIABLES",
    "Found",
    "Mpi",
    "caution",
    "choose",
    "linked",
    "mpiexec_argv",
    "recognize",
    "variables",
]

Mpi: TypeAlias = Literal["mpich", "openmpi", "openmpi4"]
"""MPICH by hydra, Open MPI 5 and later by PRRTE, Open MPI up to 4 by its own runtime (ORTE)."""

OF_DAEMONS: Final[Mapping[str, Mapping[str, str]]] = {"mpich": {"HWLOC_XMLFILE": "/dev/null"}}
"""Variables that a launcher's daemons need.

MPICH's daemon (hydra_pmi_proxy) describes the processors to its ranks in a file, always in /tmp, which it removes only
at a good end: killed daemons left one each. It makes none if it is told of one (HWLOC_XMLFILE, hwloc's environment
variables). An empty one describes nothing, which matters only to several ranks on one node.
"""

RANK_VARIABLES: Final = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Variables that hold the rank: hydra's, PMIx's, and the one that Open MPI adds."""

_LIBRARIES: Final[Mapping[Mpi, tuple[bytes, ...]]] = {
    "mpich": (b"libmpich.so.12", b"libmpi.so.12"),
    "openmpi": (b"libmpi.so.40",),
}
"""Names that a program linked with the library contains (DT_NEEDED): Debian's MPICH, the common ABI; Open MPI."""


@dataclass(frozen=True)
class Found:
    """A launcher: its path, the first words that it says of itself, and what it is of."""

    path: str
    version: str
    mpi: Mpi


def recognize(path: str, version_output: str) -> Found | None:
    """Return what the output of ``PATH --version`` tells; None for a launcher that is not known."""
    if "HYDRA" in version_output:
        version = re.search(r"Version:\s*(\S+)", version_output)
        return Found(path, f"MPICH {version[1]}" if version else "MPICH", "mpich")
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)(\S*)", version_output):
        return Found(path, f"Open MPI {match[1]}{match[2]}", "openmpi4" if int(match[1]) < 5 else "openmpi")
    if re.search(r"PRRTE|\bprte\b|prterun", version_output):
        return Found(path, "Open MPI (PRRTE)", "openmpi")
    return None


def linked(program: bytes) -> Mpi | None:
    """Return which library an executable file is linked with; None if that cannot be told, as of a script."""
    if not program.startswith(b"\x7fELF"):
        return None
    return next((mpi for mpi, names in _LIBRARIES.items() if any(name in program for name in names)), None)


def choose(launchers: Iterable[Found], wanted: Mpi | None) -> Found | None:
    """Return the first launcher of the library that the program is ``linked`` with; the first of all if unknown."""
    return next((launcher for launcher in launchers if wanted is None or launcher.mpi.rstrip("4") == wanted), None)


def caution(launcher: Found) -> str:
    """Return what a user should know of this library; empty if nothing.

    MPICH before 4.2 over UCX: a rank that has closed its connections waits in a barrier without making progress, while
    another waits for its answer (https://github.com/pmodels/mpich/pull/6596). Debian 12 has 4.0.2, where most jobs that
    crossed a fiber never ended.
    """
    version = re.fullmatch(r"MPICH (\d+)\.(\d+).*", launcher.version)
    if version and (int(version[1]), int(version[2])) < (4, 2):
        return (
            f"{launcher.version} often hangs in MPI_Finalize over TCP (fixed in 4.2, pmodels/mpich#6596): if the"
            " program does not end, use a newer MPICH, or Open MPI"
        )
    return ""


def variables(mpi: Mpi, interface: str) -> dict[str, str]:
    """Return the variables that restrict ranks to TCP over ``interface``."""
    if mpi == "mpich":
        return {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": interface,
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": interface,
            "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE": interface,
        }
    return {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks share cores in a lab
    }


def mpiexec_argv(
    launcher: str,
    *,
    programs: str,
    hosts: Sequence[str],
    interface: str,
    network: str,
    agent: str,
    program: Sequence[str],
    pass_on: Sequence[str],
    ranks_per_node: int = 1,
    mpiexec: str = "",
) -> tuple[str, ...]:
    """Return the command that starts the ranks of ``program``, ``ranks_per_node`` consecutive ones on each of
    ``hosts``, which are addresses that the launcher reaches.

    ``programs`` is the folder of the launcher, at the same path on the nodes; ``mpiexec`` its path if its name is not
    the usual one. ``interface`` is the launcher's own, where its daemons find it; ``network`` (address/length) contains
    it on all nodes. ``agent`` is an executable called in place of ssh, by the launcher alone: its daemons start no
    others. Of the launcher's environment the ranks inherit the variables in ``pass_on``, never ``RANK``: each rank
    learns its own from the launcher.
    """
    ranks, per_node = str(len(hosts) * ranks_per_node), str(ranks_per_node)
    if launcher == "mpich":
        return (
            *(mpiexec or f"{programs}/mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", agent),
            *("-iface", interface, "-hosts", ",".join(hosts), "-ppn", per_node, "-n", ranks),
            *("-genvlist", ",".join(pass_on)),
            *program,
        )
    places = ("--host", ",".join(f"{host}:{per_node}" for host in hosts))
    passed = tuple(word for name in pass_on for word in ("-x", name))
    prefix = ("--prefix", programs.rsplit("/", 1)[0], "--leave-session-attached")
    if launcher == "openmpi":
        # By node and not by slot where there is one rank each: that needs no slots of the daemons.
        mapped = ("--map-by", "node") if ranks_per_node == 1 else ("--map-by", "slot", "--bind-to", "none")
        return (
            *(mpiexec or f"{programs}/prterun",),
            *("--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", network),
            # A daemon would start others itself, but cannot reach them (host/launcher_proxy.py).
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *prefix, *places, *mapped, "-n", ranks, *passed, *program,
        )  # fmt: skip
    if launcher == "openmpi4":
        return (
            *(mpiexec or f"{programs}/mpirun",),
            *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1"),
            *("--mca", "oob_tcp_if_include", network),
            *prefix, *places, "--map-by", "slot", "--bind-to", "none", "-n", ranks, *passed, *program,
        )  # fmt: skip
    raise ValueError(f"launcher {launcher!r} starts no ranks")
