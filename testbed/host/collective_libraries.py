"""The collective libraries that can be validated: shipped ones, those that others register, a program of one's own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
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
"""A program for the Python of a container: prints those of its arguments, modules -- programs, that are not there."""

_LOOK_BOUND_S: Final = 30.0

_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,99}")

_GPU: Final = Path("/dev/nvidiactl")
"""There as soon as NVIDIA's driver is loaded and has found a GPU."""


def registry() -> dict[str, Library]:
    """All that have a name: those shipped, then those of entry points that can be loaded (:func:`broken` has the
    others). A name that is shipped stays the shipped one's."""
    found = dict(shipped_libraries.SHIPPED)
    for point in _entry_points():
        if point.name not in found:
            try:
                found[point.name] = _load(point)
            except UserError:
                continue
    return found


def broken() -> dict[str, str]:
    """Why, by name, for each entry point that cannot be used."""
    said: dict[str, str] = {}
    for point in _entry_points():
        try:
            _load(point)
        except UserError as error:
            said[point.name] = str(error)
    return said


def find(name_or_path: str) -> Library:
    """The library of a name, or a rank program of one's own by its path: ``./ranks.py`` is run by the nodes' Python,
    any other file must be executable. Rings that are wrong on purpose have names too, which no list shows.

    Raises UnknownName, or UserError for a file that is not there or cannot be run.
    """
    if "/" in name_or_path or name_or_path.endswith(".py"):
        return _own(name_or_path)
    if (ours := {**shipped_libraries.BROKEN_RINGS, **shipped_libraries.SHIPPED}.get(name_or_path)) is not None:
        return ours
    points = _entry_points()
    for point in points:
        if point.name == name_or_path:
            return _load(point)
    raise UnknownName("library", name_or_path, [*shipped_libraries.SHIPPED, *(it.name for it in points)])


def lacking(library: Library) -> tuple[str, ...]:
    """Modules that it needs and this Python, which is the nodes' where nodes are namespaces, cannot import."""
    return tuple(name for name in library.modules if not _importable(name))


def lacking_inside(library: Library, enter: Callable[[Sequence[str]], Sequence[str]]) -> tuple[str, ...]:
    """Modules and programs that it needs and a container has not; ``enter`` makes an argument list one that runs
    inside, by its Python.

    All are lacking where that Python cannot be asked.
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
    """Why it cannot be validated where nodes are namespaces of this host, and what mends it; empty if it can."""
    if library.needs_gpu and (why := gpu_missing()):
        return why
    return said(library, (*lacking(library), *(it for it in library.programs if program(it) is None)))


def program(name: str) -> Path | None:
    """A program of a library, as mpiexec of an MPI that was installed beside us is; None if it is not there."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    return Path(found) if found else None


def said(library: Library, modules: Sequence[str]) -> str:
    """That ``modules`` are missing, and what installs them; empty if there are none."""
    if not modules:
        return ""
    fix = f"; install it with: {library.install}" if library.install else ""
    return f"{', '.join(modules)} {'is' if len(modules) == 1 else 'are'} not installed{fix}"


def gpu_missing() -> str:
    """Why there is no GPU to be used; empty if there is one."""
    return "" if _GPU.exists() else f"there is no NVIDIA GPU here ({_GPU} is not there)"


def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _load(point: importlib.metadata.EntryPoint) -> Library:
    """Raises UserError, with the package that registered it: what comes of somebody else's code is not known."""
    who = f"library {point.name}, registered by {point.dist.name if point.dist else 'a package'} as {point.value}"
    try:
        made = point.load()
        made = made if isinstance(made, Library) else made()
    except Exception as error:
        raise UserError(f"{who}: {type(error).__name__}: {error}") from error
    if not isinstance(made, Library):
        raise UserError(f"{who}: this is no testbed.core.validation.library.Library, nor does it return one")
    if why := _unsound(made):
        raise UserError(f"{who}: {why}")
    return made


def _unsound(library: Library) -> str:
    """What of a library that others register cannot be used; empty: nothing. Its name becomes that of a folder."""
    if not isinstance(library.name, str) or not _NAME.fullmatch(library.name):
        return f"name is {shown(library.name)}; it is made of letters, digits and . _ + -, and begins with no dot"
    for field in ("argv", "modules", "programs"):
        words = getattr(library, field)
        if not isinstance(words, tuple | list) or not all(isinstance(it, str) for it in words):
            return f"{field} is no tuple of words"
    if not library.argv:
        return "argv is empty, so there is nothing to start"
    if library.launcher not in get_args(Launcher):
        return f"launcher is {shown(library.launcher)}; it is one of {', '.join(get_args(Launcher))}"
    if not all(isinstance(it, str) for pair in library.environment.items() for it in pair):
        return "environment is no mapping of names to words"
    return ""


def _own(name: str) -> Library:
    path = Path(name).absolute()
    if path.is_dir():
        raise UserError(f"{shown(name)} is a folder, and no file; name the rank program in it")
    if not path.is_file():
        raise UserError(f"there is no file {shown(name)}; a library is a name (testbed ls libraries) or a rank program")
    if not _NAME.fullmatch(path.stem):
        raise UserError(f"{shown(name)}: a rank program's file name is made of letters, digits and . _ + -; rename it")
    if path.suffix == ".py":
        return Library(path.stem, f"{path.name}, a rank program", (PYTHON, str(path)))
    if not os.access(path, os.X_OK):
        raise UserError(f"{name} is not executable; mend it with: chmod +x {name}")
    return Library(path.stem, f"{path.name}, a rank program", (str(path),))


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def python() -> str:
    """The Python that runs rank programs where nodes are namespaces."""
    return sys.executable
