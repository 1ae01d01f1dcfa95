"""The worker set: the rank programs of one library on the nodes of one lab; messages, signals, end.

A library may take any time, so every wait here has a bound, and a program that does not answer is ended by SIGKILL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.core.plan.addressing import MASTER_PORT
from testbed.core.topology.model import Topology
from testbed.core.validation import offers
from testbed.core.validation.library import CollectiveLibrary
from testbed.errors import LabError
from testbed.host.drivers import containerlab
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import client
from testbed.keeper.journal import FIBERS_DARK
from testbed.lab.validation.rank_programs import Program, Starter, end, exit_code

__all__ = ["Replies", "WorkerSet", "checked_answer"]

START_BOUND_S: Final = 90.0
"""How long programs may take to answer their first operation: four of them import torch on one busy core."""

LEAVE_BOUND_S: Final = 3.0

LONGEST_TEXT: Final = 300
"""Texts are quoted up to this many characters."""

_PORTS: Final = 2000
"""Ports for communicators: from MASTER_PORT on, below Linux' ephemeral ports."""


@dataclass(frozen=True)
class Replies:
    """Replies of ranks to one message each. A rank is in exactly one of the first three fields."""

    answers: Mapping[int, Mapping[str, Any]]
    ended: Mapping[int, str] = field(default_factory=dict)
    """Ranks whose program ended before it answered, and how, as text."""
    silent: tuple[int, ...] = ()
    """Ranks that had not answered at the deadline."""
    not_before_t: Mapping[int, float] = field(default_factory=dict)
    """When each rank's answer was last looked for and not found, on CLOCK_MONOTONIC."""

    @property
    def complete(self) -> bool:
        return not self.ended and not self.silent

    @property
    def errors(self) -> dict[int, str]:
        return {rank: str(answer["error"])[:LONGEST_TEXT] for rank, answer in self.answers.items() if "error" in answer}

    @property
    def unsupported(self) -> str:
        """Why the library does not support it, as the first rank reports it; empty if none does."""
        return next(
            (str(answer["unsupported"])[:LONGEST_TEXT] for answer in self.answers.values() if "unsupported" in answer),
            "",
        )

    @property
    def trouble(self) -> str:
        """The first failure, as text; empty if every rank answered well."""
        for rank, how in self.ended.items():
            return f"rank {rank} {how}"
        if self.silent:
            return f"rank {', '.join(map(str, self.silent))} did not answer"
        for rank, error in self.errors.items():
            return f"rank {rank}: {error}"
        return ""


class WorkerSet:
    """See the module. ``folder``, which every node sees at the same path, is for outputs, FIFOs and logs.

    Threads: use it from one, which must live as long as the programs (PDEATHSIG follows the thread that started them).
    """

    def __init__(self, lab: LabFolder, topology: Topology, library: CollectiveLibrary, folder: Path) -> None:
        self._lab = lab
        self._starter = Starter(lab, topology, library, folder)
        self.ranks, self.outputs = self._starter.ranks, self._starter.outputs
        self.offers: Mapping[str, Any] = {}
        self.version = ""
        self._attempt = 0
        """Number of the communicator of these programs."""
        self._port = MASTER_PORT
        """Of the latest communicator; consecutive communicators differ in it, over restarts too."""
        self._programs: dict[int, Program] = {}
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._early: dict[int, Mapping[str, Any]] = {}
        """Answers that arrived before :meth:`gather` waited for them."""

    @property
    def world(self) -> tuple[int, ...]:
        return tuple(range(len(self.ranks)))

    @property
    def alive(self) -> bool:
        """Whether every rank's program runs and has answered everything."""
        self.listen(0.0)
        return bool(self._programs) and all(
            not program.ended and program.pending is None for program in self._programs.values()
        )

    def check_lab(self) -> None:
        """Check with the lab's keeper that fibers and nodes are unchanged: no library works in a lab that has failed.

        Raises LabError if the keeper is gone or stuck, or if the emulator or the container of a node died.
        """
        hello = client.keeper(self._lab).hello()
        if hello["emulator_died"]:
            raise LabError(FIBERS_DARK)
        if hello["dead_containers"]:
            raise LabError(containerlab.dead(self._lab.name, hello["dead_containers"][0]))

    # ---- life

    def start(self) -> None:
        """Start the programs, after ending earlier ones. Raises MissingTool, HostError, LabError."""
        self.kill()
        self._programs, self._mpiexec = self._starter.start()

    def join(self, timeout_s: float) -> Replies:
        """Make the first or the next communicator; start the programs if there are none.

        Afterwards :attr:`offers` is known. Raises what :meth:`start` raises.
        """
        if not self._programs:
            self.start()
        self._attempt += 1
        self._port = MASTER_PORT + (self._port + 1 - MASTER_PORT) % _PORTS
        message = {"do": "join", "attempt": self._attempt, "port": self._port, "timeout_s": timeout_s}
        fresh = [number for number, program in self._programs.items() if not program.joined]
        self.say(message, fresh)
        self._have_read(fresh)
        self.say(message, [rank for rank in self.world if rank not in fresh])
        until_t = time.monotonic() + 2 * timeout_s + 5.0
        replies = self.gather(self.world, lambda: until_t)
        learnt = {rank: self._learn(self._programs[rank], answer) for rank, answer in replies.answers.items()}
        return dataclasses.replace(replies, answers=learnt)

    def _have_read(self, ranks: Sequence[int]) -> None:
        """Return when these ranks have read their messages, or ended. Until then they import modules, and others that
        wait for them in a communicator would time out."""
        until_t = time.monotonic() + START_BOUND_S
        programs = [self._programs[rank] for rank in ranks]
        while time.monotonic() < until_t and any(program.lines.unread and not program.ended for program in programs):
            self._early.update(self.listen(0.01))

    def replace(self) -> bool:
        """Start a fresh program for each rank whose program has ended, so that the others can stay; return False if
        that is impossible: an mpiexec starts all ranks or none."""
        if not self._starter.replaces:
            return False
        for number, program in list(self._programs.items()):
            if program.ended:
                program.end()
                self._programs[number] = self._starter.one(program.rank)
        return True

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Ranks that have not answered yet."""
        return tuple(
            number for number, program in self._programs.items() if program.pending is not None and not program.ended
        )

    @property
    def ended(self) -> tuple[int, ...]:
        """Ranks whose program has ended."""
        self.listen(0.0)
        return tuple(number for number, program in self._programs.items() if program.ended)

    def leave(self) -> None:
        """End the programs in order, or by force if they do not end."""
        if self.alive:
            with contextlib.suppress(LabError):
                self.ask({"do": "leave"}, bound_s=LEAVE_BOUND_S)
            until = time.monotonic() + LEAVE_BOUND_S
            while time.monotonic() < until and any(not program.ended for program in self._programs.values()):
                self.listen(0.05)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to what is left; return when it is gone. Remaining outputs are removed too."""
        for program in self._programs.values():
            program.signal(signal.SIGKILL)  # all of them first, before one can notice that another is gone
        if self._mpiexec is not None:
            end(self._mpiexec)
        for program in self._programs.values():
            program.end()
        self._starter.sweep()
        self._programs, self._mpiexec = {}, None
        self._early.clear()
        self._attempt = 0

    def send_signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank's program; return when, on CLOCK_MONOTONIC. Raises LabError if its pid is unknown."""
        program = self._programs[rank]
        if not program.pid:
            raise LabError(f"the pid of rank {rank} is unknown: its answer to join had none")
        t = time.monotonic()
        program.signal(number)
        return t

    def last_line(self, rank: int) -> str:
        """Return the last line of a rank's output outside the protocol, else of its mpiexec's; empty if none."""
        return (self._programs[rank].log.last_line() or self._starter.mpiexec_last_line())[:LONGEST_TEXT]

    # ---- questions and answers

    def ask(self, message: Mapping[str, Any], ranks: Iterable[int] | None = None, *, bound_s: float) -> Replies:
        """Send one message to ``ranks`` (default: all) and return their replies; wait at most ``bound_s`` seconds."""
        chosen = tuple(self.world if ranks is None else ranks)
        self.say(message, chosen)
        until_t = time.monotonic() + bound_s
        return self.gather(chosen, lambda: until_t)

    def say(self, message: Mapping[str, Any], ranks: Iterable[int]) -> None:
        """Send a message to ranks, each of which has answered the one before."""
        for rank in ranks:
            program = self._programs[rank]
            assert program.pending is None, f"rank {rank} has yet to answer {program.pending}"
            program.pending = dict(message)
            program.looked_t = time.monotonic()
            if not program.ended:
                program.lines.say(message)  # a failed send shows up as a missing answer

    def gather(
        self, ranks: Iterable[int], until_t: Callable[[], float], on_poll: Callable[[], float] | None = None
    ) -> Replies:
        """Return the answers of ``ranks`` to their last message, waiting until a time that may change meanwhile.

        ``on_poll`` is called repeatedly and returns how many seconds to sleep at most. A rank that is silent stays so:
        end all programs and start again.
        """
        chosen = tuple(ranks)
        answers = {rank: self._early.pop(rank) for rank in chosen if rank in self._early}
        while True:
            waiting = [rank for rank in chosen if rank not in answers and not self._programs[rank].ended]
            left = until_t() - time.monotonic()
            if not waiting or left <= 0:
                break
            nap_s = on_poll() if on_poll is not None else 0.1
            answers.update(self.listen(min(left, nap_s)))
        ended = {
            rank: self._programs[rank].ended for rank in chosen if rank not in answers and self._programs[rank].ended
        }
        silent = tuple(rank for rank in chosen if rank not in answers and rank not in ended)
        given = {rank: answers[rank] for rank in chosen if rank in answers}
        return Replies(given, ended, silent, {rank: self._programs[rank].not_before_t for rank in given})

    def listen(self, nap_s: float) -> list[tuple[int, Mapping[str, Any]]]:
        """Return (rank, answer) pairs that are there or arrive within ``nap_s`` seconds (whole milliseconds)."""
        codes = self._exit_codes()  # before reading: what a program wrote before it ended is read below
        poller = select.poll()
        for program in self._programs.values():
            if program.lines.open:
                poller.register(program.lines.out, select.POLLIN)
        looked_t = time.monotonic()  # before the poll, so that the time is never too late
        ready = {file for file, _ in poller.poll(0 if codes else round(nap_s * 1000))}
        answers: list[tuple[int, Mapping[str, Any]]] = []
        for number, program in self._programs.items():
            if program.lines.out in ready or number in codes:
                for answer in program.lines.read():
                    asked, program.pending = program.pending, None
                    if asked is not None:  # without a pending message it is no answer
                        program.not_before_t = program.looked_t
                        answers.append((number, checked_answer(asked, answer)))
            program.looked_t = looked_t
            if number in codes:
                program.ended, program.lines.open = codes[number], False
        return answers

    # ---- inside

    def _learn(self, program: Program, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read an answer to ``join``; return it, with an error if its offers cannot be parsed."""
        program.joined = True
        self.version = str(answer.get("version", self.version))[:LONGEST_TEXT]
        pid = answer.get("pid")
        if not program.pid and isinstance(pid, int) and not isinstance(pid, bool):
            program.knows_pid(self._starter.pid_here(program.rank, pid))
            if program.pid != self._starter.pid_here(program.rank, pid):
                program.knows_pid(0)  # it ended in between, and the start time may be that of another process
        if "error" in answer or "unsupported" in answer or ("offers" not in answer and self.offers):
            return answer
        try:
            self.offers = offers.parse_offers(answer.get("offers"))
        except ValueError as error:
            return {**answer, "error": f"its offers: {error}"}
        return answer

    def _exit_codes(self) -> dict[int, str]:
        """Return the ranks whose program has ended since the last call, and how, as text."""
        exits: dict[int, str] = {}
        for number, program in self._programs.items():
            if program.ended:
                continue
            if program.child is not None:
                if (code := exit_code(program.child)) is not None:
                    # docker and the watchdog report a signal as a shell does.
                    code = 128 - code if self._starter.contained and code > 128 else code
                    exits[number] = process.how_ended(code)
            elif self._mpiexec is not None and (code := exit_code(self._mpiexec)) is not None:
                exits[number] = f"ended: its mpiexec {process.how_ended(code)}"
            elif program.is_gone:
                exits[number] = "has ended"
        return exits


def checked_answer(asked: Mapping[str, Any], answer: dict[str, Any]) -> Mapping[str, Any]:
    """Return ``answer`` without null values, or with an error if it does not match the message ``asked``."""
    key = "call" if "call" in asked else "do"
    reply = {name: value for name, value in answer.items() if value is not None}
    if reply.get(key) == asked[key]:
        return reply
    return {**reply, "error": f"its answer has {key} {reply.get(key)!r:.{LONGEST_TEXT}}, expected {asked[key]!r}"}
