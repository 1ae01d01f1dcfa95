"""Find the collective library to validate: a shipped one, one registered by another package, or a user's program."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, get_args

from testbed.core.user_text import shown
from testbed.core.validation import shipped_libraries
from testbed.core.validation.library import ENTRY_POINT_GROUP, PYTHON, Launcher, Library
from testbed.errors import UnknownName, UserError
from testbed.host import installation
from testbed.host.linux import invocation

__all__ = [
    "broken",
    "find",
    "gpu_missing",
    "lacking",
    "lacking_inside",
    "program",
    "python",
    "registry",
    "said",
    "why_not",
]

_LOOK: Final = (
    "import importlib.util, shutil, sys\n"
    "def there(name):\n"
    "    try:\n"
    "        return importlib.util.find_spec(name) is not None\n"
    "    except ImportError:\n"
    "        return False\n"
    "split = sys.argv.index('--')\n"
    "modules, programs = sys.argv[1:split], sys.argv[split + 1:]\n"
    "print(*(it for it in modules if not there(it)), *(it for it in programs if not shutil.which(it)))\n"
)
"""Run by a container's Python: prints those of its arguments (modules ``--`` programs) that are not installed."""

_LOOK_BOUND_S: Final = 30.0

_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,99}")

_GPU: Final = Path("/dev/nvidiactl")
"""Exists once NVIDIA's driver is loaded and has found a GPU."""


def registry() -> dict[str, Library]:
    """Return all named libraries: the shipped ones, then entry points that can be loaded (see also :func:`broken`).

    An entry point with the name of a shipped library is ignored.
    """
    libraries = dict(shipped_libraries.SHIPPED)
    for point in _entry_points():
        if point.name not in libraries:
            try:
                libraries[point.name] = _load(point)
            except UserError:
                continue
    return libraries


def broken() -> dict[str, str]:
    """Return, by name, why each unusable entry point cannot be loaded."""
    errors: dict[str, str] = {}
    for point in _entry_points():
        try:
            _load(point)
        except UserError as error:
            errors[point.name] = str(error)
    return errors


def find(name_or_path: str) -> Library:
    """Return the library of a name, or a user's rank program by its path.

    ``./ranks.py`` is run by the nodes' Python; any other file must be executable. The deliberately broken rings also
    have names, which no list shows. Raises UnknownName; UserError for a file that is missing or cannot be run.
    """
    if "/" in name_or_path or name_or_path.endswith(".py"):
        return _own(name_or_path)
    if (ours := {**shipped_libraries.BROKEN_RINGS, **shipped_libraries.SHIPPED}.get(name_or_path)) is not None:
        return ours
    points = _entry_points()
    for point in points:
        if point.name == name_or_path:
            return _load(point)
    raise UnknownName("library", name_or_path, [*shipped_libraries.SHIPPED, *(point.name for point in points)])


def lacking(library: Library) -> tuple[str, ...]:
    """Return the required modules that this Python, which nodes that are namespaces share, cannot import."""
    return tuple(name for name in library.modules if not _importable(name))


def lacking_inside(library: Library, enter: Callable[[Sequence[str]], Sequence[str]]) -> tuple[str, ...]:
    """Return the required modules and programs that a container does not have; all of them if its Python fails.

    ``enter`` turns an argument list into one that runs inside the container.
    """
    needed = (*library.modules, *library.programs)
    if not needed:
        return ()
    try:
        done = subprocess.run(
            list(enter(["python", "-c", _LOOK, *library.modules, "--", *library.programs])),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOOK_BOUND_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return needed
    return tuple(done.stdout.split()) if done.returncode == 0 else needed


def why_not(library: Library) -> str:
    """Return why a library cannot be validated in namespaces of this host, with the fix; empty if it can."""
    if library.needs_gpu and (why := gpu_missing()):
        return why
    return said(library, (*lacking(library), *(name for name in library.programs if program(name) is None)))


def program(name: str) -> Path | None:
    """Return the path of a library's program, such as mpiexec, looked up beside this Python first; None if missing."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    path = beside or shutil.which(name)
    return Path(path) if path else None


def said(library: Library, modules: Sequence[str]) -> str:
    """Return the message that ``modules`` are missing, with the fix; empty if there are none."""
    if not modules:
        return ""
    install = installation.adding(library.extra) if library.extra else _for_this_python(library.install)
    fix = f"; install it with: {install}" if install else ""
    return f"{', '.join(modules)} {'is' if len(modules) == 1 else 'are'} not installed{fix}"


def _for_this_python(command: str) -> str:
    """Return the command of a library's author; its ``pip`` alone may be another Python's, or not exist."""
    match = re.fullmatch(r"pip3? install (.+)", command)
    return installation.pip(shlex.split(match[1])) if match else command


def gpu_missing() -> str:
    """Return why no GPU can be used; empty if there is one."""
    return "" if _GPU.exists() else f"no NVIDIA GPU found ({_GPU} does not exist)"


def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _load(point: importlib.metadata.EntryPoint) -> Library:
    """Load a registered library. Raises UserError, with the package that registered it, for any exception."""
    who = f"library {point.name}, registered by {point.dist.name if point.dist else 'a package'} as {point.value}"
    try:
        made = point.load()
        made = made if isinstance(made, Library) else made()
    except Exception as error:
        raise UserError(f"{who}: {type(error).__name__}: {error}") from error
    if not isinstance(made, Library):
        raise UserError(f"{who}: expected a testbed.core.validation.library.Library or a function that returns one")
    if why := _unsound(made):
        raise UserError(f"{who}: {why}")
    return made


def _unsound(library: Library) -> str:
    """Return what is invalid in a registered library; empty if nothing is. Its name becomes the name of a folder."""
    if not isinstance(library.name, str) or not _NAME.fullmatch(library.name):
        return f"name must consist of letters, digits and . _ + -, without a leading dot; got {shown(library.name)}"
    for field in ("argv", "modules", "programs"):
        names = getattr(library, field)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            return f"{field} must be a tuple of strings"
    if not library.argv:
        return "argv must not be empty"
    if library.launcher not in get_args(Launcher):
        return f"launcher must be one of {', '.join(get_args(Launcher))}; got {shown(library.launcher)}"
    if not all(isinstance(text, str) for pair in library.environment.items() for text in pair):
        return "environment must map strings to strings"
    return ""


def _own(name: str) -> Library:
    path = Path(name).absolute()
    if path.is_dir():
        raise UserError(f"expected a rank program, got the folder {shown(name)}; name the file in it")
    if not path.is_file():
        names = invocation.command("ls", "libraries")
        raise UserError(f"no such file: {shown(name)}; give a library's name ({names}) or a rank program")
    if not _NAME.fullmatch(path.stem):
        raise UserError(f"{shown(name)}: a rank program's file name may have letters, digits and . _ + -; rename it")
    if path.suffix == ".py":
        return Library(path.stem, f"{path.name}, a rank program", (PYTHON, str(path)))
    if not os.access(path, os.X_OK):
        raise UserError(f"{name} is not executable; fix it with: chmod +x {shlex.quote(name)}")
    return Library(path.stem, f"{path.name}, a rank program", (str(path),))


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def python() -> str:
    """Return the Python that runs rank programs in nodes that are namespaces."""
    return sys.executable
