"""What the testbed knows of a collective library before it has started it: how its rank program is begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Launcher = Literal["direct", "mpich", "openmpi"]
"""Who starts the ranks: the testbed, one process a rank; or the library's own mpiexec, which asks the testbed."""

PYTHON = "{python}"
"""First word of an ``argv`` that is run by the Python of the nodes."""

ENTRY_POINT_GROUP = "testbed.libraries"
"""Entry points whose object is a :class:`Library`, or a function without arguments that returns one."""


@dataclass(frozen=True)
class Library:
    """One collective library and its adapter, the rank program of docs/validate.md.

    ``argv`` starts the rank program (``PYTHON`` first: the nodes' Python). ``environment`` is set beside torchrun's.
    ``modules`` are importable names that the program needs in the nodes' Python, ``programs`` executables beside it,
    ``install`` the command that brings both. ``needs_gpu``: it is skipped where there is none.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher: Launcher = "direct"
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    install: str = ""
    needs_gpu: bool = False
