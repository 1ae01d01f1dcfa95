"""A training job on the agents of a lab: start it, follow its step records, end it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, MASTER_PORT, Addressing
from testbed.core.topology.model import Topology
from testbed.errors import JobFailed, LabError, StorageError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser
from testbed.lab.jobs.attempts import Attempts

POLL_S = 0.02


@dataclass(frozen=True)
class Workload:
    """The training job's parameters. A lab's rates are scaled down, so the model is too: its bytes cross the fiber.

    ``timeout_s`` is the process group's timeout: a cut of all fibers that lasts longer (plus TCP's retransmission
    delay) ends the attempt. A failed attempt is restarted up to ``restarts`` times, from the newest checkpoint that all
    ranks have. They write one every ``checkpoint_every`` steps (0: none; restarts begin at the first step).
    """

    steps: int
    seed: int = 0
    data: Path | None = None
    timeout_s: float = 30.0
    batch: int = 4
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 96
    learning_rate: float = 1e-3
    checkpoint_every: int = 50
    restarts: int = 3

    @property
    def stall_s(self) -> float:
        """Seconds without a committed step after which a job counts as stalled: a wait ends after ``timeout_s``, and
        one collective may have two waits."""
        return 2.0 * self.timeout_s + 20.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "seed": self.seed,
            "data": str(self.data) if self.data else None,
            "timeout_s": self.timeout_s,
            "batch": self.batch,
            "context": self.context,
            "model": {"layers": self.layers, "heads": self.heads, "width": self.width},
            "learning_rate": self.learning_rate,
            "checkpoint_every": self.checkpoint_every,
        }


@dataclass
class _Tail:
    """The step records of one rank, read as the file grows."""

    path: Path
    offset: int = 0
    step: int = 0
    attempt: int = 1
    last: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> None:
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return
        self.offset += len(whole) + 1
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn, on a disk that was full for a while: the next record supersedes it
            if record.get("attempt", 1) < self.attempt:
                continue  # late record of an attempt that has ended
            if record["kind"] == "job":
                self.attempt, self.step = record.get("attempt", 1), record.get("resumed_from", 0)
            elif record["kind"] == "step":
                self.step, self.last = record["step"], record


class Job:
    """A running job. All waits are bounded. ``note`` is that of :class:`Attempts`."""

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        workload: Workload,
        ranks_folder: Path,
        number: int,
        note: Callable[[Sequence[Mapping[str, Any]]], None] = lambda attempts: None,
        user: ProgramUser | None = None,
    ) -> None:
        """``user``: who the ranks run as; None in containers."""
        self.workload = workload
        self.id = f"j{number}"
        ranks = build.ranks(topology)
        self._reading = threading.Lock()
        self._tails = [_Tail(ranks_folder / f"rank-{rank.rank}.jsonl") for rank in ranks]
        master = Addressing(topology).node(ranks[0].node)[0]
        message = {
            "job": self.id,
            "world_size": len(ranks),
            "master": [str(master), MASTER_PORT],
            "interface": FABRIC_INTERFACE,
            "directory": str(ranks_folder),
            **workload.to_dict(),
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

    def wait_for(self, step: int, timeout: float = 60.0) -> None:
        """Return when ``step`` is committed. Raises :meth:`failed`, or LabError after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        checked = 0.0
        while self.step < step:
            now = time.monotonic()
            if now - checked > 0.5:
                checked = now
                if self.failure():
                    raise self.failed()
                if self.over() and self.step < step:
                    raise JobFailed(f"the job ended at step {self.step}, before step {step}")
            if now > until:
                raise LabError(f"step {step} was not reached within {timeout:g} s; the job is at step {self.step}")
            time.sleep(POLL_S)

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
