"""Variables that let what a program reports be read when it reports it: unbuffered output, and a module to call.

A line is stamped when it is read, so a line that waits in a buffer of the program's is stamped too late: C's standard
library, Fortran's and Python's buffer 4 to 64 KiB where the output is no terminal. A pseudo-terminal would end that
too, but it would make programs draw for a terminal, and merge their errors into their output.

- Python: PYTHONUNBUFFERED (python(1)).
- glibc: the library of stdbuf(1), by LD_PRELOAD, which sets line buffering when a program begins. Statically linked
  programs do not load it; those of Go and Rust, and shells, write lines as they are printed.
- gfortran: GFORTRAN_UNBUFFERED_PRECONNECTED.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.errors import HostError
from testbed.host.lab_nodes import Place

__all__ = ["source", "stdbuf", "variables"]

_LIBRARIES: Final = (
    "/usr/libexec/coreutils/libstdbuf.so",
    "/usr/lib/coreutils/libstdbuf.so",
    "/usr/lib/x86_64-linux-gnu/coreutils/libstdbuf.so",
    "/usr/lib/aarch64-linux-gnu/coreutils/libstdbuf.so",
)
"""Where distributions put it."""

_IN_IMAGE: Final = "/opt/testbed/agents"
"""The agents' folder in an image, which its PYTHONPATH has (agents/Dockerfile)."""


def source() -> bytes:
    """Return the file that programs find as the module ``testbed_agents``. Raises HostError."""
    spec = importlib.util.find_spec("testbed_agents")
    if spec is None or spec.origin is None:
        raise HostError("the package testbed_agents is not installed; reinstall scale-across-testbed")
    path = Path(spec.origin).with_name("progress_calls.py")
    try:
        return path.read_bytes()
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}; reinstall scale-across-testbed") from error


def stdbuf(where: Place) -> str:
    """Return the path of stdbuf's library as programs see it there; empty if there is none."""
    return where.existing(_LIBRARIES)


def variables(contained: bool, module: Path, theirs: Mapping[str, str], library: str) -> dict[str, str]:
    """Return the variables of a program whose environment would be ``theirs``.

    ``module``: the file that it finds as ``testbed_agents``; images have it already. ``library``: see :func:`stdbuf`.
    What PYTHONPATH and LD_PRELOAD have stays first: nothing is hidden by what is added.
    """
    environment = {"PYTHONUNBUFFERED": "1", "GFORTRAN_UNBUFFERED_PRECONNECTED": "y"}
    if library:
        environment |= {"LD_PRELOAD": _joined(theirs.get("LD_PRELOAD", ""), library), "_STDBUF_O": "L"}
    python_path = theirs.get("PYTHONPATH", "")
    if python_path or not contained:
        environment["PYTHONPATH"] = _joined(python_path, _IN_IMAGE if contained else str(module.parent))
    return environment


def _joined(before: str, addition: str) -> str:
    return f"{before}:{addition}" if before else addition
