"""Refuse, before anything starts, a command that no node can start, and what the user of programs cannot access."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.user_text import shown
from testbed.errors import ProgramBarred, UserError
from testbed.host import lab_folder
from testbed.host.lab_nodes import Place
from testbed.host.linux import invocation, program_user
from testbed.host.linux.program_user import Access, ProgramUser

if TYPE_CHECKING:
    from testbed.core.workload.workload import AgentWorkload
from testbed.errors import CannotStart

__all__ = [
    "agent_files",
    "program_files",
    "python_barred",
    "refuse_files",
    "refuse_folder",
    "refuse_in_container",
    "refuse_missing",
    "refuse_program",
    "refuse_python",
    "refuse_state",
    "refuse_unstartable",
    "refuse_unstartable_in_container",
    "unwritable",
]


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
    for file in (Path(folder_name) / word for folder_name in path.split(os.pathsep) if folder_name):
        if _is_file(file):
            _refuse_file(word, file)
    raise CannotStart(f"command not found: {shown(word)}, in no folder of PATH={path}{_here(word, folder)}")


def _refuse_file(word: str, file: Path) -> None:
    """Raise CannotStart if ``file`` is no file, or one that nobody can execute."""
    if not os.path.exists(file):  # noqa: PTH110 (Path.exists raises where a folder above cannot be entered)
        raise CannotStart(f"command not found: {shown(word)}")
    if not _is_file(file):
        raise CannotStart(f"command cannot be executed: {shown(word)} is not a file", 126)
    if not file.stat().st_mode & 0o111:
        make = f"chmod +x {shlex.quote(str(file))}"
        write = f"; or start it by its interpreter: python {shlex.quote(word)} …" if word.endswith(".py") else ""
        raise CannotStart(f"command cannot be executed: {shown(word)} has no permission for it ({make}){write}", 126)
    with file.open("rb") as stream:
        first = stream.read(_SHEBANG_BYTES).partition(b"\n")[0]
    shebang = first[2:].split()
    if first.startswith(b"#!") and shebang and not _is_file(interpreter := Path(shebang[0].decode(errors="replace"))):
        raise CannotStart(f"command not found: {shown(str(interpreter))}, the interpreter in the first line of {word}")


def refuse_unstartable_in_container(place: Place, argv: Sequence[str], folder: Path) -> None:
    """As :func:`refuse_unstartable`, of the files and the ``$PATH`` of a container. Raises HostError."""
    finding = place.output(["sh", "-c", _FIND, "sh", argv[0], str(folder)]).strip()
    if finding == "missing":
        raise CannotStart(f"command not found in the containers' image: {shown(argv[0])}{_here(argv[0], folder)}")
    if finding == "barred":
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


_SHEBANG_BYTES = 256
"""Longest first line that Linux reads (include/uapi/linux/binfmts.h, BINPRM_BUF_SIZE)."""


def refuse_in_container(user: ProgramUser, place: Place, argv: Sequence[str], folder: Path, *, read_only: bool) -> None:
    """Raise ProgramBarred if in a container ``user`` cannot write in ``folder``, or read its files that ``argv`` names.

    Asks the container, in which ``folder`` is mounted: folders above it may be the image's own. ``read_only``: a folder
    that can be entered is enough. Raises HostError."""
    wanted: list[tuple[Access, Path]] = [("x", folder)]
    wanted += [("r", path) for word in argv for path in _file(word, folder) if path.resolve().is_relative_to(folder)]
    wanted += [] if read_only else [("w", folder)]
    barred = place.first_refused(user, wanted)
    if barred == folder and not read_only:
        give = invocation.as_root(f"chown {user.uid} {shlex.quote(str(folder))}")
        raise ProgramBarred(
            f"programs in containers run as {user}, who cannot write in the current folder, {folder}; give it to this"
            f" user ({give}), start from another folder, or add --read-only if your program writes"
            " nothing there"
        )
    if barred:
        raise ProgramBarred(
            f"programs in containers run as {user}, who cannot use {barred}; let this user in: chmod, or another folder"
        )


def refuse_state(user: ProgramUser) -> None:
    """Raise ProgramBarred if programs could move the folder of labs' state away, and put another one there."""
    if moved := program_user.renamable(user, lab_folder.root() / "labs"):
        raise ProgramBarred(
            f"TESTBED_STATE={lab_folder.root()}: the lab's programs run as {user}, who can rename {moved}; use a folder"
            " in which only root can, such as the default, /var/lib/testbed"
        )


def python_barred(user: ProgramUser) -> Path | None:
    """Return what bars ``user`` from the Python of agents and libraries; None if nothing does."""
    executable = Path(sys.executable)
    wanted: list[tuple[Access, Path]] = [("x", executable.resolve()), ("x", executable)]
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    for name in ("testbed_agents", "torch"):
        spec = importlib.util.find_spec(name)
        folders += [] if spec is None or spec.origin is None else [str(Path(spec.origin).parent)]
    for folder in map(Path, folders):
        if folder.is_dir():
            wanted += [("r", folder), ("x", folder)]
    return program_user.first_refused(user, wanted)


def refuse_python(user: ProgramUser) -> None:
    """Raise ProgramBarred if ``user`` cannot run the Python of agents and libraries."""
    if barred := python_barred(user):
        raise ProgramBarred(
            f"ranks and libraries run as {user}, who cannot use {barred}, which is part of this Python; install the"
            f" testbed with a Python that every user can run, or let others in: {_let_in(barred)}"
        )


def refuse_folder(user: ProgramUser, folder: Path) -> None:
    """Raise ProgramBarred if ranks cannot reach what they are to write below ``folder``, which exists."""
    if barred := program_user.first_refused(user, [("x", folder)]):
        raise ProgramBarred(
            f"programs run as {user}, who cannot write below {folder}: {barred} bars the way; choose another folder for"
            f" runs, let others in ({_let_in(barred)}), or run your program as root: {_as_root()}"
        )


def agent_files(workload: AgentWorkload) -> tuple[Path, ...]:
    """Return the files and folders that ranks of a workload read: its data, and an installed package's strategy."""
    from testbed.host import strategy_packages  # imports all strategies, which a lab without a job does not need

    data = (Path(workload.data).absolute(),) if workload.data else ()
    return (*data, *strategy_packages.files_of(workload.strategy))


def refuse_files(user: ProgramUser, paths: Iterable[Path]) -> None:
    """Raise ProgramBarred if ranks or libraries cannot read these files and folders, which exist."""
    wanted: list[tuple[Access, Path]] = []
    for path in paths:
        wanted.append(("r", path))
        if path.is_dir():
            wanted.append(("x", path))
    if barred := program_user.first_refused(user, wanted):
        raise ProgramBarred(
            f"ranks and libraries run as {user}, who cannot read {barred}; let this user in, or copy it"
        )


def refuse_missing(argv: Sequence[str], folder: Path, search: str | None = None) -> None:
    """Raise UserError if on this host there is no program ``argv[0]``, or no script that a Python is to run.

    ``search`` is the PATH of a name without a slash; default: this process's own.
    """
    program = argv[0]
    there = _is_file(folder / program) if "/" in program else shutil.which(program, path=search) is not None
    if not there:
        where = f"in {folder}" if "/" in program else "on the PATH"
        raise UserError(f"no program {shown(program)} {where}; write its path, seen from {folder}, or install it")
    script = argv[1] if len(argv) > 1 else ""
    python = Path(program).name.startswith("python")
    if python and script.endswith(".py") and not script.startswith("-") and not _is_file(folder / script):
        raise UserError(f"no file {shown(script)} in {folder} for {program} to run; write its path, seen from there")


def refuse_program(user: ProgramUser, argv: Sequence[str], folder: Path) -> None:
    """Raise ProgramBarred if ``user`` cannot enter ``folder`` or run ``argv`` from there.

    Checks the program, its interpreter, and files that its arguments name. A program that does not exist is not
    refused: starting it says so."""
    wanted: list[tuple[Access, Path]] = [("x", folder)]
    for program in program_files(argv[0], folder):
        wanted += [("x", program.resolve()), ("x", program)]
    wanted += [("r", path) for word in argv[1:] for path in _file(word, folder)]
    if barred := program_user.first_refused(user, wanted):
        raise ProgramBarred(
            f"programs run as {user}, who cannot use {barred}; let this user in (chmod, or another folder), or run the"
            f" program as root: {_as_root()}"
        )


def unwritable(user: ProgramUser, place: Place, folder: Path, home: str) -> str:
    """Return, in one sentence, where ``user`` cannot write of ``folder``, the working directory, and HOME; else empty.

    ``home``: a path that the program's variables set, or empty. Raises HostError.
    """
    asked = {"the current folder": folder}
    if home := home or place.home(user):
        asked["HOME"] = Path(home)
    refused = []
    for name, path in asked.items():
        if barred := place.first_refused(user, [("w", path)]):
            refused.append(f"{path} ({name})" if barred == path else f"{path} ({name}: {barred} bars the way)")
    if not refused:
        return ""
    return f"programs run as {user}, who cannot write in {' or '.join(refused)}, but in $TESTBED_SCRATCH"


def _let_in(barred: Path) -> str:
    return invocation.as_root(f"chmod o+x {shlex.quote(str(barred))}")


def _as_root() -> str:
    return invocation.command("launch", "--as-root", "--", "PROGRAM").replace("PROGRAM", "…")


def program_files(word: str, folder: Path) -> Iterable[Path]:
    """Yield the file of a command and, if it is a script, its interpreter."""
    file = folder / word if "/" in word else Path(shutil.which(word) or "")
    if not _is_file(file):
        return
    yield file
    with file.open("rb") as stream:
        first = stream.read(_SHEBANG_BYTES).partition(b"\n")[0]
    shebang = first[2:].split()
    if first.startswith(b"#!") and shebang and _is_file(interpreter := Path(shebang[0].decode(errors="replace"))):
        yield interpreter


def _file(word: str, folder: Path) -> Iterable[Path]:
    if word and _is_file(path := folder / word):
        yield path


def _is_file(path: Path) -> bool:
    """Whether there is such a file. An argument may be anything: the text of ``python -c`` is too long for a path."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for it)
