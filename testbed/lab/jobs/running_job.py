"""What every running job of a lab can be asked, whatever its ranks run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from testbed.errors import Interrupted, JobFailed, LabError, TestbedError
from testbed.keeper.protocol import RankState

__all__ = ["BY_USER", "POLL_S", "JobOutcome", "RunningJob"]

BY_USER: Final = "interrupted by the user"

JobOutcome: TypeAlias = tuple[str, str, int]
"""State, reason and exit status of an ended job, as in :class:`~testbed.keeper.protocol.JobRecord`."""

POLL_S = 0.02
LOOK_S = 0.5
"""How often a wait asks whether the job has failed."""


class RunningJob(ABC):
    """A job, from its first process to its last. All waits are bounded."""

    id: str
    interrupted = ""
    """Why it was ended from outside, where its run is interrupted by that; empty if it was not."""
    status_by_report = True
    """Whether the exit status of the command that ran it is its report's, rather than that of its ranks."""

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """How many steps it makes; None for a program that does not say."""

    @property
    @abstractmethod
    def step(self) -> int:
        """The latest committed step, one that every rank which reports steps has completed; 0 before the first. It goes
        back after a restart."""

    @property
    @abstractmethod
    def began_t(self) -> float | None:
        """When the job began (CLOCK_MONOTONIC), from which ``at:`` of a fault counts: its first step, or the start of a
        program whose steps are not read. None before."""

    @property
    def stall_s(self) -> float | None:
        """Seconds without a committed step after which the job has dealt with that itself; None: it may take any time,
        or ends itself at limits of its own."""
        return None

    @property
    def reports_steps(self) -> bool:
        """Whether steps are expected of it at all."""
        return True

    @property
    def lingers(self) -> bool:
        """Whether its ranks may go on for a while after their last step, which is not known beforehand as the last."""
        return False

    @property
    @abstractmethod
    def tokens_per_step(self) -> float | None:
        """Tokens of all ranks together in one step, by the latest report; None if unknown."""

    @abstractmethod
    def ranks_up(self, agents: Sequence[RankState]) -> int:
        """Return how many ranks run, or have ended well. ``agents``: the states of the lab's agents."""

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1."""
        return 1

    @property
    def waiting(self) -> str:
        """What a restart is waiting for; empty if none is waiting."""
        return ""

    @property
    @abstractmethod
    def last(self) -> Mapping[str, Any]:
        """The latest record of a step by the first rank that reports any; empty before the first step."""

    @abstractmethod
    def failure(self) -> str:
        """Return why the job cannot succeed; empty as long as it can."""

    @abstractmethod
    def failed(self) -> TestbedError:
        """Return :meth:`failure` as an error."""

    def error(self) -> TestbedError | None:
        """Return :meth:`failed` of a job that has failed by itself; None otherwise."""
        return self.failed() if self.failure() else None

    @property
    def worst_status(self) -> int:
        """The worst exit status of its ranks, as far as they have ended by themselves; 0 if none is known."""
        return 0

    def outcome(self) -> JobOutcome:
        """Return how the job has ended."""
        if self.interrupted:
            return "stopped", self.interrupted, Interrupted.exit_code
        error = self.error()
        if error is None:
            return "finished", "", self.worst_status
        return "failed", str(error), self.worst_status or error.exit_code

    @property
    def sessions(self) -> tuple[int, ...]:
        """The sessions (setsid(2)) of its processes below this one."""
        return ()

    @abstractmethod
    def over(self) -> bool:
        """Whether no rank is running and none will."""

    def done(self) -> bool:
        """Whether there is nothing left to wait for but the exit of the ranks."""
        return self.over()

    @abstractmethod
    def wait(self, timeout: float = 600.0) -> None:
        """Return when every rank has finished. Raises :meth:`failed`, or LabError after ``timeout`` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """End the job."""

    def stop_because(self, why: str) -> None:
        """End the job for a reason outside of this process."""
        self.stop()

    def end_children(self) -> None:
        """End the job's processes below this one. Those of a lab end with the lab."""
        return

    def close(self, *, interrupted: bool = False) -> None:
        """End the ranks, and return when they have written all their records, or after a bounded time.

        ``interrupted``: by the user's Ctrl-C, which programs get as SIGINT first.
        """
        return

    def wait_for(self, step: int, timeout: float = 60.0) -> None:
        """Return when ``step`` is committed. Raises :meth:`failed`, or LabError after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        checked = 0.0
        while self.step < step:
            now = time.monotonic()
            if now - checked > LOOK_S:
                checked = now
                if self.failure():
                    raise self.failed()
                if self.over() and self.step < step:
                    raise JobFailed(f"the job ended at step {self.step}, before step {step}")
            if now > until:
                raise LabError(f"step {step} was not reached within {timeout:g} s; the job is at step {self.step}")
            time.sleep(POLL_S)
