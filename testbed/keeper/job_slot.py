"""The job slot of a live lab: one job of any kind at a time, and an end for each, whatever becomes of its holder.

A job is run by its *holder*: a command, a user's Python, or a process of the testbed's own (a detached job). The holder
takes the slot before anything of the job begins and gives it back after its last rank has ended. If its connection or
its process ends first, the keeper ends the job's ranks, records in the run that it was interrupted, and frees the slot:
no job is ever left that cannot be ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testbed.errors import LabError, TestbedError, UserError
from testbed.host.linux import job_processes, process
from testbed.host.linux.process_watch import ProcessWatch
from testbed.keeper.agent_pool import AgentPool
from testbed.keeper.event_log import EventLog, log
from testbed.keeper.protocol import ClaimAnswer, JobRecord
from testbed.keeper.service import Caller

__all__ = ["MOST_ENDED", "STOP_GRACE_S", "JobSlot"]

STOP_GRACE_S: Final = 25.0
"""How long the holder may take to end its job when asked: signals to a program that ignores them, and the report."""

DOWN_GRACE_S: Final = 15.0
"""The same when the lab is taken down."""

PROGRAM_GRACE_S: Final = 2.0
"""How long programs whose holder is gone may take after SIGTERM."""

MOST_ENDED: Final = 500
"""Ended jobs that are kept."""

CLAIM_BOUND_S: Final = STOP_GRACE_S + 15.0
"""How long a claim waits for a job that is ending: the client's patience is longer."""


@dataclass(eq=False)
class _Held:
    """The job in the slot. ``ending``: the keeper itself is ending it, because its holder is gone or does not, or
    (``given_back``) has left ranks behind."""

    record: JobRecord
    caller: Caller
    began: int
    watch: ProcessWatch | None = None
    sessions: list[int] = field(default_factory=list)
    ending: bool = False
    given_back: bool = False


class JobSlot:
    """Thread-safe. ``nodes`` returns the handles of the network namespaces of the lab's nodes, ``do`` does a work in
    the engine's thread."""

    def __init__(
        self,
        lab: str,
        agents: AgentPool,
        events: EventLog,
        nodes: Callable[[], Sequence[Path]],
        do: Callable[[Callable[[], None]], None],
    ) -> None:
        self._lab, self._agents, self._events, self._nodes, self._do = lab, agents, events, nodes, do
        self._changed = threading.Condition()
        self._held: _Held | None = None
        self._ended: list[JobRecord] = []
        self._last = 0
        """The number of the latest job."""
        self._over: set[str] = set()
        """Jobs that the keeper ended; their holders may not know it yet."""
        self._closed = False

    # ---- requests

    def claim(
        self, caller: Caller, kind: str, what: str, pid: int, began: int, *, detached: bool = False
    ) -> ClaimAnswer:
        """Give the slot to ``caller``, or return who has it. Waits for a job that is ending. Raises LabError."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_ending(), CLAIM_BOUND_S)
            if self._closed:
                raise LabError(f"lab {self._lab} is being taken down")
            if self._held is not None:
                return {"job": "", "busy": self._held.record}
            self._last += 1
            record: JobRecord = {
                "id": f"j{self._last}",
                "kind": kind,
                "what": what,
                "run": "",
                "pid": pid,
                "detached": detached,
                "began_unix_s": time.time(),
                "began_t": time.monotonic(),
                "ended_t": None,
                "state": "running",
                "why": "",
                "exit_status": None,
            }
            held = self._held = _Held(record, caller, began)
        # A child that the holder forked keeps its connection open, so its process is watched too.
        if process.is_same(pid, began):
            with contextlib.suppress(OSError):
                held.watch = ProcessWatch({record["id"]: pid}, lambda _: self._end_soon(held, "lost"))
        self._events.add("job-claimed", job=record["id"], kind=kind, what=what, pid=pid)
        return {"job": record["id"], "busy": None}

    def describe(self, job: str, run: str, sessions: Sequence[int]) -> None:
        with self._changed:
            if self._held is not None and self._held.record["id"] == job:
                self._held.record["run"] = run
                self._held.sessions = list(sessions)

    def admit(self, job: str) -> None:
        """Raise LabError unless ranks may begin ``job`` now: it holds the slot, and nobody ends it."""
        with self._changed:
            if self._closed or job in self._over:
                raise LabError(f"job {job} was ended")
            if self._held is None:
                raise LabError(f"job {job} does not hold the job slot of lab {self._lab}")
            if self._held.record["id"] != job:
                raise LabError(f"job {self._held.record['id']} is running in lab {self._lab}")
            if self._held.ending:
                raise LabError(f"job {job} is being ended")

    def release(self, job: str, state: str, why: str, exit_status: int) -> None:
        """Free the slot; where ranks are left that did not end, once the keeper has ended them."""
        with self._changed:
            held = self._held
            if held is None or held.record["id"] != job or held.ending:
                return
            if not self._agents.is_training(job):
                self._finish(held, state, why, exit_status)
                return
            held.ending = held.given_back = True

        def end_the_rest() -> None:
            try:
                self._agents.end_job(job, self._do)
            except Exception as error:
                log(f"ranks of job {job} were not ended in order: {error!r}")
            with self._changed:
                self._finish(held, state, why, exit_status)

        threading.Thread(target=end_the_rest, name="job-end", daemon=True).start()

    def records(self) -> list[JobRecord]:
        with self._changed:
            current = [] if self._held is None else [self._held.record]
            return [record.copy() for record in (*self._ended, *current)]

    def stop(self, job: str, why: str) -> JobRecord:
        """End a job, and return its record once it has ended: see ``KeeperApi.end_job``."""
        with self._changed:
            held = self._held
            if held is None or held.record["id"] != job:
                ended = next((record for record in self._ended if record["id"] == job), None)
                if ended is not None:
                    return ended.copy()
                available = ", ".join(record["id"] for record in self.records()) or "none"
                raise UserError(f"unknown job '{job}' (available: {available})")
        self._ask(held, why)
        with self._changed:
            self._changed.wait_for(lambda: self._held is not held, STOP_GRACE_S)
        self._end_soon(held, "stopped", why)
        with self._changed:
            self._changed.wait_for(lambda: self._held is not held, STOP_GRACE_S)
        return held.record.copy()

    def closed(self, caller: Caller) -> None:
        """Note that a connection has ended: if it held the slot, end the job."""
        with self._changed:
            held = self._held
        if held is not None and held.caller is caller:
            self._end_soon(held, "lost")

    def close(self, why: str) -> None:
        """Let no other job begin, and end the one that runs: the lab is being taken down."""
        with self._changed:
            self._closed = True
            held = self._held
            self._changed.notify_all()
        if held is None or held.given_back:  # then its ranks go with the lab
            return
        self._ask(held, why)
        with self._changed:
            self._changed.wait_for(lambda: self._held is not held, DOWN_GRACE_S)
        self._end_soon(held, "stopped", why)
        with self._changed:
            self._changed.wait_for(lambda: self._held is not held, STOP_GRACE_S)

    # ---- ends

    def _ask(self, held: _Held, why: str) -> None:
        """Have the holder end its job."""
        with self._changed:
            if self._held is not held or held.ending:
                return
            held.record["state"] = "stopping"
        self._events.add("job-stop-requested", job=held.record["id"], why=why)
        held.caller.push({"t": time.monotonic(), "events": [], "stop": why})

    def _end_soon(self, held: _Held, state: str, asked: str = "") -> None:
        """Call :meth:`_end` in a thread of its own: those that answer requests have real-time priority."""
        holder = f"the process that ran the job (pid {held.record['pid']})"
        why = f"{asked}; {holder} did not end it in time" if asked else f"{holder} ended without ending it"
        threading.Thread(target=self._end, args=(held, state, why), name="job-end", daemon=True).start()

    def _end(self, held: _Held, state: str, why: str) -> None:
        """End the ranks of a job whose holder does not, and free the slot; does nothing if another does, or has."""
        with self._changed:
            if self._held is not held or held.ending:
                return
            held.ending = True
            job = held.record["id"]
            self._over.add(job)
        try:
            if held.record["detached"] and held.record["pid"]:
                process.end(held.record["pid"], held.began)
            self._agents.end_job(job, self._do)
            left = job_processes.end(
                self._inodes(), job_processes.mark(self._lab, job), held.sessions, grace_s=PROGRAM_GRACE_S
            )
            if left:
                why = f"{why}; processes {', '.join(str(pid) for pid, _ in left)} could not be ended"
        except TestbedError as error:
            why = f"{why}; its ranks: {error}"
        except Exception as error:
            log(f"job {job} was not ended in order: {error!r}")
        _interrupt(held.record["run"], why)
        with self._changed:
            self._finish(held, state, why, 130 if state == "stopped" else 3)

    def _finish(self, held: _Held, state: str, why: str, exit_status: int) -> None:
        """Free the slot; the caller has the lock."""
        record = held.record
        record["state"], record["why"], record["exit_status"] = state, why, exit_status
        record["ended_t"] = time.monotonic()
        self._held = None
        self._ended = [*self._ended, record][-MOST_ENDED:]
        if held.watch is not None:
            held.watch.stop()
        self._changed.notify_all()
        self._events.add("job-released", job=record["id"], state=state, why=why, exit_status=exit_status)

    # ---- state

    def _is_ending(self) -> bool:
        return self._held is not None and (self._held.ending or self._held.record["state"] == "stopping")

    def _inodes(self) -> set[int]:
        inodes = set[int]()
        for handle in self._nodes():
            with contextlib.suppress(OSError):
                inodes.add(handle.stat().st_ino)
        return inodes


def _interrupt(run: str, why: str) -> None:
    """Record how a run ended that no other process will end; what was measured is kept."""
    if not run:
        return
    from testbed.host.files.store import RunDirectory  # takes 0.03 s, which would delay a keeper's start

    try:
        directory = RunDirectory.open(Path(run))
        info = directory.read_json("run.json")
        if info.get("status") != "running":
            return
        changed = {**info, "status": "interrupted", "reason": why, "ended_t": time.monotonic()}
        directory.write_reserved("run.json", changed)
        directory.free_reserve()
        directory.give_to_caller()
    except (TestbedError, OSError) as error:
        log(f"the end of run {run} could not be recorded: {error}")
