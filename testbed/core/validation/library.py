"""Description of a collective library before it starts: how to start its rank program, and what that needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Launcher = Literal["direct", "mpich", "openmpi"]
"""What starts the ranks: the testbed, one process a rank; or the library's own mpiexec, which the testbed starts."""

PYTHON = "{python}"
"""First word of an ``argv`` that the nodes' Python runs."""

ENTRY_POINT_GROUP = "testbed.libraries"
"""Entry points whose object is a :class:`CollectiveLibrary`, or a function without arguments that returns one."""


@dataclass(frozen=True)
class CollectiveLibrary:
    """One collective library and its adapter, the rank program of docs/validate.md.

    ``argv`` starts the rank program (``PYTHON`` first: the nodes' Python). ``environment`` is added to torchrun's
    variables. ``modules`` are importable names that the program needs in the nodes' Python, ``programs`` executables
    beside it, ``install`` the command that installs both. ``needs_gpu``: skipped on a machine without one. ``extra``:
    of the testbed, which installs modules and programs in place of ``install``.
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
    extra: str = ""
