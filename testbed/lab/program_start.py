"""Refuse a command that no node can start, before anything starts: one message, rather than one in each rank."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from testbed.core.user_text import shown
from testbed.errors import CannotStart
from testbed.host.lab_nodes import Place
from testbed.host.linux import program_user
from testbed.host.linux.program_user import ProgramUser

__all__ = ["refuse_unstartable", "refuse_unstartable_in_container"]

_SHEBANG_BYTES = 256
"""Longest first line that Linux reads (include/uapi/linux/binfmts.h, BINPRM_BUF_SIZE)."""

_FIND = (
    'cd -- "$2" 2>/dev/null; command -v -- "$1" >/dev/null && exit; [ -e "$1" ] && case $1 in */*) echo barred; exit;;'
    " esac; echo missing"
)
"""Shell command that prints nothing if there is a command $1, started from the folder $2, else why it cannot start."""


def refuse_unstartable(user: ProgramUser | None, argv: Sequence[str], folder: Path, path: str | None = None) -> None:
    """Raise CannotStart if there is no command ``argv[0]``, or it cannot be executed: once, rather than in each rank.

    ``path``: the program's own ``$PATH``. What only its user may not execute is for ``program_rights``.
    """
    _refuse_command(user, argv[0], folder, path)
    _refuse_script(argv, folder)


def _refuse_command(user: ProgramUser | None, word: str, folder: Path, path: str | None) -> None:
    if "/" in word:
        _refuse_file(word, folder / word)
        return
    if shutil.which(word, path=path) is not None and path is None:
        return  # where its user cannot enter the folder, that is the reason to tell
    path = program_user.search_path(user) if path is None else path
    if shutil.which(word, path=path) is not None:
        return
    for found in (Path(it) / word for it in path.split(os.pathsep) if it):
        if _is_file(found):
            _refuse_file(word, found)
    raise CannotStart(f"command not found: {shown(word)}, in no folder of PATH={path}{_here(word, folder)}")


def _refuse_file(word: str, found: Path) -> None:
    """Raise CannotStart if ``found`` is no file, or one that nobody can execute."""
    if not os.path.exists(found):  # noqa: PTH110 (Path.exists raises where a folder above cannot be entered)
        raise CannotStart(f"command not found: {shown(word)}")
    if not _is_file(found):
        raise CannotStart(f"command cannot be executed: {shown(word)} is not a file", 126)
    if not found.stat().st_mode & 0o111:
        make = f"chmod +x {shlex.quote(str(found))}"
        write = f"; or start it by its interpreter: python {shlex.quote(word)} …" if word.endswith(".py") else ""
        raise CannotStart(f"command cannot be executed: {shown(word)} has no permission for it ({make}){write}", 126)
    with found.open("rb") as stream:
        first = stream.read(_SHEBANG_BYTES).partition(b"\n")[0]
    words = first[2:].split()
    if first.startswith(b"#!") and words and not _is_file(interpreter := Path(words[0].decode(errors="replace"))):
        raise CannotStart(f"command not found: {shown(str(interpreter))}, the interpreter in the first line of {word}")


def refuse_unstartable_in_container(place: Place, argv: Sequence[str], folder: Path) -> None:
    """As :func:`refuse_unstartable`, of the files and the ``$PATH`` of a container. Raises HostError."""
    found = place.output(["sh", "-c", _FIND, "sh", argv[0], str(folder)]).strip()
    if found == "missing":
        raise CannotStart(f"command not found in the containers' image: {shown(argv[0])}{_here(argv[0], folder)}")
    if found == "barred":
        raise CannotStart(f"command cannot be executed in containers: {shown(argv[0])}", 126)


def _refuse_script(argv: Sequence[str], folder: Path) -> None:
    """Raise CannotStart if a Python is to run a script that is not there; its status is Python's own for that."""
    script = argv[1] if len(argv) > 1 else ""
    python = Path(argv[0]).name.startswith("python")
    if python and script.endswith(".py") and not script.startswith("-") and not _is_file(folder / script):
        raise CannotStart(f"no file {shown(script)} in {folder} for {argv[0]} to run", 2)


def _here(word: str, folder: Path) -> str:
    """Return a hint where ``word`` is a file of the working directory, which is not searched."""
    if not _is_file(folder / word):
        return ""
    start = f"python {word}" if word.endswith(".py") else f"./{word}"
    return f"; a file of that name is in the current folder: {start}"


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a word may be too long for a path."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for it)
