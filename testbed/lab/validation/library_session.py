"""A session with a running library: its programs, a working communicator, and operations with all ranks' answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.core.validation.operation import CollectiveOperation, Group
from testbed.core.validation.output_judge import RankAnswer
from testbed.errors import StorageError
from testbed.host.files import beneath
from testbed.lab.validation.worker_set import LONGEST_TEXT, Replies, WorkerSet

__all__ = ["LibraryFailed", "Performed", "Session"]

MOST_FRESH: Final = 12
"""How often programs are restarted before a library is given up: one that hangs in everything would take forever."""

LEAST_ROOM: Final = 1 << 20
"""Free bytes below which the disk counts as full."""

LATEST_S: Final = 1e12
"""Times beyond this are no time of any clock; nor are NaN and infinity, which Python accepts in JSON."""


class LibraryFailed(Exception):
    """The library does not work (any more), with the reason as text; not the lab's failure."""


@dataclass(frozen=True)
class Performed:
    """Answers of the ranks of the operations by their numbers in the world, and when the last came or was given up."""

    answers: Mapping[int, RankAnswer]
    ended_t: float
    not_before_t: Mapping[int, float] = field(default_factory=dict)
    """As :attr:`Replies.not_before_t`."""

    @property
    def done(self) -> bool:
        return all(answer.state == "done" for answer in self.answers.values())

    @property
    def stuck(self) -> bool:
        """Whether a rank is silent or gone, so that the programs cannot be used any more."""
        return any(answer.state in ("silent", "died") for answer in self.answers.values())

    @property
    def refused(self) -> str:
        """Why the operation is unsupported; empty if it is not."""
        return next((answer.message for answer in self.answers.values() if answer.state == "unsupported"), "")

    @property
    def trouble(self) -> str:
        """What the first failed rank reports; empty if all is well."""
        for rank, answer in self.answers.items():
            if answer.state != "done":
                what = {"silent": "never answered", "died": "ended", "error": "failed"}.get(answer.state, answer.state)
                return f"rank {rank} {what}" + (f": {answer.message}" if answer.message else "")
        return ""

    @property
    def first_began_t(self) -> float | None:
        return min((answer.began for answer in self.answers.values() if answer.began is not None), default=None)

    @property
    def began_t(self) -> float | None:
        """When the last rank began."""
        return max((answer.began for answer in self.answers.values() if answer.began is not None), default=None)

    @property
    def finished_t(self) -> float | None:
        """When the last rank was done; None unless all are."""
        ends = [answer.ended for answer in self.answers.values()]
        return max(end for end in ends if end is not None) if self.done and None not in ends else None


class Session:
    """One library in one lab. ``timeout_s`` is the library's own timeout. An operation without a fault hangs if it
    takes ``slack_s`` longer than twice that: a library may wait that long for each of several events."""

    def __init__(self, workers: WorkerSet, *, timeout_s: float, slack_s: float = 15.0) -> None:
        self.workers, self.timeout_s, self.slack_s = workers, timeout_s, slack_s
        self.joined: Replies | None = None
        """Replies to the last join."""
        self._made: set[str] = set()
        self._fresh = 0
        self._works = False

    @property
    def offers(self) -> Mapping[str, Any]:
        return self.workers.offers

    @property
    def world(self) -> Group:
        return Group("world", self.workers.world)

    @property
    def broken(self) -> bool:
        """Whether something went wrong in this communicator, so that it is not used any more."""
        return not self._works

    def same_bits(self, operation: str) -> bool:
        offer = self.offers.get(operation)
        return bool(offer.get("same_bits")) if isinstance(offer, Mapping) else False

    # ---- a communicator that works

    def ready(self) -> None:
        """Ensure that the programs run and have a communicator in which nothing has gone wrong.

        Raises LibraryFailed, HostError, and LabError where the lab failed.
        """
        if self._works and self.workers.alive:
            return
        if self.workers.alive and self.offers.get("rebuilds") is True and self._join():
            return
        self.fresh()

    def fresh(self) -> None:
        """End the programs, start new ones, make a communicator. Raises LibraryFailed, HostError, LabError."""
        self.mark_broken()
        self.workers.kill()
        if self._fresh >= MOST_FRESH:
            raise LibraryFailed(f"its programs had to be restarted {self._fresh} times; given up")
        self._fresh += 1
        if not self._join():
            assert self.joined is not None
            message = self.joined.unsupported or self.joined.trouble
            last = next((line for rank in self.joined.ended if (line := self.workers.last_line(rank))), "")
            self.workers.kill()
            raise LibraryFailed(f"cannot make a communicator: {message}" + (f": {last}" if last else ""))

    def rebuild(self) -> bool:
        """Make the next communicator with the same programs; return whether that worked. Raises LabError."""
        self.mark_broken()
        return self.workers.alive and self._join()

    def mark_broken(self) -> None:
        """Mark this communicator as broken: it is not used any more."""
        self._works = False

    def _join(self) -> bool:
        self._made.clear()
        self.joined = self.workers.join(self.timeout_s)
        self._works = self.joined.complete and not self.joined.errors and not self.joined.unsupported
        if not self._works:
            self.workers.check_lab()
        return self._works

    def have(self, group: Group) -> str:
        """Make a group unless it exists; return why it cannot be made, empty if it can. Raises LabError."""
        if group.name == "world" or group.name in self._made:
            return ""
        if self.broken:  # a rank may still owe an answer for the previous group
            return "its communicator failed before"
        replies = self.workers.ask(group.line(), bound_s=self.bound_s)
        if replies.unsupported:
            return replies.unsupported
        if replies.trouble:
            self.mark_broken()
            self.workers.check_lab()
            return replies.trouble
        self._made.add(group.name)
        return ""

    # ---- operations

    @property
    def bound_s(self) -> float:
        """Deadline of an operation without a fault, after which it is a hang."""
        return 2.0 * self.timeout_s + self.slack_s

    def perform(
        self,
        operations: Sequence[tuple[CollectiveOperation, Group]],
        *,
        at: float | None = None,
        until_t: Callable[[], float] | None = None,
        on_poll: Callable[[], float] | None = None,
    ) -> Performed:
        """Perform operations of groups that have no rank in common, at the same time, and return the ranks' answers.

        ``until_t`` and ``on_poll`` as in :meth:`WorkerSet.gather`; without, operations are given up after
        :attr:`bound_s`. Raises StorageError where the disk is full, LabError where the lab failed.
        """
        ranks: list[int] = []
        sent_t = time.monotonic()
        for operation, group in operations:
            if operation.late is None:
                self.workers.say(operation.line(at), group.ranks)
            else:
                for rank, line in operation.lines(group, sent_t if at is None else at).items():
                    self.workers.say(line, (rank,))
            ranks += group.ranks
        given_up_t = (time.monotonic() if at is None else at) + self.bound_s
        replies = self.workers.gather(ranks, until_t or (lambda: given_up_t), on_poll)
        window = (sent_t, time.monotonic())
        answers = {
            rank: self._answer(rank, replies, operation, group, window)
            for operation, group in operations
            for rank in group.ranks
        }
        performed = Performed(answers, window[1], replies.not_before_t)
        if any(answer.state not in ("done", "unsupported") for answer in answers.values()):
            self.mark_broken()
            self.workers.check_lab()
        self._check_room()
        return performed

    def _check_room(self) -> None:
        """Raise StorageError if the disk is full: ranks that cannot write their output, or not all of it, fail through
        no fault of their library."""
        free = LEAST_ROOM
        with contextlib.suppress(OSError):  # a program may have removed the folder
            free = shutil.disk_usage(self.workers.outputs).free
        if free < LEAST_ROOM:
            raise StorageError(f"{self.workers.outputs}: No space left on device")

    def _answer(
        self, rank: int, replies: Replies, operation: CollectiveOperation, group: Group, window: tuple[float, float]
    ) -> RankAnswer:
        """Build a rank's answer. ``window``: when the operation was sent, and now."""
        if rank in replies.ended:
            last = self.workers.last_line(rank)
            return RankAnswer("died", message=replies.ended[rank] + (f": {last}" if last else ""))
        if rank in replies.silent:
            return RankAnswer("silent")
        answer = replies.answers[rank]
        began, ended = reported = _time(answer.get("began")), _time(answer.get("ended"))
        times = [moment_t for moment_t in (window[0], began, ended, window[1]) if moment_t is not None]
        if times != sorted(times):
            began, ended = None, None  # the reported times cannot be right
        if "unsupported" in answer:
            return RankAnswer("unsupported", None, began, ended, str(answer["unsupported"])[:LONGEST_TEXT])
        if "error" in answer:
            return RankAnswer("error", None, began, ended, str(answer["error"])[:LONGEST_TEXT])
        if None in reported:
            return RankAnswer("error", None, began, ended, "its answer lacks the time when it began or ended")
        if began is None or ended is None:
            message = f"began {reported[0]}, ended {reported[1]}: expected between {window[0]:.6f} (sending) and"
            return RankAnswer("error", message=f"{message} {window[1]:.6f} on CLOCK_MONOTONIC")
        output, length = None, None
        if operation.keep and "output" in answer:
            due = operation.output_count(len(group.ranks)) * operation.kind.size
            try:
                output, length = self._take(str(answer["output"]), due)
            except (OSError, ValueError) as error:  # ValueError: an impossible file name
                return RankAnswer("error", None, began, ended, f"cannot read its output: {error}")
        return RankAnswer("done", output, began, ended, length=length)

    def _take(self, name: str, due: int) -> tuple[bytes, int]:
        """Read an output and remove it: tens of megabytes an operation would fill a disk. Return its content, or its
        first ``due`` bytes if it is longer, and its length."""
        path = self.workers.outputs / Path(name).name
        with os.fdopen(beneath.open_file(path.parent, path.name), "rb") as stream:  # a rank owns that folder
            length = os.fstat(stream.fileno()).st_size
            data = stream.read(min(length, due))
        beneath.remove(path.parent, path.name)
        return data, length if length > due else len(data)


def _time(value: object) -> float | None:
    """Return None for a value that is no time: it comes from an external program."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LATEST_S:
        return None
    return float(value)
