"""The warm parent: imports torch once and forks one process per rank (contract: docs/design.md, "The warm parent").

An import of torch costs seconds and hundreds of megabytes; a fork of this process costs milliseconds, and shares the
memory. It must have a single thread when it forks: a lock that another thread holds at that moment would stay locked in
the child for ever. So there are no threads here, and one selector over stdin and each rank's socket and pidfd.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

READ_BYTES = 1 << 16


@dataclass
class Agent:
    """A rank's process, as its parent sees it."""

    rank: int
    pid: int
    pidfd: int
    channel: socket.socket
    job: str | None = None  # once it was given one: a process trains one job, and is replaced for the next


class ForkServer:
    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self._agents: dict[int, Agent] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ)
        self._unread = b""

    def run(self) -> None:
        """Obey until stdin ends or nobody reads the events; then end all ranks."""
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fd == self._commands:
                        if not self._read_commands():
                            return
                    elif key.data in self._agents.values():  # else: ended by a command of this very round
                        self._attend(key.data)
        except BrokenPipeError:
            return
        finally:
            for agent in self._agents.values():
                self._kill(agent)
            for agent in list(self._agents.values()):
                self._forget(agent)

    def say(self, event: str, **fields: object) -> None:
        """One line in one write(2). Raises BrokenPipeError when nobody listens any more."""
        line = json.dumps({"event": event, "t": time.monotonic(), **fields}).encode() + b"\n"
        while line:
            line = line[os.write(self._events, line) :]

    def _read_commands(self) -> bool:
        got = os.read(self._commands, READ_BYTES)
        *lines, self._unread = (self._unread + got).split(b"\n")
        for line in lines:
            try:
                self._obey(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                print(f"not understood ({type(error).__name__}: {error}): {line[:200]!r}", file=sys.stderr, flush=True)
        return bool(got)

    def _obey(self, message: Mapping[str, Any]) -> None:
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
                self.say("signalled", rank=message["rank"], signal=message["signal"])
            case "slow":
                if agent := self._agents.get(message["rank"]):
                    self._pass_on(agent, message)
            case "stop":
                for agent in self._agents.values():
                    if agent.job == message["job"]:
                        self._pass_on(agent, message)
            case other:
                raise ValueError(f"there is no command {other!r}")

    def _train(self, message: Mapping[str, Any]) -> None:
        """Give the job to all its ranks that are ours, or to none: they would only wait for one that is missing."""
        ranks, job = message.get("ranks", range(message["world_size"])), message["job"]
        missing = [rank for rank in ranks if rank not in self._agents]
        used = [rank for rank in ranks if rank not in missing and self._agents[rank].job is not None]
        if missing or used:
            which = ", ".join(map(str, missing or used))
            reason = f"no process for rank {which}" if missing else f"rank {which} had a job already"
            for rank in ranks:
                self.say("finished", rank=rank, job=job, status="failed", reason=f"{reason}: deploy a fresh one")
            return
        for rank in ranks:
            self._agents[rank].job = job
            self._pass_on(self._agents[rank], message)

    def _pass_on(self, agent: Agent, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has just died, and its pidfd is about to say so
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

            # What is the parent's must not live on in here: an open end of a pipe would hide that the parent is gone.
            self._selector.close()
            for agent in self._agents.values():
                agent.channel.close()
                os.close(agent.pidfd)
            os.close(self._commands)
            os.close(self._events)
            rank.live(message, parent, channel)
            code = 0
        except (OSError, ValueError) as error:
            print(f"rank {message.get('rank')}: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit: the frames of the parent above this one are not ours to unwind.
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _attend(self, agent: Agent) -> None:
        """Relay what a rank says; if it is dead, say that after its last words."""
        dead = os.waitid(os.P_PIDFD, agent.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self._relay(agent)
        if dead is not None:
            self._forget(agent)
            how = {"code": dead.si_status} if dead.si_code == os.CLD_EXITED else {"signal": dead.si_status}
            self.say("died", rank=agent.rank, pid=agent.pid, **how)

    def _relay(self, agent: Agent) -> None:
        while True:
            try:
                words = agent.channel.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                words = b""
            if not words:  # closed; the pidfd follows, and a closed socket would wake the selector until then
                with contextlib.suppress(KeyError):
                    self._selector.unregister(agent.channel)
                return
            event = json.loads(words)
            self.say(event.pop("event"), **event)

    def _kill(self, agent: Agent) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent.pidfd, signal.SIGKILL)

    def _forget(self, agent: Agent) -> None:
        """Reap a process that is dead or about to be."""
        os.waitid(os.P_PIDFD, agent.pidfd, os.WEXITED)
        for registered in (agent.channel, agent.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(registered)
        agent.channel.close()
        os.close(agent.pidfd)
        del self._agents[agent.rank]


def warm_up() -> str:
    """Import all that a rank will need, while nothing is shared yet; returns torch's version. Raises ImportError."""
    # Before the import: OpenMP and OpenBLAS start their threads with it.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    # The first optimizer of a process imports it (by torch._compile), a second of work: once here, not in each rank.
    import torch._dynamo

    from testbed_agents import data, rank  # noqa: F401

    with contextlib.suppress(data.CorpusError):  # said by the rank whose job wants it
        data.standard_library()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise SystemExit(f"importing torch started {threads - 1} threads; ranks cannot be forked safely")
    # Objects that the collector never looks at again are not written to, and so stay shared with the ranks.
    gc.collect()
    gc.freeze()
    return str(torch.__version__)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for who started us
    # Our own copies of stdin and stdout; what a library prints goes to stderr and cannot garble an event.
    commands, events = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        version = warm_up()
    except ImportError as error:
        raise SystemExit(f"training agents need torch: {error}") from error
    parent = ForkServer(commands, events)
    with contextlib.suppress(BrokenPipeError):
        parent.say("warm", torch=version)
        parent.run()
    # At once: taking the interpreter down with torch in it takes most of a second, and some builds print about leaks.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
