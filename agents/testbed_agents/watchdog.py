"""Runs a program for as long as somebody holds our stdin: ``python -m testbed_agents.watchdog [--stdin] -- PROGRAM…``.

What is started in a container by ``docker exec`` goes on when the one who asked for it is gone. This ends it: end of
file on stdin is SIGTERM to the program's session, and SIGKILL when that did not help. Our status is the program's,
128 + n for a signal n.

The program has no stdin, or, with ``--stdin``, what comes on ours in frames, so that the end of what it is to read can
be told from the end of whoever sends it. A frame is one byte that says what it is, the length of its content in four
bytes, most significant first, and the content:

==== ==========================================================
D    what the program reads next
E    nothing more: its stdin ends, and it goes on
S    the number of a signal, in decimal, for its whole session
==== ==========================================================

A program on a terminal cannot be held so: its stdin is the terminal.
``python -m testbed_agents.watchdog --visit TOKEN`` runs beside it. When the watchdog's stdin ends and the last byte
was no ``E``, every process whose environment contains ``TESTBED_VISIT=TOKEN`` gets SIGHUP, as if its terminal had gone.
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
"""What a program does not read is kept up to here: to learn that the sender is gone, all that it sent must be read."""


def run(argv: Sequence[str], stdin: int = 0, *, framed: bool = False) -> int:
    """Start ``argv`` and wait for it, or for the end of file on ``stdin``."""
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
    held = True
    while child.poll() is None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if held:
            poll.register(stdin, select.POLLIN if feed is None or feed.has_room else 0)
            if feed is not None and feed.waiting:
                poll.register(feed.sink, select.POLLOUT)
        ready = dict(poll.poll(None if held else GRACE_S * 1000))
        if feed is not None and feed.sink in ready:
            feed.write()
        if stdin in ready:
            heard = os.read(stdin, READ_BYTES) if ready[stdin] & select.POLLIN else b""
            if not heard:
                held = False
                _signal(child.pid, signal.SIGTERM)
            elif feed is not None:
                for number in feed.hear(heard):
                    _signal(child.pid, number)
        elif not ready:
            _signal(child.pid, signal.SIGKILL)
    _signal(child.pid, signal.SIGKILL)  # what it started and left behind
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def stand_beside(token: str, stdin: int = 0) -> int:
    """Until ``stdin`` ends; see the module."""
    last = b""
    while heard := os.read(stdin, READ_BYTES):
        last = heard[-1:]
    if last == b"E":
        return 0
    number, until = signal.SIGHUP, time.monotonic() + GRACE_S
    while visitors := _visitors(token):
        for pid in visitors:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            break
        time.sleep(0.1)
        number = signal.SIGKILL if time.monotonic() > until else number
    return 0


def _visitors(token: str) -> list[int]:
    """Processes whose environment says so (proc(5)); a program hands it on to what it runs."""
    mark = f"TESTBED_VISIT={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Feed:
    """A program's stdin, from frames; it never waits."""

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

    def hear(self, data: bytes) -> Iterator[signal.Signals]:
        """Take what came; the signals in it."""
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
        """As much as the program takes now."""
        if self._pipe.closed:
            return
        try:
            while self.waiting:
                del self.waiting[: os.write(self.sink, self.waiting[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self.waiting.clear()
            self._ending = True
        if self._ending:
            self._pipe.close()


def _signal(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--visit"]:
        sys.exit(stand_beside(words[1]))
    with_stdin = words[:1] == ["--stdin"]
    words = words[with_stdin:]
    sys.exit(run(words[1:] if words[:1] == ["--"] else words, framed=with_stdin))
