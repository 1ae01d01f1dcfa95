"""A training job on the agents of a lab: start it, follow its step records, end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import JobFailed, LabError, StorageError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser
from testbed.lab.jobs.attempts import Attempts
from testbed.lab.jobs.running_job import POLL_S, RunningJob
from testbed.lab.jobs.step_tail import StepTail


class Job(RunningJob):
    """A running job of the agents. ``note`` is that of :class:`Attempts`."""

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        workload: AgentWorkload,
        ranks_folder: Path,
        number: int,
        port: int,
        note: Callable[[Sequence[Mapping[str, Any]]], None] = lambda attempts: None,
        user: ProgramUser | None = None,
    ) -> None:
        """``port``: of the process group, on rank 0's node. ``user``: who the ranks run as; None in containers."""
        self.workload = workload
        self.id = f"j{number}"
        ranks = build.ranks(topology)
        self._reading = threading.Lock()
        self._tails = [StepTail(ranks_folder / f"rank-{rank.rank}.jsonl") for rank in ranks]
        master = Addressing(topology).node(ranks[0].node)[0]
        message = {
            "job": self.id,
            "world_size": len(ranks),
            "master": [str(master), port],
            "interface": FABRIC_INTERFACE,
            "directory": str(ranks_folder),
            **workload.to_message(),
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
        )

    @property
    def step(self) -> int:
        """The latest committed step: one that every rank has completed. It goes back after a restart."""
        with self._reading:  # read by the thread that follows the job and by the one that restarts it
            for tail in self._tails:
                tail.read()
            newest = max(tail.attempt for tail in self._tails)
            return min(tail.step for tail in self._tails if tail.attempt == newest)

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

    def over(self) -> bool:
        """Whether no rank is training and none will."""
        return self._attempts.over

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
