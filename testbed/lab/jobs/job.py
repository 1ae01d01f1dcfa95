"""A training job on the agents of a lab: start it, follow its step records, end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.core.analysis.costs.volleys import volleys
from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload import workload_layout
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import Interrupted, JobFailed, LabError, StorageError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper.protocol import RankState
from testbed.lab.jobs.attempts import Attempts
from testbed.lab.jobs.reported_steps import StepTail
from testbed.lab.jobs.running_job import POLL_S, JobOutcome, RunningJob

ABOUT_S: Final = 0.08
"""A step's compute where it is real: idle times of its operations depend little on it."""

STOPPED_HERE: Final = "stopped by the process that ran it"

_GOOD: Final = frozenset({"training", "finished"})


class Job(RunningJob):
    """A running job of the agents. ``note`` is that of :class:`Attempts`."""

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        workload: AgentWorkload,
        ranks_folder: Path,
        job: str,
        port: int,
        note: Callable[[Sequence[Mapping[str, Any]]], None] = lambda attempts: None,
        user: ProgramUser | None = None,
        concluded: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """``job``: its id. ``port``: of the process group, on rank 0's node. ``user``: who the ranks run as; None in
        containers. ``concluded`` is called once, when no rank is training any more and none will."""
        self.workload = workload
        self.id = job
        ranks = build.ranks(topology)
        self._began_t: float | None = None
        self._reading = threading.Lock()
        self._tails = [StepTail(ranks_folder / f"rank-{rank.rank}.jsonl") for rank in ranks]
        master = Addressing(topology).node(ranks[0].node)[0]
        message = {
            "job": self.id,
            "world_size": len(ranks),
            "sites": [rank.site for rank in ranks],
            "master": [str(master), port],
            "interface": FABRIC_INTERFACE,
            "directory": str(ranks_folder),
            **workload.to_message(topology.scale),
            **({"calibrate": _to_time(workload, topology)} if workload.calibrate else {}),
            "user": user.to_dict() if user else None,
        }
        self._attempts = Attempts(
            lab,
            topology,
            message,
            ranks_folder,
            restarts=workload.restarts,
            stall_s=workload.stall_s,
            committed=lambda: self.step,
            note=note,
            concluded=lambda: concluded(self),
        )

    @property
    def steps(self) -> int:
        return self.workload.steps

    @property
    def step(self) -> int:
        """The latest committed step: one that every rank has completed. It goes back after a restart."""
        with self._reading:  # read by the thread that follows the job and by the one that restarts it
            for tail in self._tails:
                tail.read()
            newest = max(tail.attempt for tail in self._tails)
            return min(tail.step for tail in self._tails if tail.attempt == newest)

    @property
    def began_t(self) -> float | None:
        """Begin of the first step, as recorded by rank 0; where that record has been missed, when this was noticed."""
        if self._began_t is None and self.step > 0:
            record = self.last
            self._began_t = float(record["t_begin"]) if record.get("step") == 1 else time.monotonic()
        return self._began_t

    @property
    def stall_s(self) -> float | None:
        return self.workload.stall_s

    @property
    def tokens_per_step(self) -> float | None:
        tokens = self.last.get("tokens")
        return None if tokens is None else float(tokens) * len(self._tails)

    def ranks_up(self, agents: Sequence[RankState]) -> int:
        return sum(agent["state"] in _GOOD for agent in agents)

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1."""
        return self._attempts.number

    @property
    def waiting(self) -> str:
        """What a restart is waiting for; empty if none is waiting."""
        return self._attempts.waiting

    @property
    def last(self) -> Mapping[str, Any]:
        """Rank 0's latest step record; empty before the first step."""
        return self._tails[0].last

    def failure(self) -> str:
        """Return why the job cannot succeed; empty as long as it can, possibly by another attempt."""
        return self._attempts.failure

    def failed(self) -> TestbedError:
        """Return :meth:`failure` as an error: StorageError if the disk caused it, LabError if a signal did whose sender
        is unknown, else JobFailed."""
        if self._attempts.storage:
            return StorageError(self.failure())
        return (LabError if self._attempts.unexplained else JobFailed)(self.failure())

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._attempts.stopped

    def error(self) -> TestbedError | None:
        return None if self.stopped else super().error()

    def outcome(self) -> JobOutcome:
        return ("stopped", STOPPED_HERE, Interrupted.exit_code) if self.stopped else super().outcome()

    def over(self) -> bool:
        """Whether no rank is training and none will."""
        return self._attempts.over

    def done(self) -> bool:
        return self.step >= self.workload.steps or self.over()

    def wait(self, timeout: float = 600.0) -> None:
        """Return when every rank has finished. Raises as :meth:`wait_for` does."""
        self.wait_for(self.workload.steps, timeout)
        until = time.monotonic() + 10.0
        while not self.over():
            if time.monotonic() > until:
                raise LabError("the ranks did not exit after their last step")
            time.sleep(POLL_S)
        if self.failure():
            raise self.failed()

    def stop(self) -> None:
        """End the job after its current step, or after 2 s."""
        self._attempts.stop()

    def close(self, *, interrupted: bool = False) -> None:
        self._attempts.close()


def _to_time(workload: AgentWorkload, topology: Topology) -> list[dict[str, Any]]:
    """Return the operations that the ranks time alone before the job."""
    twin = workload_layout.twin_of(workload, topology)
    farthest_s = sum(link.rtt_s for link in topology.links)  # at most: over all links, one after the other
    return [volley.to_message() for volley in volleys(twin, workload.step_s or ABOUT_S, farthest_s)]
