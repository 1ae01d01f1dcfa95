"""What nodes of a launched program have on disk: scratch with TMPDIR, and a /tmp of their own where that is possible.

Scratch belongs to the lab and is gone with it, so that one program can leave data for the next. Where it is to be kept,
it is a folder of the run directory instead, from the beginning: nothing is copied, and no crash loses it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.core.workload.workload import ProgramWorkload
from testbed.errors import ProgramBarred, StorageError
from testbed.host import lab_folder, scratch
from testbed.host.drivers.containerlab import IMAGE_USER
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Place, driver, place
from testbed.host.linux import program_user
from testbed.host.linux.program_user import TEMPORARY, ProgramUser
from testbed.keeper import client
from testbed.lab import program_rights

__all__ = ["TMP", "NodeScratch", "why_shared"]


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
        if mention := _names(word, folder):
            return f"argument {number} names a path in it ({mention})"
    session = {key for key in inherited if key in _OF_THE_SESSION or key.startswith(_EDITORS)}
    for key, value in {**{key: text for key, text in inherited.items() if key not in session}, **given}.items():
        if any(_names(part, None) for part in (value, *value.split(os.pathsep))):
            return f"the variable {key} names a path in it"
    return ""


def _lies_there(path: Path) -> bool:
    """Whether ``path``, absolute, is in /tmp as written or where its links lead."""
    top = os.path.realpath(TMP)
    return any(
        _below(variant, end) for variant in (os.path.normpath(path), os.path.realpath(path)) for end in (TMP, top)
    )


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _names(word: str, folder: Path | None) -> str:
    """Return the path in /tmp that a word has, or is; empty if there is none. ``folder``: of relative paths."""
    if mention := _MENTIONED.search(word):
        return mention[0]
    paths = (word.partition("=")[2], word[2:]) if word.startswith("-") else (word,)  # --out=/x, -o/x
    for written_path in paths:
        if written_path and "\0" not in written_path and (written_path.startswith("/") or folder is not None):
            path = Path(folder or "/", written_path)
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


_BOUND_S: Final = 20.0


class NodeScratch:
    """The folders of one job's nodes. ``folders`` has scratch by node, ``shared`` why they share the host's /tmp; empty
    if each has its own, as containers always have."""

    def __init__(
        self,
        lab: LabFolder,
        nodes: Sequence[str],
        run: RunDirectory,
        workload: ProgramWorkload,
        working: Path,
        user: ProgramUser | None,
    ) -> None:
        """Make the folders of ``nodes``. ``working``: the program's folder.

        Raises StorageError, also for a full disk, ProgramBarred, HostError.
        """
        self._lab, self._run, self._user = lab, run, user
        self._kept = workload.keep_scratch
        self.working = working
        self._contained = driver(lab).contained
        self._of_lab = {node: scratch.of_node(lab, node, user) for node in nodes}
        self.folders: Mapping[str, Path] = self._of_lab
        if self._kept:
            self.folders = run.keep_scratch(nodes, (user.uid, user.gid) if user else (0, 0))
        self._refuse_full()
        if self._contained:
            for node in nodes:
                for folder in dict.fromkeys((self._of_lab[node], self.folders[node])):
                    client.keeper(lab).share_folder(folder=str(folder), node=node)
        self._refuse_barred()
        self.shared = "" if self._contained else self._why_shared(workload)

    def variables(self, node: str) -> dict[str, str]:
        """Return TESTBED_SCRATCH and TMPDIR of a node's programs.

        TMPDIR has a short path, for sockets, so it stays with the lab where scratch is kept with the run.
        """
        tmp = program_user.scratch_variables(self._of_lab[node])
        return {**tmp, "TESTBED_SCRATCH": str(self.folders[node])}

    def home(self, node: str) -> str:
        """Return HOME in containers of a user without an account in the image, for whom docker would set /; else empty:
        namespaces have the host's accounts."""
        without = self._contained and self._user and f"{self._user.uid}:{self._user.gid}" != IMAGE_USER
        return str(self._of_lab[node]) if without else ""

    def place(self, node: str) -> Place:
        """Return where the program's ranks run on ``node``. Raises HostError, LabError."""
        where = place(self._lab, node, job=True, user=self._user)
        return where if self.shared else where.with_tmp(self._of_lab[node] / TEMPORARY)

    def to_dict(self) -> dict[str, Any]:
        """Return ``scratch`` of the workload in run.json."""
        own = not self.shared
        return {
            "folders": {node: str(path) for node, path in self.folders.items()},
            "kept": self._kept,
            "own_tmp": own,
            "tmp_shared_because": self.shared,
        }

    def shortage(self) -> str:
        """Return in words which disk that programs write is full; empty if none is."""
        seen = dict[int, str]()
        for folder in (*self.folders.values(), *self._of_lab.values(), self._run.path, self.working):
            try:
                seen.setdefault(folder.stat().st_dev, scratch.shortage(folder))
            except OSError:
                continue
        return "; ".join(filter(None, seen.values()))

    # ---- inside

    def _refuse_full(self) -> None:
        for folder in dict.fromkeys((*self._of_lab.values(), *self.folders.values())):
            if why := scratch.shortage(folder):
                raise StorageError(f"no room for scratch (TESTBED_SCRATCH) of the nodes: {why}")

    def _refuse_barred(self) -> None:
        """Raise ProgramBarred if the user cannot write in a folder that was just made: one above it bars the way."""
        if self._user is None or self._contained:
            return
        folders = dict.fromkeys((*self._of_lab.values(), *self.folders.values()))
        if barred := program_user.first_refused(self._user, [("w", folder) for folder in folders]):
            raise ProgramBarred(
                f"programs run as {self._user}, who cannot write in scratch: {barred} bars the way; let this user in"
            )

    def _why_shared(self, workload: ProgramWorkload) -> str:
        places = {
            "the folder of runs": self._run.path,
            "the state of labs (TESTBED_STATE)": lab_folder.root(),
            "scratch": next(iter(self._of_lab.values())),
        }
        why = why_shared(workload.command, self.working, workload.environment, os.environ, places)
        return why or self._cannot_mount()

    def _cannot_mount(self) -> str:
        """Return why a node cannot have a /tmp of its own on this host; empty if it can: tried on one node."""
        node = next(iter(self._of_lab))
        argv = place(self._lab, node).with_tmp(self._of_lab[node] / TEMPORARY).enter(["true"])
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BOUND_S, cwd="/"
            )
        except subprocess.TimeoutExpired:
            return f"mounting another one took longer than {_BOUND_S:g} s"
        return f"this host refuses another one: {done.stderr.strip()[-200:]}" if done.returncode else ""
