"""The user that ranks, launched programs and libraries run as where nodes are namespaces: never root, unless asked.

Namespaces share the host's files, so a program that runs as root could rewrite the journal or the records of its own
run. The user is, in this order: who called sudo; the owner of the working directory, unless that is root; a uid of the
testbed's own (:data:`OWN_UID`), which needs no account.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import stat
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from testbed.core.user_text import shown
from testbed.errors import HostError, UserError

__all__ = [
    "NO_USER",
    "OWN_UID",
    "PASSED_OVER",
    "TEMPORARY",
    "VARIABLE",
    "ProgramUser",
    "caller",
    "choose",
    "first_refused",
    "of_uid",
    "renamable",
    "scratch_variables",
    "start",
]

OWN_UID: Final = 60_700
"""Between the ranges that systemd and Debian assign (https://systemd.io/UIDS-GIDS), and below 65,536, which containers
map. ``$TESTBED_UID`` is used instead if set."""

VARIABLE: Final = "TESTBED_UID"

NO_USER: Final = 2**32 - 1
"""chown(2) reads this number as "do not change"; no user has it or a greater one."""

_NOBODY: Final = 65_534
"""Owner of files of unknown users, such as those of a user namespace's outside: not a user of this host."""

_LIKE_ROOT: Final = frozenset({"disk", "docker", "incus-admin", "libvirt", "lxd", "root", "shadow"})
"""Groups whose members can become root, or read everything; programs do not get them."""

TEMPORARY: Final = "tmp"
"""Folder below a node's scratch: TMPDIR, and what a node with a /tmp of its own has there."""

PASSED_OVER: Final = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
"""Variables that name folders of root's."""

_BEGIN: Final = '[ -z "$1" ] || [ "$PPID" = "$1" ] || exit 1; cd -- "$2" || exit 126; shift 2; exec "$@"'
"""Shell command that begins a program: $1 is the process that must still be its parent, $2 its working directory."""

_TRY: Final = 'i=0; while [ $# -gt 0 ]; do [ "$1" "$2" ] || printf "%s " "$i"; shift 2; i=$((i+1)); done'
"""Shell command that prints which of its tests fail; arguments: -r, -w or -x and a path, over and over."""

Access = Literal["r", "w", "x"]
Inside = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class ProgramUser:
    """A user without privileges.

    Attributes:
        uid: never 0.
        gid: primary group.
        groups: supplementary groups, without those whose members can become root.
        name: of the account, else ``testbed``.
        home: of the account; None if it has none that exists.
        why: where the uid comes from, as in "SUDO_UID".
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: Path | None
    why: str

    def __str__(self) -> str:
        return f"uid {self.uid} ({self.why})"

    def to_dict(self) -> dict[str, object]:
        """Return what the fork server and run.json need."""
        home = str(self.home) if self.home else ""
        return {
            "uid": self.uid, "gid": self.gid, "groups": list(self.groups), "name": self.name, "home": home,
            "why": self.why,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> ProgramUser:
        """Undo :meth:`to_dict`. Raises KeyError, TypeError, ValueError."""
        groups, home = fields["groups"], fields["home"]
        if not isinstance(groups, list):
            raise TypeError("groups must be a list")
        return cls(
            int(str(fields["uid"])), int(str(fields["gid"])), tuple(map(int, groups)), str(fields["name"]),
            Path(str(home)) if home else None, str(fields["why"]),
        )  # fmt: skip

    def variables(self, scratch: Path) -> dict[str, str]:
        """Return HOME, USER, LOGNAME and :func:`scratch_variables`; ``scratch`` is a folder of this user's."""
        account = {"HOME": str(self.home or scratch), "USER": self.name, "LOGNAME": self.name}
        return account | scratch_variables(scratch)

    @property
    def has_account(self) -> bool:
        """Whether this host knows the user; programs like ssh(1) refuse to run for one that it does not."""
        try:
            pwd.getpwuid(self.uid)
        except KeyError:
            return False
        return True


def scratch_variables(scratch: Path) -> dict[str, str]:
    """Return TESTBED_SCRATCH and TMPDIR of programs whose scratch folder this is."""
    return {"TESTBED_SCRATCH": str(scratch), "TMPDIR": str(scratch / TEMPORARY)}


def caller() -> tuple[int, int] | None:
    """Return user and group that called sudo; None without sudo, or if they cannot own files."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not (user.isdecimal() and group.isdecimal()):
        return None
    ids = int(user), int(group)
    return ids if max(ids) < NO_USER else None


def choose(folder: Path, otherwise: ProgramUser | None = None) -> ProgramUser:
    """Return the user for programs started from ``folder``; ``otherwise`` replaces the testbed's own uid.

    Raises UserError for an invalid ``$TESTBED_UID``."""
    if (ours := os.geteuid()) != 0:
        return _of(ours, os.getegid(), "this user, who is not root")
    by_sudo = caller()
    if by_sudo and by_sudo[0] > 0:
        return _of(*by_sudo, "SUDO_UID")
    with contextlib.suppress(OSError):
        owner = folder.stat()
        if owner.st_uid not in (0, _NOBODY):
            return _of(owner.st_uid, owner.st_gid, f"the owner of {folder}")
    if otherwise is not None:
        return otherwise
    own = _own_uid()
    return ProgramUser(own, own, (), "testbed", None, "the testbed's own")


def of_uid(uid: int, gid: int) -> ProgramUser | None:
    """Return the user that a running program has; None for root."""
    return _of(uid, gid, "as the program that asks") if uid else None


def _own_uid() -> int:
    written = os.environ.get(VARIABLE) or str(OWN_UID)
    if not (written.isdecimal() and 0 < int(written) < NO_USER):
        raise UserError(f"{VARIABLE}: expected a uid greater than 0, got {shown(written)}")
    return int(written)


def _of(uid: int, gid: int, why: str) -> ProgramUser:
    """Return a user with the groups and home of its account, if it has one. ``gid``: its group otherwise."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return ProgramUser(uid, gid or uid, (), "testbed", None, why)
    groups = set[int]()
    for group in os.getgrouplist(account.pw_name, account.pw_gid):
        name = ""
        with contextlib.suppress(KeyError):
            name = grp.getgrgid(group).gr_name
        if group and name not in _LIKE_ROOT:
            groups.add(group)
    home = Path(account.pw_dir)
    return ProgramUser(
        uid,
        account.pw_gid or uid,
        tuple(sorted(groups)),
        account.pw_name,
        home if home.is_absolute() and home != Path("/") and home.is_dir() else None,
        why,
    )


def start(
    user: ProgramUser,
    setpriv: str,
    argv: Sequence[str],
    folder: Path | None,
    scratch: Path,
    keep: Iterable[str] = (),
    parent: int | None = None,
) -> list[str]:
    """Return the argument list by which root becomes ``user`` for good and runs ``argv``; call it inside the node.

    In this order: groups, gid, uid; empty bounding, inheritable and ambient sets; no_new_privs; PDEATHSIG, which a
    change of uid clears; then the check that ``parent`` is still the parent, for it may have ended before (None: no
    PDEATHSIG, the program ends at EOF on its stdin). ``keep`` names variables that the caller has set itself.
    """
    line = [setpriv]
    if os.geteuid() == 0:
        groups = ["--groups", ",".join(map(str, user.groups))] if user.groups else ["--clear-groups"]
        line += [*groups, "--regid", str(user.gid), "--reuid", str(user.uid), "--bounding-set", "-all"]
    line += ["--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs"]
    line += ["--pdeathsig", "KILL"] if parent is not None else []
    kept = frozenset(keep)
    values = [f"{key}={value}" for key, value in user.variables(scratch).items() if key not in kept]
    if "PATH" not in kept:
        values.append(f"PATH={_reachable(user, os.environ.get('PATH', os.defpath))}")
    unset = [word for name in PASSED_OVER if name not in kept for word in ("-u", name)]
    checked = "" if parent is None else str(parent)
    return [*line, "--", "env", *unset, *values, "sh", "-c", _BEGIN, "sh", checked, str(folder or "."), *argv]


def search_path(user: ProgramUser | None) -> str:
    """Return the ``$PATH`` with which programs of ``user`` begin (None: root). Raises HostError."""
    path = os.environ.get("PATH", os.defpath)
    return path if user is None else _reachable(user, path)


@functools.lru_cache(maxsize=16)
def _reachable(user: ProgramUser, path: str) -> str:
    """Return ``$PATH`` without folders that ``user`` cannot enter: a shell would report a program that is nowhere as
    one that cannot be run. Raises HostError."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    barred = set(_failed(user, [("x", Path(folder)) for folder in folders]))
    return os.pathsep.join(folder for number, folder in enumerate(folders) if number not in barred)


def first_refused(
    user: ProgramUser, wanted: Iterable[tuple[Access, Path]], inside: Inside | None = None
) -> Path | None:
    """Return the first path that ``user`` cannot read, write or enter as wanted, or the folder above it that bars the
    way; None if there is none. Paths are absolute and exist.

    ``inside`` runs a program as this user elsewhere, as in a container, and returns its output. Raises HostError."""
    tests: list[tuple[Access, Path]] = []
    for access, path in wanted:
        tests += [("x", above) for above in reversed(path.parents)]
        tests.append((access, path))
    tests = list(dict.fromkeys(tests))
    failed = _failed(user, tests, inside)
    return tests[failed[0]][1] if failed else None


def renamable(user: ProgramUser, path: Path) -> Path | None:
    """Return the outermost of ``path`` and the folders above it that ``user`` could rename; None if there is none."""
    levels = [
        level for level in reversed((path, *path.parents)) if level != level.parent and _may_be_moved(user, level)
    ]
    barred = {number for test in ("w", "x") for number in _failed(user, [(test, level.parent) for level in levels])}
    return next((level for number, level in enumerate(levels) if number not in barred), None)


def _may_be_moved(user: ProgramUser, path: Path) -> bool:
    """Whether a user who can write the folder above can move ``path``: a sticky folder's entries belong to owners."""
    try:
        above, own = path.parent.stat(), path.lstat()
    except OSError:
        return False  # it does not exist yet: root will make it
    return not above.st_mode & stat.S_ISVTX or user.uid in (above.st_uid, own.st_uid)


def _failed(user: ProgramUser, tests: Sequence[tuple[Access, Path]], inside: Inside | None = None) -> list[int]:
    """Return the numbers of the tests that fail for this user, asked of the kernel: by a process of theirs."""
    if not tests:
        return []
    argv = ["/bin/sh", "-c", _TRY, "sh", *(word for access, path in tests for word in (f"-{access}", str(path)))]
    if inside is not None:
        return [int(number) for number in inside(argv).split()]
    try:
        if os.geteuid() != 0:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
        else:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/",
                user=user.uid, group=user.gid, extra_groups=list(user.groups),
            )  # fmt: skip
    except OSError as error:
        raise HostError(
            f"cannot run programs as {user}: {error.strerror}; set {VARIABLE} to a uid that exists in this container"
        ) from error
    return [int(number) for number in done.stdout.split()]
