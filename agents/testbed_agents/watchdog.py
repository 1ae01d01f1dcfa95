"""Run a program until EOF on the watchdog's stdin: ``python -m testbed_agents.watchdog [--stdin] -- PROGRAM…``.

A program started in a container by ``docker exec`` continues when its caller ends. The watchdog ends it: at EOF on its
own stdin it sends SIGTERM to the program's session, then SIGKILL. Its exit status is the program's, 128 + n for signal
n.

The program has no stdin. With ``--stdin``, it gets the content of frames on the watchdog's stdin, which distinguish the
end of the program's input from the end of the caller. A frame is one byte for its type, the length of its content in
four bytes, most significant first, and the content:

==== ==========================================================
D    input of the program
E    end of input: the program's stdin is closed, and it continues
S    the number of a signal, in decimal, for its whole session
==== ==========================================================

This does not work for a program on a terminal, whose stdin is the terminal. For it, ``python -m testbed_agents.watchdog
--visit TOKEN`` runs in parallel. At EOF on the watchdog's stdin, unless the last byte was ``E``, every process with
``TESTBED_VISIT=TOKEN`` in its environment gets SIGHUP, as if its terminal had closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

GRACE_S = 5.0
READ_BYTES = 1 << 16
HEAD = struct.Struct(">cI")
MOST_WAITING_BYTES = 1 << 24
"""Limit of buffered input that the program has not read: EOF is seen only after everything before it was read."""


def run(argv: Sequence[str], stdin: int = 0, *, framed: bool = False) -> int:
    """Start ``argv`` and wait until it ends; end it at EOF on ``stdin``."""
    try:
        child = subprocess.Popen(
            list(argv), bufsize=0, stdin=subprocess.PIPE if framed else subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError:
        print(f"{argv[0]}: not found in this container", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 126
    watched = os.pidfd_open(child.pid)
    feed = None if child.stdin is None else Feed(child.stdin)
    caller_alive = True
    # Not poll(), which would reap it: then another session could have its number before the rest of this one is killed.
    while os.waitid(os.P_PIDFD, watched, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if caller_alive:
            poll.register(stdin, select.POLLIN if feed is None or feed.has_room else 0)
            if feed is not None and feed.waiting:
                poll.register(feed.sink, select.POLLOUT)
        ready = dict(poll.poll(None if caller_alive else GRACE_S * 1000))
        if feed is not None and feed.sink in ready:
            feed.write()
        if stdin in ready:
            received = os.read(stdin, READ_BYTES) if ready[stdin] & select.POLLIN else b""
            if not received:
                caller_alive = False
                _signal(child.pid, signal.SIGTERM)
            elif feed is not None:
                for number in feed.decode(received):
                    _signal(child.pid, number)
        elif not ready:
            _signal(child.pid, signal.SIGKILL)
    _signal(child.pid, signal.SIGKILL)  # its remaining child processes
    child.wait()
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def hang_up_at_eof(token: str, stdin: int = 0) -> int:
    """Wait for EOF on ``stdin``, then end the processes with ``token``, as described for the module."""
    last = b""
    while received := os.read(stdin, READ_BYTES):
        last = received[-1:]
    if last == b"E":
        return 0
    number, until = signal.SIGHUP, time.monotonic() + GRACE_S
    while visitors := _visitors(token):
        for visitor in visitors:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(visitor, number)
            os.close(visitor)
        if number == signal.SIGKILL:
            break
        time.sleep(0.1)
        number = signal.SIGKILL if time.monotonic() > until else number
    return 0


def _visitors(token: str) -> list[int]:
    """Return pidfds of the processes with this token in their environment (proc(5)), which child processes inherit."""
    mark = f"TESTBED_VISIT={token}".encode()
    pidfds = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as undone:
            # Opened first: a pid that is recycled after the check is not signalled.
            pidfd = os.pidfd_open(int(folder.name))
            undone.callback(os.close, pidfd)
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                undone.pop_all()
                pidfds.append(pidfd)
    return pidfds


class Feed:
    """Writes the content of frames to a program's stdin, without blocking."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self.sink = pipe.fileno()
        self.waiting = bytearray()
        self._unread = bytearray()
        self._ending = False
        os.set_blocking(self.sink, False)

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < MOST_WAITING_BYTES

    def decode(self, data: bytes) -> Iterator[signal.Signals]:
        """Decode received bytes; yield the signals among the frames."""
        self._unread += data
        while len(self._unread) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._unread)
            if len(self._unread) < HEAD.size + length:
                return
            content = bytes(self._unread[HEAD.size : HEAD.size + length])
            del self._unread[: HEAD.size + length]
            if kind == b"D" and not self._pipe.closed:
                self.waiting += content
            elif kind == b"E":
                self._ending = True
                self.write()
            elif kind == b"S":
                yield signal.Signals(int(content))

    def write(self) -> None:
        """Write as much as the program accepts now."""
        if self._pipe.closed:
            return
        try:
            while self.waiting:
                del self.waiting[: os.write(self.sink, self.waiting[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # the program has closed its stdin
            self.waiting.clear()
            self._ending = True
        if self._ending:
            self._pipe.close()


def _signal(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--visit"]:
        sys.exit(hang_up_at_eof(arguments[1]))
    with_stdin = arguments[:1] == ["--stdin"]
    arguments = arguments[with_stdin:]
    sys.exit(run(arguments[1:] if arguments[:1] == ["--"] else arguments, framed=with_stdin))
