"""A job that another process runs, as this process sees it: by the keeper's job slot and by the records of its run."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.core.topology.model import Topology
from testbed.errors import Interrupted, JobFailed, LabError, TestbedError, UnknownName
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.protocol import JobRecord, RankState
from testbed.lab import job_output, job_status
from testbed.lab.job_status import JobStatus
from testbed.lab.jobs.reported_steps import StepTail
from testbed.lab.jobs.running_job import RunningJob

__all__ = ["BY_STOP", "AttachedJob", "output_lines"]


def output_lines(lab: LabFolder, topology: Topology, job: str, what: str | None, follow: bool) -> Iterator[str]:
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
        nodes = [str(member["node"]) for member in sorted(members, key=lambda member: member["rank"])]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a job of the agents, which has one rank on each node
    if what in nodes:
        return [rank for rank, node in enumerate(nodes) if node == what]
    number = what.removeprefix("rank-").removeprefix("rank ")
    if number.isdecimal() and int(number) < len(nodes):
        return [int(number)]
    raise UnknownName("node or rank", what, [*dict.fromkeys(nodes), *map(str, range(len(nodes)))])


BY_STOP: Final = "stopped by `stop`"

LOOK_S: Final = 0.1
_FUTURE: Final = 1 << 53
"""A number that no event has yet."""
WAIT_S: Final = 2.0
"""How long the keeper may wait for an event before the job is looked at again."""


class AttachedJob(RunningJob):
    """A job of the lab by its id. Raises UnknownName if there is none, LabError if the lab is gone."""

    def __init__(self, lab: LabFolder, id: str) -> None:
        self.id, self._lab = id, lab
        self._record = self._asked()
        self._asked_t = time.monotonic()
        self._reading = threading.Lock()
        self._tails: dict[Path, StepTail] = {}

    @property
    def status(self) -> JobStatus:
        """Its state and figures now. Raises LabError."""
        self._look(0.0)
        return job_status.of(self._record)

    @property
    def run(self) -> Path | None:
        """Its run directory; None before it has one."""
        self._look()
        return Path(self._record["run"]) if self._record["run"] else None

    @property
    def step(self) -> int:
        with self._reading:
            tails = [tail for tail in self._read() if tail.last or tail.attempt > 1]
            newest = max((tail.attempt for tail in tails), default=1)
            return min((tail.step for tail in tails if tail.attempt == newest), default=0)

    @property
    def steps(self) -> int | None:
        return self.status.steps

    @property
    def began_t(self) -> float | None:
        """When the job took the lab's slot."""
        return self._record["began_t"] or None

    @property
    def tokens_per_step(self) -> float | None:
        with self._reading:
            tails = [tail for tail in self._read() if tail.last.get("tokens") is not None]
        if not tails:
            return None
        if tails[0].last["kind"] == "step":  # of the agents: each rank records its own
            return float(sum(tail.last["tokens"] for tail in tails))
        measurable_tails = (tail for tail in tails if tail.before is not None and tail.step > tail.before)
        return next((tail.last["tokens"] / (tail.step - (tail.before or 0)) for tail in measurable_tails), None)

    def ranks_up(self, agents: Sequence[RankState]) -> int:
        if self.over():
            return 0
        mine = [agent for agent in agents if agent.get("job") == self.id]
        with self._reading:
            return sum(agent["state"] in ("training", "finished") for agent in mine) if mine else len(self._read())

    @property
    def attempt(self) -> int:
        with self._reading:
            return max((tail.attempt for tail in self._read()), default=1)

    @property
    def last(self) -> Mapping[str, Any]:
        with self._reading:
            return next((tail.last for tail in self._read() if tail.last), {})

    def failure(self) -> str:
        self._look()
        if not self.over() or self._record["state"] == "finished":
            return ""
        return self._record["why"] or f"job {self.id} {self._record['state']}"

    def failed(self) -> TestbedError:
        state, why = self._record["state"], self.failure()
        if state == "stopped":
            return Interrupted(why)
        return JobFailed(why) if state == "failed" and self._record["exit_status"] != 3 else LabError(why)

    def over(self) -> bool:
        self._look()
        return self._record["ended_t"] is not None

    def wait(self, timeout: float = 600.0) -> None:
        self.exit_status(timeout)
        if self.failure():
            raise self.failed()

    def exit_status(self, timeout: float | None = None) -> int:
        """Wait until the job has ended; return its exit status, as of the command that would have run it.

        Raises LabError after ``timeout`` seconds (None: no limit), or if the lab is taken down.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with client.Connection(self._lab) as connection:
            since = connection.keeper.events(since=_FUTURE)["next"]
            while not self._over_now():
                left_s = WAIT_S if until is None else min(WAIT_S, until - time.monotonic())
                if left_s <= 0:
                    raise LabError(f"job {self.id} has not ended within {timeout:g} s")
                since = connection.keeper.events(since=since, wait_s=left_s)["next"]
        return self._record["exit_status"] or 0

    def stop(self) -> None:
        """End the job, if need be by force; return when it has ended. Raises LabError."""
        self._record = client.keeper(self._lab).end_job(job=self.id, why=BY_STOP)
        self._asked_t = time.monotonic()

    def _over_now(self) -> bool:
        self._look(0.0)
        return self._record["ended_t"] is not None

    def _look(self, older_s: float = LOOK_S) -> None:
        """Ask the keeper again, unless it was asked less than ``older_s`` ago, or the job has ended."""
        now = time.monotonic()
        if self._record["ended_t"] is None and now - self._asked_t >= older_s:
            self._record, self._asked_t = self._asked(), now

    def _asked(self) -> JobRecord:
        records = client.keeper(self._lab).jobs()
        for record in reversed(records):
            if record["id"] == self.id:
                return record
        raise UnknownName("job", self.id, [record["id"] for record in records])

    def _read(self) -> list[StepTail]:
        """Read what the ranks have recorded since the last call; return their tails in order."""
        if self.run is not None:
            for path in (self.run / "ranks").glob("rank-*.jsonl"):
                if re.fullmatch(r"rank-\d+\.jsonl", path.name) and path not in self._tails:
                    self._tails[path] = StepTail(path)
        tails = [self._tails[path] for path in sorted(self._tails, key=lambda path: int(path.stem.partition("-")[2]))]
        for tail in tails:
            tail.read()
        return tails
