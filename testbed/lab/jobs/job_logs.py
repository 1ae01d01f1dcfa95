"""The output of one job's ranks, of a job that runs or of one that has ended: `logs --job`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from testbed.core.topology.model import Topology
from testbed.errors import UnknownName
from testbed.host.lab_folder import LabFolder
from testbed.lab import job_output
from testbed.lab.jobs.attached_job import AttachedJob

__all__ = ["lines"]


def lines(lab: LabFolder, topology: Topology, job: str, what: str | None, follow: bool) -> Iterator[str]:
    """Yield the lines of all ranks of a job, each after its rank, or those of the node or rank ``what``.

    ``follow``: until the job has ended. Raises UnknownName, LabError.
    """
    attached = AttachedJob(lab, job)
    if (run := attached.run) is not None:
        ranks = None if what is None else _ranks(run, topology, what)
        yield from job_output.lines(run, ranks, attached.over, follow=follow)


def _ranks(run: Path, topology: Topology, what: str) -> list[int]:
    """Return the ranks that a node, ``3`` or ``rank-3`` names: a node may have several. Raises UnknownName."""
    nodes = list(topology.node_names)
    try:
        members = json.loads((run / "run.json").read_text())["workload"]["members"]
        nodes = [str(it["node"]) for it in sorted(members, key=lambda it: it["rank"])]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a job of the agents, which has one rank on each node
    if what in nodes:
        return [rank for rank, node in enumerate(nodes) if node == what]
    number = what.removeprefix("rank-").removeprefix("rank ")
    if number.isdecimal() and int(number) < len(nodes):
        return [int(number)]
    raise UnknownName("node or rank", what, [*dict.fromkeys(nodes), *map(str, range(len(nodes)))])
