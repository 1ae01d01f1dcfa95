"""Where runs are kept: the folder that is named, else a data folder of the user who called the testbed.

``--runs`` or ``$TESTBED_RUNS``; else ``testbed/runs`` in the caller's ``$XDG_DATA_HOME`` or ``~/.local/share`` (XDG
Base Directory Specification), behind sudo too. Root itself, without sudo, has ``/var/lib/testbed/runs``: programs run
without privileges and could not enter root's home.

Runs are also looked for in ``runs`` of the working directory, where older versions kept them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from pathlib import Path
from typing import Final

from testbed.errors import StorageError, UnknownName, UserError
from testbed.host.files import beneath, store
from testbed.host.files.store import NEEDED_BYTES, RunDirectory
from testbed.host.linux import invocation, login
from testbed.host.linux.program_user import caller

__all__ = ["OF_ROOT", "VARIABLE", "find", "latest", "listed", "note", "ready", "runs_root", "searched"]

VARIABLE: Final = "TESTBED_RUNS"

OF_ROOT: Final = Path("/var/lib/testbed/runs")
"""The default of root itself."""

_BELOW: Final = Path("testbed", "runs")
_OLD: Final = Path("runs")
_FIX: Final = f"set {VARIABLE} (or --runs) to a folder that you can write"


def runs_root() -> Path:
    """Return the parent folder of new runs, absolute, because agents run in another directory. Changes nothing.

    Raises:
        UserError: none is named, and the caller has no home folder.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    return _default()


def _default() -> Path:
    by_sudo = caller()
    if by_sudo is not None and by_sudo[0] > 0:
        # sudo usually removes the variable. One that was kept may be root's: the caller's is in a folder of theirs.
        data = _data_home()
        if data is not None and _owner(_existing(data)) == by_sudo[0]:
            return data / _BELOW
        return _home(by_sudo[0], "") / ".local" / "share" / _BELOW
    if (data := _data_home()) is not None:
        return data / _BELOW
    if os.geteuid() == 0:
        return OF_ROOT
    return _home(os.getuid(), os.environ.get("HOME", "")) / ".local" / "share" / _BELOW


def _data_home() -> Path | None:
    """Return ``$XDG_DATA_HOME``; a relative path is invalid and ignored, as the specification says."""
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return data if data.is_absolute() else None


def _home(uid: int, named: str) -> Path:
    """Return ``named``, else the home folder of the password database. Raises UserError if neither exists."""
    candidates = [named]
    with contextlib.suppress(KeyError):
        candidates.append(pwd.getpwuid(uid).pw_dir)
    for candidate in map(Path, candidates):
        if candidate.is_absolute() and candidate != Path("/") and _is_folder(candidate):
            return candidate
    raise UserError(f"no folder for runs: {login.user_name(uid)} has no home folder; {_FIX}")


def ready(runs: Path | None = None, need_bytes: int = NEEDED_BYTES) -> Path:
    """Return the parent folder of new runs, ``runs`` or the default, absolute; create it if it is missing.

    Raises:
        UserError: as :func:`runs_root`.
        StorageError: it cannot be created or written, or has less than ``need_bytes`` bytes free; or it is the default
            and leads to a folder that is not the caller's.
    """
    root = (runs or runs_root()).absolute()
    try:
        if not _named(runs):
            _refuse_not_ours(root)
        new = [folder for folder in (root, *root.parents) if not _is_there(folder)]
        store.check_writable(root, need_bytes)
    except StorageError as error:
        raise StorageError(f"runs cannot be stored: {error}; {_FIX}") from error
    if root == OF_ROOT and not _named(runs):
        for level in new:  # whatever root's umask: programs run as another user
            beneath.let_through(level)
    return root


def _refuse_not_ours(root: Path) -> None:
    """Raise StorageError if root would write for the caller of sudo into a folder that is not the caller's.

    Programs of earlier runs have the same user: one could have put a link there that leads into /etc.
    """
    by_sudo = caller()
    if by_sudo is None or by_sudo[0] == 0:
        return
    existing = _existing(root)
    if (owner := _owner(existing)) not in (by_sudo[0], None):
        place = f"{existing}" if existing == existing.resolve() else f"{existing} (which is {existing.resolve()})"
        raise StorageError(
            f"{place} belongs to {login.user_name(int(owner or 0))}, not to {login.user_name(by_sudo[0])}"
        )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if _owner(folder) is not None)


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _named(runs: Path | None) -> bool:
    return runs is not None or bool(os.environ.get(VARIABLE))


def note(run: Path, runs: Path | None = None) -> str:
    """Return the line printed when a run begins: its directory and, for the default folder, how to name another.

    ``runs`` is the folder that the caller was given, if any.
    """
    return f"run directory: {run}" + ("" if _named(runs) else f" (the default; --runs or {VARIABLE} names another)")


# ---- finding runs


def searched() -> tuple[Path, ...]:
    """Return the folders in which runs are looked for: where new ones go, then ``runs`` of the working directory.

    For a user with ``$XDG_DATA_HOME``, which sudo removes, also where runs of the same user behind sudo go. If
    ``$TESTBED_RUNS`` is set, only there.

    Raises:
        UserError: there is none of them.
    """
    if os.environ.get(VARIABLE):
        return (runs_root(),)
    old = _OLD.absolute()
    try:
        folders = [_default()]
    except UserError:
        if not _is_folder(old):
            raise
        folders = []
    if os.geteuid() != 0 and _data_home() is not None:
        with contextlib.suppress(UserError):
            by_sudo = _home(os.getuid(), "") / ".local" / "share" / _BELOW
            if _is_folder(by_sudo) and not any(_is_folder(folder) and folder.samefile(by_sudo) for folder in folders):
                folders.append(by_sudo)
    if _is_folder(old) and not any(_is_folder(folder) and folder.samefile(old) for folder in folders):
        folders.append(old)
    return tuple(folders)


def listed(*, begun: bool = False) -> list[RunDirectory]:
    """Return all runs of :func:`searched`, the latest first; ``begun``: also those without results yet.

    Raises UserError, StorageError.
    """
    return store.list_runs(*searched(), begun=begun)


def latest() -> RunDirectory:
    """Return the latest run. Raises UserError if there is none, StorageError."""
    if runs := listed():
        return runs[0]
    places = " or ".join(map(str, searched()))
    raise UserError(f"no runs in {places} yet; start one with: {invocation.command('run', 'metro-40km')}")


def find(run: Path) -> RunDirectory:
    """Return a run by its path, or by its name in :func:`searched`; ``runs/NAME`` counts as the name.

    Raises:
        UnknownName: there is none. UserError, StorageError.
    """
    if _is_there(run):
        places = [run.resolve() if run.name in ("", "..") else run]  # a run is called as its folder, not "."
    elif run.is_absolute() or run.parent not in (Path(), _OLD):
        raise UnknownName(
            "run", run.name, sorted([run_directory.name for run_directory in store.list_runs(run.parent)] or _names())
        )
    else:
        places = [folder for root in searched() if _is_there(folder := root / run.name)]
    if not places:
        raise UnknownName("run", run.name, sorted(_names()))
    try:
        return RunDirectory.open(places[0])
    except UnknownName as error:  # no runs beside that path: suggest those of the default folder
        raise UnknownName(error.what, error.name, error.available or sorted(_names())) from None


def _is_folder(path: Path) -> bool:
    """Whether there is such a folder, as far as this user can see."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where a folder above cannot be entered)


def _is_there(path: Path) -> bool:
    """Whether ``path`` exists. Raises StorageError if that cannot be determined."""
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return False
        raise StorageError(f"{path}: {error.strerror or error}") from error
    return True


def _names() -> list[str]:
    return [run_directory.name for run_directory in listed()]
