"""A job's attempts: when one fails, the next starts from the last good checkpoint as soon as the lab allows it.

A restart, step by step, in one thread beside the job:

1. An attempt ends when a rank failed or is gone, or when no step was committed for longer than ``stall_s``. It ends in
   order when a site is warned of a power loss: then all ranks save their state after the same step and exit. This is
   not a failure and does not count against ``restarts``.
2. The remaining ranks are told to stop; those that cannot are killed when their successors are deployed.
3. The next attempt waits until no fault keeps a rank down or is about to, and all sites with ranks are connected by
   links with carrier at both ends and reach each other (a silent cut leaves the carrier up).
4. The number of the new attempt is written into the fence, so that no late writer of the old attempt can commit. Only
   then the newest checkpoint is chosen that every rank has intact by its checksums, so that it stays the newest.
5. Fresh ranks are deployed and resume from it, or from the first step if there is no checkpoint.

A job is over when its remaining ranks have ended too, and the fence is closed: then its records are complete.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from testbed.core.topology.graph import reachable
from testbed.core.topology.model import Topology
from testbed.errors import LabError, StorageError, TestbedError
from testbed.host.files import checkpoints
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.protocol import RankState
from testbed.keeper.subscription import LabState, Subscription

LOOK_S = 0.25
"""How often the job's progress is read. Changes of the lab arrive at once: the keeper pushes them."""
SETTLE_S = 0.1
"""How much later the cause of a failure may be reported than its effects."""
STOP_BOUND_S = 5.0
"""How long ranks may take to end after they were told to stop."""
CLOSE_BOUND_S = 15.0
"""How long a job that is stopped may take to be over: a restart that has begun, then its ranks."""
WAIT_BOUND_S = 600.0
"""How long a restart waits for the lab; a longer fault fails the job."""
REFUSED_BOUND_S = 30.0
"""How long a restart retries if the lab has no known obstacle and the attempt still cannot start."""

OVER = ("failed", "gone", "stopped")
"""States of a rank that will not finish."""


class _End(Enum):
    """What follows an attempt: nothing, another one, or another one that does not count as a restart."""

    LAST = "last"
    FAILED = "failed"
    IN_ORDER = "in order"


class Attempts:
    """Starts the first attempt, follows it in a thread, and starts others while ``restarts`` are left.

    ``message`` is the job's message without the fields of an attempt. ``committed`` returns the latest committed step.
    ``note`` receives all attempts so far whenever one starts or ends, in the format of run.json (docs/design.md).
    ``concluded`` is called once, before :attr:`over` holds.
    """

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        message: Mapping[str, Any],
        ranks_folder: Path,
        *,
        restarts: int,
        stall_s: float,
        committed: Callable[[], int],
        note: Callable[[Sequence[Mapping[str, Any]]], None] = lambda attempts: None,
        concluded: Callable[[], None] = lambda: None,
    ) -> None:
        self._lab, self._topology, self._message, self._folder = lab, topology, message, ranks_folder
        self._job = str(message["job"])
        self._left, self._stall_s, self._committed = restarts, stall_s, committed
        self._note, self._noted = note, list[dict[str, Any]]()
        self._concluded = concluded
        self._began_at: dict[int, int] = {}
        self._stopping = threading.Event()
        self.number = 0
        self.waiting = ""
        """What a restart waits for; empty while none does."""
        self.failure = ""
        """Why the job cannot end well; empty while it can."""
        self.storage = False
        """Whether the disk caused the failure: then the job's result is unknown."""
        self.unexplained = False
        """Whether a signal of a sender unknown caused the failure: then the job's result is unknown too."""
        self.over = False
        """Whether no attempt is running and none will start."""
        self._watch = Subscription(lab)
        self._begun = threading.Event()
        self._not_begun: BaseException | None = None
        self._abandoned = False
        """Whether an interruption came before the first attempt had begun: then no caller has this job."""
        self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)
        self._thread.start()
        self._await_begin()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop the current attempt and start no other."""
        self._stopping.set()
        client.keeper(self._lab).stop_ranks(job=self._job)

    def close(self) -> None:
        """End the job unless it is over, and return when it is, or after :data:`CLOSE_BOUND_S`."""
        if not self.over:
            with contextlib.suppress(TestbedError):
                self.stop()
            self._thread.join(CLOSE_BOUND_S)

    def _await_begin(self) -> None:
        """Return when the first attempt has begun. Raises what prevented it.

        The keeper starts the ranks even if its answer is not waited for, so an interruption ends them too.
        """
        try:
            self._begun.wait()
        except BaseException:
            self._abandoned = True
            self.close()
            raise
        if self._not_begun is not None:
            self._thread.join()
            raise self._not_begun

    def _run(self) -> None:
        try:
            self._begin()
        except BaseException as error:
            self._not_begun = error
            self._end_records()
            self._watch.close()
            self.over = True
            return
        finally:
            self._begun.set()
        try:
            while (end := self._follow()) is not _End.LAST:
                if end is _End.FAILED:
                    self._left -= 1
                self._restart()
        except TestbedError as error:
            dead = ""
            with contextlib.suppress(TestbedError):
                dead = _dead(self._watch.state())
            self._end_records()
            self.storage = isinstance(error, StorageError) and not dead
            self.failure = dead or str(error)
        finally:
            self._watch.close()
            self.waiting = ""
            try:
                if not self._abandoned:
                    self._concluded()
            finally:
                self.over = True

    def _follow(self) -> _End:
        """Return when the attempt is over."""
        moved_t, step = time.monotonic(), self._committed()
        warned = ""
        state = self._watch.state(after_t=moved_t)  # an older one may show how the last attempt ended
        while True:
            ranks, now = state.ranks, time.monotonic()
            if (reached := self._committed()) != step:
                moved_t, step = now, reached
            if any("job" in rank and rank["job"] != self._job for rank in ranks):
                raise LabError("another job was started in this lab")
            dead = _dead(state)
            # Ranks that have lost their power since then count too: their state is saved.
            if warned and not dead and all("saved" in rank and rank["saved"] for rank in ranks):
                step = self._committed()
                why = f"{warned}: all ranks saved their state after step {step} and exited"
                order = {"cause": warned, "in_order": True}
                self._ended(why, detected_t=now, step=step, **order)
                return _End.LAST if self._stopping.is_set() else _End.IN_ORDER
            why = dead or _why(ranks)
            if not why and all(rank["state"] == "finished" for rank in ranks):
                self._write_down(ended_t=now, step=self._committed())
                checkpoints.remove(self._folder)
                return _End.LAST
            if not warned and (warned := _warned(ranks)):
                client.keeper(self._lab).stop_ranks(job=self._job, save=True)
            if not why and now - moved_t > self._stall_s:
                why = f"no step was committed for {now - moved_t:.0f} s"
            if why and not dead:
                # The death of a rank or its container may be reported after the failures of its peers.
                time.sleep(SETTLE_S)
                state = self._watch.state()
                dead = _dead(state)
                why = dead or _suspended(state.ranks) + (_why(state.ranks) or why)
            if why:
                self._ended(why, detected_t=now, step=step)
                full = any(
                    "storage" in rank and rank["storage"] for rank in state.ranks
                )  # it stays full for the next one
                if dead or full or self._stopping.is_set() or not self._left:
                    ranks = self._watch.state(after_t=now).ranks
                    self.storage = full or any("storage" in rank and rank["storage"] for rank in ranks)
                    # A container that died was ended from outside too.
                    self.unexplained = bool(dead) or any(rank["unexplained"] for rank in ranks if "unexplained" in rank)
                    self._end_records()
                    self.failure = why  # set last: it releases threads that wait for the job
                    return _End.LAST
                return _End.FAILED
            state = self._watch.wait(LOOK_S)

    def _restart(self) -> None:
        """End the remaining ranks, wait for the lab, start the next attempt. Raises LabError, StorageError."""
        self._end_ranks()
        with client.Connection(self._lab) as connection:
            self._wait(connection)

    def _wait(self, connection: client.Connection) -> None:
        """Wait for the lab and start the next attempt. ``keeper`` shows the obstacle in the lab's status until its
        connection closes."""
        began_t = refused_t = time.monotonic()
        while True:
            obstacle, now = self._obstacle(), time.monotonic()
            if obstacle:
                refused_t = now
            else:
                try:
                    self._begin()
                    self.waiting = ""
                    return
                except LabError as error:
                    # The lab may have changed since it was checked; without a keeper it will not recover.
                    if not client.answers(self._lab):
                        raise
                    obstacle = str(error)
            if obstacle != self.waiting:
                self.waiting = obstacle
                connection.keeper.await_restart(
                    why=f"attempt {self.number + 1} of job {self._job} waits to begin: {obstacle}"
                )
                self._tell("restart-waits", attempt=self.number + 1, **{"for": obstacle})
            if self._stopping.is_set():
                raise LabError("the job was stopped while a restart waited for the lab")
            if now - began_t > WAIT_BOUND_S or now - refused_t > REFUSED_BOUND_S:
                raise LabError(f"the job could not be restarted within {now - began_t:.0f} s: {obstacle}")
            self._watch.wait(LOOK_S)

    def _end_records(self) -> None:
        """End the remaining ranks, and let none write afterwards: a rank whose step does not end, or that is paused,
        would add to the records of a run that has ended."""
        with contextlib.suppress(TestbedError):
            self._end_ranks()
        with contextlib.suppress(OSError):
            checkpoints.set_fence(self._folder, self.number + 2)  # one that failed to begin may have ranks

    def _end_ranks(self) -> None:
        """Tell the ranks that still train to stop, and return when they have, or after :data:`STOP_BOUND_S`.

        Raises LabError.
        """
        state = self._watch.state()
        if not self._is_training(state):
            return
        client.keeper(self._lab).stop_ranks(job=self._job)
        until = time.monotonic() + STOP_BOUND_S
        while self._is_training(state) and (left_s := until - time.monotonic()) > 0:
            state = self._watch.wait(left_s)

    def _is_training(self, state: LabState) -> bool:
        return any(rank["state"] == "training" and rank.get("job") == self._job for rank in state.ranks)

    def _obstacle(self) -> str:
        """Return why a job cannot start now; empty if it can."""
        state = self._watch.state()
        if dead := _dead(state):
            raise LabError(dead)  # a dead container does not come back
        ranks = state.ranks
        if down := [str(rank["rank"]) for rank in ranks if rank["down"]]:
            return f"a fault keeps rank{'s' if len(down) > 1 else ''} {', '.join(down)} down"
        if warned := _warned(ranks):
            return f"{warned}: a power loss is imminent"
        dark = frozenset(state.dark)
        if not _connected(self._topology, {rank["site"] for rank in ranks}, dark):
            return f"the sites are not connected while {', '.join(sorted(dark))} {_is(dark)} dark"
        # Last, because it is slow when it finds something: a silent cut, which leaves the carrier up.
        if unreachable := client.keeper(self._lab).unreachable_sites():
            return "; ".join(f"{one} and {other} do not reach each other" for one, other in unreachable)
        return ""

    def _begin(self) -> None:
        """Start the next attempt. Raises LabError, StorageError."""
        number = self.number + 1
        try:
            checkpoints.set_fence(self._folder, number)
        except OSError as error:
            raise StorageError(f"cannot write into {self._folder}: {error.strerror}") from error
        resume = None
        if number > 1:
            have = (checkpoints.whole(self._folder, rank) for rank in range(self._message["world_size"]))
            resume = checkpoints.newest_of_all(have, self._began_at)
        message = {
            **self._message,
            "attempt": number,
            "resume": [resume.step, resume.attempt] if resume else None,
        }
        client.keeper(self._lab).train(message=message)
        if self._stopping.is_set():  # before there were ranks that it could stop
            client.keeper(self._lab).stop_ranks(job=self._job)
        step = resume.step if resume else 0
        self.number, self._began_at[number] = number, step
        self._tell("attempt-began", attempt=number, resumed_from=step)
        self._noted.append({"attempt": number, "began_t": time.monotonic(), "resumed_from": step})
        self._write_down(ended_t=None, why="", in_order=False)

    def _ended(self, why: str, detected_t: float, step: int, **order: Any) -> None:
        self._tell("attempt-ended", attempt=self.number, why=why, detected_t=detected_t, step=step, **order)
        self._write_down(ended_t=detected_t, why=why, step=step, **order)

    def _write_down(self, **fields: Any) -> None:
        """Update the record of the current attempt. Raises StorageError."""
        self._noted[-1] |= fields
        self._note(self._noted)

    def _tell(self, event: str, **fields: Any) -> None:
        client.keeper(self._lab).add_event(event=event, fields=fields)


def _dead(state: LabState) -> str:
    """Return which container has died, as a reason; empty if none has."""
    return f"the container of {state.dead_containers[0]} died" if state.dead_containers else ""


def _why(ranks: Sequence[RankState]) -> str:
    """Return why an attempt has failed; empty if it has not."""
    bad = [rank for rank in ranks if rank["state"] in OVER]
    if not bad:
        return ""
    # The cause is a rank that is gone, or else the first that ended; its peers' broken connections are the effect.
    worst = min(bad, key=lambda rank: (rank["state"] != "gone", rank["ended_t"] or 0.0))
    return f"rank {worst['rank']} on {worst['node']} {worst['state']}: {worst['reason']}"


def _suspended(ranks: Sequence[RankState]) -> str:
    """Return which ranks do not run, as the beginning of a reason: the others only waited for them. Empty if a process
    is gone, or all run."""
    if any(rank["state"] == "gone" for rank in ranks):
        return ""
    stopped = [f"rank {rank['rank']} on {rank['node']}" for rank in ranks if rank.get("suspended")]
    is_ = "is" if len(stopped) == 1 else "are"
    return f"{', '.join(stopped)} {is_} suspended by a signal (SIGSTOP); " if stopped else ""


def _warned(ranks: Sequence[RankState]) -> str:
    """Describe the fault that is about to cut the power of a rank's site; empty if there is none."""
    warnings = (rank["warned"] for rank in ranks if "warned" in rank)
    return next(filter(None, warnings), "")


def _connected(topology: Topology, sites: set[str], dark: frozenset[str]) -> bool:
    """Whether a path of lit links connects each of ``sites`` to all others."""
    lit = (link.between for link in topology.links if link.name not in dark)
    return not sites or sites <= reachable(min(sites), lit)


def _is(things: frozenset[str]) -> str:
    return "is" if len(things) == 1 else "are"
