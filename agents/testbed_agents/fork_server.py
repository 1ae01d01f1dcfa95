"""The fork server: imports torch once and forks one process per rank (protocol: docs/design.md).

An import of torch takes seconds and hundreds of megabytes; a fork of this process takes milliseconds and shares the
memory. It must be single-threaded when it forks: a lock held by another thread would stay locked in the child forever.
So it uses no threads, but one selector over stdin and each rank's socket and pidfd.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from testbed_agents.hooks import PlantedError

READ_BYTES = 1 << 16

BREAK = "TESTBED_BREAK"
"""Environment variable that plants an error in the ranks of a clone (docs/checkers.md)."""


@dataclass
class Agent:
    """A rank's process, as seen by the fork server."""

    rank: int
    pid: int
    pidfd: int
    channel: socket.socket
    job: str | None = None  # set once: a process trains one job, and is replaced for the next


class ForkServer:
    """``plant`` returns the planted error of a rank; None for none."""

    def __init__(self, commands: int, events: int, plant: Callable[[int], PlantedError | None]) -> None:
        self._commands, self._events, self._plant = commands, events, plant
        self._agents: dict[int, Agent] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ)
        self._unread = b""

    def run(self) -> None:
        """Execute commands until EOF on stdin or until no process reads the events; then end all ranks."""
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fd == self._commands:
                        if not self._read_commands():
                            return
                    elif key.data in self._agents.values():  # else ended by a command of the same round
                        self._attend(key.data)
        except BrokenPipeError:
            return
        finally:
            for agent in self._agents.values():
                self._kill(agent)
            for agent in list(self._agents.values()):
                self._forget(agent)

    def report(self, event: str, **fields: object) -> None:
        """Write one event as one line. Raises BrokenPipeError if no process reads the events any more."""
        line = json.dumps({"event": event, "t": time.monotonic(), **fields}).encode() + b"\n"
        while line:
            line = line[os.write(self._events, line) :]

    def _read_commands(self) -> bool:
        received = os.read(self._commands, READ_BYTES)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            try:
                self._execute(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                print(f"invalid command ({type(error).__name__}: {error}): {line[:200]!r}", file=sys.stderr, flush=True)
        return bool(received)

    def _execute(self, message: Mapping[str, Any]) -> None:
        match message["do"]:
            case "rank":
                if old := self._agents.get(message["rank"]):
                    self._kill(old)
                    self._forget(old)
                self._fork(message)
            case "train":
                self._train(message)
            case "signal":
                if agent := self._agents.get(message["rank"]):
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(agent.pidfd, signal.Signals[message["signal"]])
                self.report("signalled", rank=message["rank"], signal=message["signal"])
            case "slow":
                if agent := self._agents.get(message["rank"]):
                    self._pass_on(agent, message)
            case "stop":
                for agent in self._agents.values():
                    if agent.job == message["job"]:
                        self._pass_on(agent, message)
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _train(self, message: Mapping[str, Any]) -> None:
        """Start the job on all of its ranks, or on none if one is missing: the others would only wait for it."""
        ranks, job = message.get("ranks", range(message["world_size"])), message["job"]
        missing = [rank for rank in ranks if rank not in self._agents]
        used = [rank for rank in ranks if rank not in missing and self._agents[rank].job is not None]
        if missing or used:
            unusable = ", ".join(map(str, missing or used))
            reason = f"no process for rank {unusable}" if missing else f"rank {unusable} already had a job"
            for rank in ranks:
                self.report("finished", rank=rank, job=job, status="failed", reason=f"{reason}: deploy a fresh one")
            return
        for rank in ranks:
            self._agents[rank].job = job
            self._pass_on(self._agents[rank], message)

    def _pass_on(self, agent: Agent, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has just died, which its pidfd will report
            agent.channel.send(json.dumps(message).encode())

    def _fork(self, message: Mapping[str, Any]) -> None:
        parent, (ours, theirs) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._become_rank(message, parent, theirs)
        theirs.close()
        ours.setblocking(False)
        agent = Agent(message["rank"], pid, os.pidfd_open(pid), ours)
        self._agents[agent.rank] = agent
        self._selector.register(agent.channel, selectors.EVENT_READ, agent)
        self._selector.register(agent.pidfd, selectors.EVENT_READ, agent)

    def _become_rank(self, message: Mapping[str, Any], parent: int, channel: socket.socket) -> NoReturn:
        code = 1
        try:
            from testbed_agents import rank

            # Close the parent's descriptors: an open end of a pipe would hide that the parent has ended.
            self._selector.close()
            for agent in self._agents.values():
                agent.channel.close()
                os.close(agent.pidfd)
            os.close(self._commands)
            os.close(self._events)
            _close_all_but(channel.fileno())
            rank.live(message, parent, channel, self._plant)
            code = 0
        except (OSError, ValueError) as error:
            print(f"rank {message.get('rank')}: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit, which would unwind the parent's frames above this one.
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _attend(self, agent: Agent) -> None:
        """Pass on a rank's events; if it has died, report that after its last event."""
        dead = os.waitid(os.P_PIDFD, agent.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self._relay(agent)
        if dead is not None:
            self._forget(agent)
            how = {"code": dead.si_status} if dead.si_code == os.CLD_EXITED else {"signal": dead.si_status}
            self.report("died", rank=agent.rank, pid=agent.pid, **how)

    def _relay(self, agent: Agent) -> None:
        while True:
            try:
                line = agent.channel.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                line = b""
            if not line:  # closed; would wake the selector until the pidfd reports the end
                with contextlib.suppress(KeyError):
                    self._selector.unregister(agent.channel)
                return
            event = json.loads(line)
            self.report(event.pop("event"), **event)

    def _kill(self, agent: Agent) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent.pidfd, signal.SIGKILL)

    def _forget(self, agent: Agent) -> None:
        """Reap a process that has died or is about to."""
        os.waitid(os.P_PIDFD, agent.pidfd, os.WEXITED)
        for registered in (agent.channel, agent.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(registered)
        agent.channel.close()
        os.close(agent.pidfd)
        del self._agents[agent.rank]


def _close_all_but(kept: int) -> None:
    """Close what a library may have opened as root: a rank has its output and one channel, and no more."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # the descriptor of this very list
                os.close(int(name))


def warm_up() -> str:
    """Import everything that ranks need, before the first fork; return torch's version. Raises ImportError."""
    # Garbage collection during the import takes a third of its time, and frees 7 MB of 320.
    gc.disable()
    # Before the import, at which OpenMP and OpenBLAS start their threads.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    # The first optimizer of a process imports it (by torch._compile), which takes a second: once here, not per rank.
    import torch._dynamo

    from testbed_agents import data, rank  # noqa: F401

    with contextlib.suppress(data.CorpusError):  # reported by a rank whose job needs it
        data.standard_library()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise SystemExit(f"importing torch started {threads - 1} threads; ranks cannot be forked safely")
    # The garbage collector does not write to frozen objects, so their pages stay shared with the ranks.
    gc.freeze()
    gc.enable()
    return str(torch.__version__)


def planted_errors() -> ModuleType:
    """Load ``examples/planted_errors.py`` of the clone that this package is in. Raises OSError."""
    path = Path(__file__).parents[2] / "examples" / "planted_errors.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _planter() -> Callable[[int], PlantedError | None]:
    """Return what plants the error of ``TESTBED_BREAK``."""
    written = os.environ.get(BREAK)
    if not written:
        return lambda rank: None
    try:
        errors = planted_errors()
    except OSError as error:
        raise SystemExit(f"{BREAK} needs a clone of the repository: {error}") from error
    return lambda rank: errors.plant(rank, written)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is handled by the parent
    # Private copies of stdin and stdout: output of libraries goes to stderr and cannot corrupt an event.
    commands, events = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        version = warm_up()
    except ImportError as error:
        raise SystemExit(f"training agents need torch: {error}") from error
    parent = ForkServer(commands, events, _planter())
    with contextlib.suppress(BrokenPipeError):
        parent.report("warm", torch=version)
        parent.run()
    # Skip interpreter shutdown, which takes most of a second with torch, and reports leaks in some builds.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
