"""What nodes of a launched program have on disk: scratch with TMPDIR, and a /tmp of their own where that is possible.

Scratch belongs to the lab and is gone with it, so that one program can leave data for the next. Where it is to be kept,
it is a folder of the run directory instead, from the beginning: nothing is copied, and no crash loses it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
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
from testbed.keeper import client, protocol
from testbed.lab.jobs import tmp_sharing

__all__ = ["NodeScratch"]

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
                    client.ask(lab, protocol.ShareFolder(folder=str(folder), node=node))
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
        if barred := program_user.first_refused(self._user, [("w", it) for it in folders]):
            raise ProgramBarred(
                f"programs run as {self._user}, who cannot write in scratch: {barred} bars the way; let this user in"
            )

    def _why_shared(self, workload: ProgramWorkload) -> str:
        places = {
            "the folder of runs": self._run.path,
            "the state of labs (TESTBED_STATE)": lab_folder.root(),
            "scratch": next(iter(self._of_lab.values())),
        }
        why = tmp_sharing.why_shared(workload.command, self.working, workload.environment, os.environ, places)
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
