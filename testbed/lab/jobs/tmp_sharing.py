"""Whether the nodes of a launched program can each have a /tmp of their own, or must share the host's, and why.

A /tmp of a node's own hides the host's. So it is only for programs that have nothing there: neither the folder they run
in nor themselves, their Python, a path among their arguments or variables, the lab's state or the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.lab import program_rights

__all__ = ["TMP", "why_shared"]

TMP: Final = "/tmp"

_MENTIONED: Final = re.compile(r"(?<![\w.-])/+tmp(?![\w.-])[^\s'\",:;)]*")
"""A path in /tmp within a word: ``/tmp``, ``--out=/tmp/x``, ``file:///tmp/x``, ``open('/tmp/x')``; not ``/var/tmp``."""

_OF_THE_SESSION: Final = frozenset({
    "_", "DBUS_SESSION_BUS_ADDRESS", "ICEAUTHORITY", "OLDPWD", "PWD", "SESSION_MANAGER", "SSH_AUTH_SOCK",
    "SUDO_COMMAND", "TESTBED_RUNS", "TESTBED_STATE", "TMPDIR", "TMUX", "TMUX_TMPDIR", "XAUTHORITY",
})  # fmt: skip
"""Inherited variables of the user's terminal and desktop, which often have sockets in /tmp that no lab's program uses;
and those that are judged, or replaced, themselves."""

_EDITORS: Final = "VSCODE_"


def why_shared(
    command: Sequence[str],
    folder: Path,
    given: Mapping[str, str],
    inherited: Mapping[str, str],
    places: Mapping[str, Path],
) -> str:
    """Return what lies in /tmp, in words; empty if nothing does, so that each node can have a /tmp of its own.

    ``folder``: the program's working directory. ``given``: variables for this program; ``inherited``: the caller's own.
    ``places``: the testbed's own folders, by their names for people. Values of variables, maybe secrets, are not told.
    """
    for name, path in {"the current folder": folder, **places}.items():
        if _lies_there(path):
            return f"{name} lies in it ({path})"
    for path in _of_program(command[0], folder):
        if _lies_there(path):
            return f"the program, its interpreter or its Python environment lies in it ({path})"
    for number, word in enumerate(command[1:], 1):
        if found := _names(word, folder):
            return f"argument {number} names a path in it ({found})"
    session = {key for key in inherited if key in _OF_THE_SESSION or key.startswith(_EDITORS)}
    for key, value in {**{key: it for key, it in inherited.items() if key not in session}, **given}.items():
        if any(_names(part, None) for part in (value, *value.split(os.pathsep))):
            return f"the variable {key} names a path in it"
    return ""


def _lies_there(path: Path) -> bool:
    """Whether ``path``, absolute, is in /tmp as written or where its links lead."""
    top = os.path.realpath(TMP)
    return any(_below(it, end) for it in (os.path.normpath(path), os.path.realpath(path)) for end in (TMP, top))


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _names(word: str, folder: Path | None) -> str:
    """Return the path in /tmp that a word has, or is; empty if there is none. ``folder``: of relative paths."""
    if found := _MENTIONED.search(word):
        return found[0]
    values = (word.partition("=")[2], word[2:]) if word.startswith("-") else (word,)  # --out=/x, -o/x
    for it in values:
        if it and "\0" not in it and (it.startswith("/") or folder is not None):
            path = Path(folder or "/", it)
            if _lies_there(path):
                return str(path)
    return ""


def _of_program(word: str, folder: Path) -> Iterable[Path]:
    """Yield a command's file, its interpreter and, if one is the Python of a virtual environment, what that imports."""
    for path in program_rights.program_files(word, folder):
        yield path
        environment = path.parent.parent
        if (environment / "pyvenv.cfg").is_file():
            yield environment
            for line in _lines(environment / "pyvenv.cfg"):
                key, _, value = line.partition("=")
                if key.strip() == "home" and value.strip().startswith("/"):
                    yield Path(value.strip())
            # Packages that are developed elsewhere (site: https://docs.python.org/3/library/site.html).
            for listing in environment.glob("lib/python3*/site-packages/*.pth"):
                yield from (Path(line) for line in _lines(listing) if line.startswith("/"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
