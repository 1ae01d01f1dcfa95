"""The libraries whose adapters ship with the testbed (agents/testbed_agents/adapters)."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.validation.library import PYTHON, CollectiveLibrary, Launcher

BROKEN = (
    "wrong-sum",
    "lost-byte",
    "stale",
    "swapped",
    "different-bits",
    "no-barrier",
    "hang",
    "no-timeout",
    "late-error",
    "swallowed-error",
    "crash",
    "no-rebuild",
    "bypass",
)
"""Deliberate defects of the reference library; testbed_agents.adapters.broken describes each."""


def _program(module: str, *arguments: str) -> tuple[str, ...]:
    return (PYTHON, "-m", f"testbed_agents.adapters.{module}", *arguments)


def _mpi(abi: Launcher, title: str, program: str) -> CollectiveLibrary:
    return CollectiveLibrary(
        name=abi,
        title=title,
        argv=_program("mpi", abi),
        launcher=abi,
        modules=("numpy", "mpi4py"),
        programs=(program,),
        extra=f"validate-{abi}",
    )


def broken_ring(how: str) -> CollectiveLibrary:
    """Return the reference library with the defect ``how`` of ``BROKEN``."""
    return CollectiveLibrary(
        name=f"ring-{how}",
        title=f"reference ring, broken: {how}",
        argv=_program("broken", how),
        modules=("numpy",),
        extra="agents",
    )


def _one_thread() -> dict[str, str]:
    """One thread, because a rank has one core in a lab."""
    return {"OMP_NUM_THREADS": "1"}


_ALL = (
    CollectiveLibrary(
        name="torch-gloo",
        title="torch.distributed, gloo",
        argv=_program("torch_gloo"),
        environment=_one_thread(),
        modules=("numpy", "torch"),
        extra="agents",
    ),
    _mpi("mpich", "MPICH", "mpiexec.hydra"),
    _mpi("openmpi", "Open MPI", "prterun"),
    CollectiveLibrary(
        name="torchft",
        title="torchft, ProcessGroupGloo",
        argv=_program("torchft_gloo"),
        environment=_one_thread(),
        modules=("numpy", "torch", "torchft"),
        extra="validate-torchft",
    ),
    CollectiveLibrary(
        name="jax-gloo",
        title="jax, gloo",
        argv=_program("jax_gloo"),
        environment={"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
        modules=("numpy", "jax"),
        extra="validate-jax",
    ),
    CollectiveLibrary(
        name="nccl",
        title="torch.distributed, NCCL",
        argv=_program("nccl"),
        modules=("numpy", "torch"),
        install="install torch with CUDA (https://pytorch.org/get-started/locally/)",
        needs_gpu=True,
    ),
    CollectiveLibrary(
        name="ring",
        title="reference ring over TCP",
        argv=_program("ring"),
        modules=("numpy",),
        extra="agents",
    ),
)

SHIPPED: Mapping[str, CollectiveLibrary] = {library.name: library for library in _ALL}
"""By name, in the order of the table in docs/validate.md."""

BROKEN_RINGS: Mapping[str, CollectiveLibrary] = {library.name: library for library in map(broken_ring, BROKEN)}
"""``ring-wrong-sum`` and so on: to check that a validation catches them."""
