"""The rank programs of one library on the nodes of one lab: started, spoken to, signalled, ended.

What a library does with its time is its own affair, so nothing here waits for it without a bound, and what does not
answer is ended by SIGKILL. If we are killed ourselves its programs end too: by PDEATHSIG where nodes are namespaces, by
their leash in containers, and those of an MPI with their mpiexec.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from testbed.core.conformance.library import PYTHON, Library
from testbed.core.conformance.mpi import mpiexec_argv
from testbed.core.plan import build
from testbed.core.plan.addressing import (
    FABRIC_INTERFACE,
    MANAGEMENT,
    MANAGEMENT_V4,
    MASTER_PORT,
    Addressing,
)
from testbed.core.plan.step import Rank
from testbed.core.topology.model import Topology
from testbed.errors import LabError
from testbed.host import libraries, process, runner
from testbed.host.containerlab import ContainerPlace, agent_user
from testbed.host.inside import pid_on_host
from testbed.lab import client, launch, places
from testbed.lab.state import LabFolder
from testbed.lab.validate import reach
from testbed.lab.validate.lines import Lines

__all__ = ["Crew", "Said"]

START_BOUND_S: Final = 90.0
"""How long programs may take until they answer their first operation: four that import torch on one busy core."""

LEAVE_BOUND_S: Final = 3.0
END_BOUND_S: Final = 10.0

_PORTS: Final = 2000
"""Ports for communicators begin at MASTER_PORT and stay below Linux' ephemeral ones."""

OF_ONE_RANK: Final = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TESTBED_NODE", "TESTBED_SITE")
"""Variables that an mpiexec, which has one environment for all, must not pass on."""

_REDIRECTED: Final = 'exec <"$1" >"$2"; shift 2; exec "$@"'
"""For sh: a program between two FIFOs. In a container its leash has stdin."""


@dataclass(frozen=True)
class Said:
    """What ranks said to one message each. A rank is in one of the three."""

    answers: Mapping[int, Mapping[str, Any]]
    ended: Mapping[int, str] = field(default_factory=dict)
    """Ranks whose program ended before it answered, and how, in words."""
    silent: tuple[int, ...] = ()
    """Ranks that had not answered when the time was over."""

    @property
    def complete(self) -> bool:
        return not self.ended and not self.silent

    @property
    def errors(self) -> dict[int, str]:
        return {rank: str(it["error"]) for rank, it in self.answers.items() if "error" in it}

    @property
    def unsupported(self) -> str:
        """Why the library cannot do it, as the first rank that says so says it; empty if none does."""
        return next((str(it["unsupported"]) for it in self.answers.values() if "unsupported" in it), "")

    @property
    def trouble(self) -> str:
        """What went wrong first, in words; empty if every rank answered well."""
        for rank, how in self.ended.items():
            return f"rank {rank} {how}"
        if self.silent:
            return f"rank {', '.join(map(str, self.silent))} did not answer"
        for rank, words in self.errors.items():
            return f"rank {rank}: {words}"
        return ""


@dataclass
class _Program:
    """One rank: its lines, and the process that stands for it."""

    rank: Rank
    lines: Lines
    child: subprocess.Popen[bytes] | None
    """None where mpiexec is the child of us all."""
    pid: int = 0
    """Of the rank program, on this host; 0 until it is known."""
    began: int = 0
    joined: bool = False
    """Whether it has answered: before that it may be importing what it needs."""
    pending: Mapping[str, Any] | None = None
    ended: str = ""
    """How it ended, in words."""


class Crew:
    """See the module. ``folder``, which every node sees at the same path, is where outputs, FIFOs and logs lie.

    Threads: use it from one, which must live as long as the programs (PDEATHSIG follows whoever started them).
    """

    def __init__(self, lab: LabFolder, topology: Topology, library: Library, folder: Path) -> None:
        self.library, self.topology, self.folder = library, topology, folder
        self.ranks: tuple[Rank, ...] = build.ranks(topology)
        self.offers: Mapping[str, Any] = {}
        self.version, self.title = "", library.title
        self._attempt = 0
        """Number of the communicator of these programs."""
        self._port = MASTER_PORT
        """Of the latest communicator; none is used twice in turn, over restarts too."""
        self._lab = lab
        self._contained = places.driver(lab) == "containerlab"
        self._programs: dict[int, _Program] = {}
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._early: dict[int, Mapping[str, Any]] = {}
        """Answers that came before somebody waited for them."""
        self._logs: list[IO[bytes]] = []

    @property
    def outputs(self) -> Path:
        """Where answers to ``keep`` lie, $TESTBED_FOLDER."""
        return self.folder / "outputs"

    @property
    def world(self) -> tuple[int, ...]:
        return tuple(range(len(self.ranks)))

    @property
    def alive(self) -> bool:
        """Whether every rank's program runs and has nothing left to answer."""
        self.listen(0.0)
        return bool(self._programs) and all(not it.ended and it.pending is None for it in self._programs.values())

    # ---- life

    def start(self) -> None:
        """Start the programs; those of before are ended. Raises MissingTool, HostError, LabError."""
        self.kill()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.outputs.mkdir(exist_ok=True)
        for path in (self.folder, self.outputs):
            self._give(path)
        for shown in {self.folder, *self._program_folder()}:
            client.call(self._lab, "show", folder=str(shown))
        try:
            if self.library.launcher == "direct":
                for rank in self.ranks:
                    self._programs[rank.rank] = self._start_contained(rank) if self._contained else self._start(rank)
            else:
                self._start_mpi()
        except BaseException:
            self.kill()
            raise

    def join(self, timeout_s: float) -> Said:
        """Make a communicator, the first or the next one; programs are started where there are none.

        What the library offers is known afterwards. Raises what :meth:`start` raises.
        """
        if not self._programs:
            self.start()
        self._attempt += 1
        self._port = MASTER_PORT + (self._port + 1 - MASTER_PORT) % _PORTS
        message = {"do": "join", "attempt": self._attempt, "port": self._port, "timeout_s": timeout_s}
        fresh = [number for number, it in self._programs.items() if not it.joined]
        self.say(message, fresh)
        self._have_read(fresh)
        self.say(message, [it for it in self.world if it not in fresh])
        until_t = time.monotonic() + 2 * timeout_s + 5.0
        said = self.gather(self.world, lambda: until_t)
        for rank, answer in said.answers.items():
            self._programs[rank].joined = True
            self._learn(self._programs[rank], answer)
        return said

    def _have_read(self, ranks: Sequence[int]) -> None:
        """Return when these have read what they were told, or ended: before that they import what they need, and others
        who wait for them in a communicator would lose their patience."""
        until_t = time.monotonic() + START_BOUND_S
        programs = [self._programs[it] for it in ranks]
        while time.monotonic() < until_t and any(it.lines.unread and not it.ended for it in programs):
            self._early.update(self.listen(0.01))

    def replace(self) -> bool:
        """Start a fresh program for each rank whose program has ended, so that the others need not; False where that
        cannot be: an mpiexec starts all ranks or none."""
        if self.library.launcher != "direct":
            return False
        for number, program in list(self._programs.items()):
            if program.ended:
                program.lines.close()
                start = self._start_contained if self._contained else self._start
                self._programs[number] = start(program.rank)
        return True

    @property
    def owing(self) -> tuple[int, ...]:
        """Ranks that have yet to answer."""
        return tuple(number for number, it in self._programs.items() if it.pending is not None and not it.ended)

    @property
    def ended(self) -> tuple[int, ...]:
        """Ranks whose program has ended."""
        self.listen(0.0)
        return tuple(number for number, it in self._programs.items() if it.ended)

    def leave(self) -> None:
        """End in order, or else by force."""
        if self.alive:
            with contextlib.suppress(LabError):
                self.ask({"do": "leave"}, bound_s=LEAVE_BOUND_S)
            until = time.monotonic() + LEAVE_BOUND_S
            while time.monotonic() < until and any(not it.ended for it in self._programs.values()):
                self.listen(0.05)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to whatever is left; returns when it is gone."""
        for program in self._programs.values():
            self._signal(program, signal.SIGKILL)
            if program.child is not None:
                _end(program.child)
            program.lines.close()
        if self._mpiexec is not None:
            _end(self._mpiexec)
            self._mpiexec = None
        gone = time.monotonic() + END_BOUND_S
        for program in self._programs.values():
            if program.pid:
                process.wait_gone(program.pid, program.began, max(0.0, gone - time.monotonic()))
        self._programs.clear()
        self._early.clear()
        self._attempt = 0
        for log in self._logs:
            log.close()
        self._logs.clear()

    def send_signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank's program; when, on CLOCK_MONOTONIC. Raises LabError if its process is not known."""
        program = self._programs[rank]
        if not program.pid:
            raise LabError(f"the process of rank {rank} is not known: its join did not tell a pid")
        t = time.monotonic()
        self._signal(program, number)
        return t

    def last_words(self, rank: int) -> str:
        """The last line in a rank's log; empty if it said nothing."""
        paths = [self.log(rank), self.log(None)]
        for path in paths:
            with contextlib.suppress(OSError), path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - 4096))
                lines = stream.read().decode(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1].strip()[:300]
        return ""

    def log(self, rank: int | None) -> Path:
        """Where a rank's words are; None: those of mpiexec."""
        return self.folder / ("mpiexec.log" if rank is None else f"rank-{rank}.log")

    # ---- questions and answers

    def ask(self, message: Mapping[str, Any], ranks: Iterable[int] | None = None, *, bound_s: float) -> Said:
        """One message to ``ranks`` (default: all), and their answers; waits at most ``bound_s`` seconds."""
        chosen = tuple(self.world if ranks is None else ranks)
        self.say(message, chosen)
        until_t = time.monotonic() + bound_s
        return self.gather(chosen, lambda: until_t)

    def say(self, message: Mapping[str, Any], ranks: Iterable[int]) -> None:
        """Hand a message to ranks, each of which has answered the one before."""
        for rank in ranks:
            program = self._programs[rank]
            assert program.pending is None, f"rank {rank} has yet to answer {program.pending}"
            program.pending = dict(message)
            if not program.ended:
                program.lines.say(message)  # if nobody takes it nobody answers, which is seen soon enough

    def gather(
        self, ranks: Iterable[int], until_t: Callable[[], float], each: Callable[[], float] | None = None
    ) -> Said:
        """What ``ranks`` answer to what each was told last, until a time that may change meanwhile.

        ``each`` is called again and again; it says how many seconds we may sleep at most. A rank that is silent stays
        so: end them all and start again.
        """
        chosen = tuple(ranks)
        answers = {it: self._early.pop(it) for it in chosen if it in self._early}
        while True:
            waiting = [it for it in chosen if it not in answers and not self._programs[it].ended]
            left = until_t() - time.monotonic()
            if not waiting or left <= 0:
                break
            nap_s = each() if each is not None else 0.1
            answers.update(self.listen(min(left, nap_s)))
        ended = {it: self._programs[it].ended for it in chosen if it not in answers and self._programs[it].ended}
        silent = tuple(it for it in chosen if it not in answers and it not in ended)
        return Said({it: answers[it] for it in chosen if it in answers}, ended, silent)

    def listen(self, nap_s: float) -> list[tuple[int, Mapping[str, Any]]]:
        """Answers that are there, or come within ``nap_s`` seconds (whole milliseconds), each with its rank."""
        codes = self._exit_codes()  # before reading: what a program said before it ended is read below
        poller = select.poll()
        for it in self._programs.values():
            if it.lines.open:
                poller.register(it.lines.out, select.POLLIN)
        ready = {file for file, _ in poller.poll(0 if codes else round(nap_s * 1000))}
        found: list[tuple[int, Mapping[str, Any]]] = []
        for number, program in self._programs.items():
            if program.lines.out in ready or number in codes:
                for answer in program.lines.read():
                    asked, program.pending = program.pending, None
                    if asked is not None:  # what was not asked for is no answer
                        found.append((number, _checked(asked, answer)))
            if number in codes:
                program.ended, program.lines.open = codes[number], False
        return found

    # ---- inside

    def _program_folder(self) -> set[Path]:
        """Of a program that is a file of the user's: nodes must see it."""
        if self._contained and (own := Path(self.library.argv[-1])).is_absolute():
            return {own.parent}
        return set()

    def _give(self, path: Path) -> None:
        if self._contained:
            os.chown(path, *map(int, agent_user().split(":")))

    def _environment(self, rank: Rank) -> dict[str, str]:
        net = Addressing(self.topology)
        ours = {
            "TESTBED_INTERFACE": FABRIC_INTERFACE,
            "TESTBED_ADDRESSES": ",".join(str(net.node(it.node)[0]) for it in self.ranks),
            "TESTBED_SITES": ",".join(it.site for it in self.ranks),
            "TESTBED_FOLDER": str(self.outputs),
            "PYTHONUNBUFFERED": "1",
        }
        return launch.environment(self.topology, rank, {**ours, **self.library.environment})

    def _argv(self) -> list[str]:
        python = "python" if self._contained else libraries.python()
        return [python if word == PYTHON else word for word in self.library.argv]

    def _open_log(self, rank: int | None) -> IO[bytes]:
        log = self.log(rank).open("ab")
        self._logs.append(log)
        return log

    def _start(self, rank: Rank) -> _Program:
        variables = self._environment(rank)
        place = places.place(self._lab, rank.node, isolated=True, job=True)
        log = self._open_log(rank.rank)
        child = subprocess.Popen(
            place.enter(self._argv(), self.folder, variables),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        lines = Lines(os.dup(child.stdin.fileno()), os.dup(child.stdout.fileno()), log)
        child.stdin.close()
        child.stdout.close()
        return _Program(rank, lines, child, child.pid, process.started(child.pid))

    def _start_contained(self, rank: Rank) -> _Program:
        """The leash inside needs stdin for itself, so operations and answers go by FIFOs."""
        variables = self._environment(rank)
        place = places.place(self._lab, rank.node, isolated=True, job=True)
        assert isinstance(place, ContainerPlace)
        log = self._open_log(rank.rank)
        lines = self._fifos(rank, log)
        words = [str(self.folder / f"{rank.rank}.{it}") for it in ("operations", "answers")]
        argv = ["sh", "-c", _REDIRECTED, "sh", *words, *self._argv()]
        child = subprocess.Popen(
            place.enter(argv, self.folder, variables),
            stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        return _Program(rank, lines, child)

    def _start_mpi(self) -> None:
        """The library's own mpiexec, in the management network, which reaches all nodes without a fiber."""
        net = Addressing(self.topology)
        hosts = {str(net.management[it.node]): it.node for it in self.ranks}
        log = self._open_log(None)
        ways = {
            host: places.place(self._lab, node, isolated=True, job=True).enter([], self.folder)
            for host, node in hosts.items()
        }
        agent, variables = reach.write(self.folder, ways)
        own = {**self._environment(self.ranks[0]), "TESTBED_LINES": str(self.folder)}
        for name in OF_ONE_RANK:
            own.pop(name, None)
        for rank in self.ranks:
            self._programs[rank.rank] = _Program(rank, self._fifos(rank, log), None)
        program = libraries.program(self.library.programs[0]) if self.library.programs else None
        inherited = {key: value for key, value in os.environ.items() if key not in OF_ONE_RANK}
        environment = {**inherited, **own, **variables}
        argv = mpiexec_argv(
            self.library.launcher,
            programs=str((program or Path(libraries.python())).parent),
            hosts=list(hosts),
            interface=build.MANAGEMENT_BRIDGE,
            network=str(MANAGEMENT_V4),
            agent=str(agent),
            # If a daemon is killed its rank must not go on by itself.
            program=[runner.tool("setpriv"), "--pdeathsig", "KILL", "--", *self._argv()],
            pass_on=sorted(own.keys() | ({"PATH", "PYTHONPATH"} & environment.keys())),
        )
        self._mpiexec = subprocess.Popen(
            places.place(self._lab, MANAGEMENT, isolated=False).enter(argv, self.folder, environment),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip

    def _fifos(self, rank: Rank, log: IO[bytes]) -> Lines:
        """FIFOs of one rank, made anew: what was written into those of before must not come out of these."""
        for name in ("operations", "answers"):
            path = self.folder / f"{rank.rank}.{name}"
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            self._give(path)
        into, out = self.folder / f"{rank.rank}.operations", self.folder / f"{rank.rank}.answers"
        # fifo(7): for reading and writing it opens at once, whoever is at the other end.
        return Lines(
            os.open(into, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC),
            os.open(out, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC),
            log,
        )

    def _learn(self, program: _Program, answer: Mapping[str, Any]) -> None:
        self.version = str(answer.get("version", self.version))
        if isinstance(answer.get("offers"), dict):
            self.offers = answer["offers"]
        if not program.pid and isinstance(answer.get("pid"), int):
            node = program.rank.node
            netns = places.netns(self._lab, node)
            program.pid = pid_on_host(netns, answer["pid"]) if self._contained else int(answer["pid"])
            program.began = process.started(program.pid) if program.pid else 0

    def _signal(self, program: _Program, number: signal.Signals) -> None:
        """Only to what is still the process that we know: numbers are used again."""
        if program.pid and process.is_same(program.pid, program.began):
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, number)

    def _exit_codes(self) -> dict[int, str]:
        """Ranks whose program has ended since the last time, and how, in words."""
        found: dict[int, str] = {}
        for number, program in self._programs.items():
            if program.ended:
                continue
            if program.child is not None:
                if (code := program.child.poll()) is not None:
                    # docker and the leash say a signal as a shell does.
                    found[number] = process.how_ended(128 - code if self._contained and code > 128 else code)
            elif self._mpiexec is not None and (code := self._mpiexec.poll()) is not None:
                found[number] = f"ended: its mpiexec {process.how_ended(code)}"
            elif program.began and not process.is_same(program.pid, program.began):
                found[number] = "has ended"
        return found


def _checked(asked: Mapping[str, Any], answer: dict[str, Any]) -> Mapping[str, Any]:
    """``answer``, or an error if it is not one to what was asked."""
    key = "call" if "call" in asked else "do"
    if answer.get(key) == asked[key]:
        return answer
    return {**answer, "error": f"its line says {key} {answer.get(key)!r} where {asked[key]!r} was asked"}


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a child's whole session; returns when it is reaped."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()  # the leash in a container lets go
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_BOUND_S)
