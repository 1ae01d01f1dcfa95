"""The logs of a lab: its own, and the output of a rank's program in the lab's latest run, wherever that run is."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.core.topology.model import Topology
from testbed.errors import StorageError, UnknownName, UserError
from testbed.host import lab_owner
from testbed.host.files import beneath, runs_folder, store
from testbed.host.lab_folder import LabFolder
from testbed.lab.job_output import LogTail

__all__ = ["lines", "note_run"]

POLL_S = 0.2


def note_run(lab: LabFolder, run: Path) -> None:
    """Record the lab's latest run, for other processes. Raises StorageError, LabError."""
    try:
        beneath.replace(lab.path, lab.latest_run.name, os.fsencode(run))
    except FileNotFoundError as error:
        raise lab.gone() from error
    except OSError as error:
        raise StorageError(f"cannot write {lab.latest_run}: {error.strerror}") from error


def lines(lab: LabFolder, topology: Topology, what: str | None, follow: bool, own: Path | None) -> Iterator[str]:
    """Yield lines of the lab's own logs, or of the node or rank ``what``; see :meth:`Lab.logs`.

    ``own`` is this process's latest run. Raises UnknownName; LabError when the lab is taken down while followed.
    """
    if what is None:
        places = [lab.keeper_log, lab.emulator_log, lab.agents_log, lab.jobs_log, lab.prometheus_log]
        tails = [LogTail(place, lab.older_keeper_log if place == lab.keeper_log else None) for place in places]
    else:
        rank, tails = _rank(topology, what), []
    run: Path | None = None
    while True:
        if what is not None and (latest := own or _latest_run(lab)) != run:
            run = latest
            tails = [] if run is None else [LogTail(run / "ranks" / f"rank-{rank}.log")]
        for tail in tails:
            yield from tail.lines(torn=not follow)
        if not follow:
            return
        lab.refuse_gone()
        time.sleep(POLL_S)


def _rank(topology: Topology, what: str) -> int:
    """Return the number of the rank that a node, ``3`` or ``rank-3`` names. Raises UnknownName."""
    nodes = topology.node_names
    if what in nodes:
        return nodes.index(what)
    number = what.removeprefix("rank-").removeprefix("rank ")
    if number.isdecimal() and int(number) < len(nodes):
        return int(number)
    raise UnknownName("node or rank", what, [*nodes, *(str(rank) for rank in range(len(nodes)))])


def _latest_run(lab: LabFolder) -> Path | None:
    try:
        return Path(os.fsdecode(lab.latest_run.read_bytes()))
    except OSError:
        return _run_of_older_version(lab)


def _run_of_older_version(lab: LabFolder) -> Path | None:
    """Return the latest run of a lab whose version recorded none: by its name, and begun since the lab is up."""
    since = owner.since_unix_s if (owner := lab_owner.owner(lab)) is not None else 0.0
    # The name that open_run and RunDirectory.create give; metro-40km's runs must not match lab metro.
    name = re.compile(re.escape(lab.name) + r"-\d{8}-\d{6}(-\d+)?")
    with contextlib.suppress(StorageError, UserError):
        for run in runs_folder.listed():
            if name.fullmatch(run.name) and store.read_summary(run)[0][0] >= since:
                return run.path
    return None
