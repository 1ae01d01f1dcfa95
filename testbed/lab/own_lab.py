"""A lab of a whole procedure's own (run, compare, validate, audit --measure): alone on its host, down afterwards.

Two labs share the cores of a host, so the measurements of one are the noise of the other. So one procedure at a time
holds the host's slot: flock(2) on ``host.lock`` in the state folder, which the kernel frees however its holder ends.
The file names the holder. Labs that are up, and jobs in them, do not take the slot; the holder is told of those that
are running a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from testbed.core.topology.model import Topology
from testbed.errors import HostBusy, LabError, StorageError, TestbedError
from testbed.host import lab_folder
from testbed.host.files import store
from testbed.host.linux import invocation
from testbed.host.linux.file_lock import FileLock
from testbed.host.linux.process import ProcessRecord
from testbed.keeper import client
from testbed.lab import deploy
from testbed.lab.interruption import defer_interrupts, interruptible
from testbed.lab.jobs.job_run import fail_ended
from testbed.lab.lab import Lab
from testbed.lab.progress import Progress

__all__ = ["Holder", "LabOptions", "held", "holder", "own_lab"]

_LOCK: Final = "host.lock"
_LOOK_S: Final = 0.5
_UNKNOWN_BOUND_S: Final = 0.2
"""How long a holder may take to write who it is, and how long a look at the lock by another process lasts at most."""


class LabOptions(TypedDict, total=False):
    """How a lab is brought up, as of :func:`testbed.lab.deploy.up`."""

    name: str | None
    driver: str
    emulator: str
    strict: bool
    allow_uncertified: bool


@contextlib.contextmanager
def own_lab(
    what: str,
    topology: Topology,
    progress: Progress,
    access: deploy.Access | None = None,
    *,
    agents: bool = True,
    keep: bool = False,
    wait: bool = False,
    **options: Unpack[LabOptions],
) -> Iterator[Lab]:
    """Bring a lab up for ``what``, the verb and its object; take it down, unless ``keep``, however the body ends.

    SIGTERM counts as Ctrl-C meanwhile. ``wait``: until no other procedure holds the host, instead of HostBusy. Raises
    as :func:`testbed.lab.deploy.up`, Interrupted.
    """
    slot = held(what, options.get("name") or topology.name, progress, wait=wait)
    with interruptible(), slot:
        lab = deploy.up(topology, agents=agents, keep=keep, progress=progress, access=access, **options)
        try:
            yield lab
        finally:
            with defer_interrupts():
                if keep:
                    down = invocation.command("down", lab.name)
                    progress.note(f"lab {lab.name} is left up; take it down with: {down}")
                else:
                    progress.phase("down", f"lab {lab.name}")
                    _take_down(lab)
                    progress.ended("done")


def _take_down(lab: Lab) -> None:
    """Take the lab down. A failed undo fails the run whatever its verdict was, and the report is rewritten."""
    try:
        lab.down()
    except TestbedError as error:
        if lab.run_directory is not None:
            with contextlib.suppress(StorageError):  # the lab's failure is the one to report
                fail_ended(lab.run_directory, error)
                store.write_report(lab.run_directory)
        raise


@dataclass(frozen=True)
class Holder:
    """Who holds the slot: ``what`` is the verb and its object."""

    what: str
    lab: str
    process: ProcessRecord

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.process.since_unix_s))
        return f"{self.what} in lab {self.lab} (pid {self.process.pid}), since {since}"


def holder() -> Holder | None:
    """Return who holds this host's slot; None if it is free, or its holder cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        fields: dict[str, Any] = json.loads(_path().read_text())
        process = ProcessRecord.read(fields)
        if process is not None and process.is_there():
            return Holder(str(fields["what"]), str(fields["lab"]), process)
    return None


@contextlib.contextmanager
def held(what: str, lab: str, progress: Progress, *, wait: bool = False) -> Iterator[None]:
    """Hold the slot as long as the context lasts. ``wait``: until it is free, with a phase of ``progress``.

    A caller that may not write in the state folder cannot make a lab there either, and is told so by what makes it.

    Raises:
        HostBusy: another holder has it, and ``wait`` is False.
    """
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
        lock = _taken(progress, wait)
    except OSError:
        yield
        return
    with lock:
        with contextlib.suppress(OSError):  # on a full disk it is held by a process that is not named
            _path().write_text(json.dumps({"what": what, "lab": lab, **asdict(ProcessRecord.of_this_process())}))
        try:
            for busy_lab in _busy_labs(lab):
                progress.note(f"{busy_lab}: it shares the cores of this host, and is noise in what is measured now")
            yield
        finally:
            with contextlib.suppress(OSError):
                os.truncate(_path(), 0)


def _path() -> Path:
    return lab_folder.root() / _LOCK


def _taken(progress: Progress, wait: bool) -> FileLock:
    shown = ""
    while True:
        try:
            return FileLock(_path(), _LOOK_S if shown else _UNKNOWN_BOUND_S)
        except TimeoutError as error:
            other = holder()
            who = str(other) if other else f"a process that has locked {_path()}"
            if not wait:
                raise HostBusy(
                    f"expected no other measurement on this host, found {who}; wait for its end with --wait"
                ) from error
            if who != shown:
                shown = who
                progress.phase("wait", f"for {who}")


def _busy_labs(own: str) -> Iterator[str]:
    """Yield a line on each other lab of this state folder that is running a job."""
    for folder in lab_folder.folders():
        with contextlib.suppress(LabError):
            if folder.name != own:
                for job in client.keeper(folder).jobs():
                    if job["state"] in ("running", "stopping"):
                        yield f"lab {folder.name} is running job {job['id']} ({job['what']})"
