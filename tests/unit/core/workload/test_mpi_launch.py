"""Which MPI a program and a launcher are of, and the command lines that start ranks."""

from __future__ import annotations

import pytest
from builders.inputs import by_input

from testbed.core.workload.mpi_launch import Found, Mpi, caution, choose, linked, mpiexec_argv, recognize, variables

MPICH = "HYDRA build details:     Version:                                 4.0.2     Release Date: Thu Apr  7"


@by_input(
    "output, launcher",
    {
        MPICH: ("mpich", "MPICH 4.0.2"),
        "mpirun.openmpi (OpenRTE) 4.1.4  Report bugs to http://www.open-mpi.org": ("openmpi4", "Open MPI 4.1.4"),
        "mpirun (Open MPI) 5.0.6  Report bugs to": ("openmpi", "Open MPI 5.0.6"),
        "prterun (PRRTE) 3.0.7rc1  Report bugs": ("openmpi", "Open MPI (PRRTE)"),
    },
)
def test_recognize_a_launcher_by_its_output(output: str, launcher: tuple[str, str]) -> None:
    recognized = recognize("/usr/bin/mpiexec", output)
    assert recognized is not None and (recognized.mpi, recognized.version) == launcher


def test_another_program_is_no_launcher() -> None:
    assert recognize("/usr/bin/mpiexec", "mpiexec: command of something else 1.0") is None


@by_input(
    "content, mpi",
    {
        b"\x7fELF...libmpich.so.12\0": "mpich",
        b"\x7fELF...libmpi.so.12\0": "mpich",
        b"\x7fELF...libmpi.so.40\0": "openmpi",
        b"\x7fELF...libc.so.6\0": None,
        b"#!/usr/bin/python3\n# libmpi.so.40\n": None,
    },
)
def test_a_program_is_known_by_the_library_it_is_linked_with(content: bytes, mpi: Mpi | None) -> None:
    assert linked(content) == mpi


def test_the_launcher_of_the_programs_library_is_taken() -> None:
    mpich, old = Found("/a/mpiexec", "MPICH 4.2.1", "mpich"), Found("/b/mpirun", "Open MPI 4.1.4", "openmpi4")
    assert choose([mpich, old], None) == mpich
    assert choose([mpich, old], "openmpi") == old
    assert choose([old], "mpich") is None


@by_input(
    "version, warned",
    {"MPICH 4.0.2": True, "MPICH 4.1.2": True, "MPICH 4.2.0": False, "MPICH 5.0.2": False, "MPICH": False,
     "Open MPI 4.1.4": False},
)  # fmt: skip
def test_only_an_mpich_that_hangs_is_warned_of(version: str, warned: bool) -> None:
    assert bool(caution(Found("mpiexec", version, "mpich"))) == warned


@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "openmpi4"])
def test_ranks_of_a_node_are_consecutive_and_the_program_is_last(launcher: str) -> None:
    argv = mpiexec_argv(
        launcher, programs="/opt/bin", hosts=["172.31.0.2", "172.31.0.3"], interface="mgmt", network="172.31.0.0/16",
        agent="/run/agent", program=["./a.out", "-x"], pass_on=["PATH"], ranks_per_node=3, mpiexec="/opt/bin/mine",
    )  # fmt: skip
    assert argv[0] == "/opt/bin/mine" and argv[-2:] == ("./a.out", "-x")
    assert argv[argv.index("-n") + 1] == "6"
    assert "/run/agent" in argv
    if launcher == "mpich":
        assert argv[argv.index("-hosts") + 1] == "172.31.0.2,172.31.0.3" and argv[argv.index("-ppn") + 1] == "3"
    else:
        assert argv[argv.index("--host") + 1] == "172.31.0.2:3,172.31.0.3:3"
        assert argv[argv.index("--map-by") + 1] == "slot"  # fills a node before the next


@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "openmpi4"])
def test_no_transport_but_tcp_over_the_fabric_is_left(mpi: Mpi) -> None:
    found = variables(mpi, "fabric0")
    transports = {found[key] for key in ("UCX_TLS", "OMPI_MCA_btl") if key in found}
    assert transports == {"tcp,self"}
    assert "fabric0" in found.values()
