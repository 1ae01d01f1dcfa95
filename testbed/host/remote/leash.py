"""The leash: runs a command on this host for as long as a client of another host holds it (``testbed-leash``).

It is started over SSH, as root by sudo, and prints one line: its version. What it reads from stdin are frames
(:mod:`testbed.core.remote.leash_frames`): files that go into a fresh folder, the command, a sign of life each two
seconds, Ctrl-C, data for the command's stdin. The command's stdout and stderr are the leash's own, so they stay apart,
or a terminal made here where the client has one. The exit status is the command's. If the client wants what the
command made, a marker that it chose follows on stdout once the command has ended, then a line of JSON that names the
runs and files; the client fetches what it wants, and ends.

The client is gone when its end of stdin is, or when it was not heard for 30 s: its cable may be dark, of which no TCP
tells. Then the command gets SIGINT, which undoes, and later SIGTERM and SIGKILL, to its whole process group
(:class:`Escalation`). A lab that is up is no part of the command, and stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import io
import json
import os
import pty
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from testbed.core.remote.leash_frames import (
    BEAT_S,
    COMMAND_FOLDER,
    LONGEST,
    MOST_SENT_BYTES,
    OPENED_PAGE,
    PAGE_COPY,
    PATIENCE_S,
    RUN_LIST,
    Frames,
    Kind,
    hello,
)
from testbed.host.linux import process
from testbed.host.linux.descriptor import write_all
from testbed.host.remote.command_folder import CommandFolder, told_what_helps
from testbed.host.remote.leash_streams import Shown, Spool, Task, send_file, send_run
from testbed.version import __version__

__all__ = ["main"]

_TIOCSIG = 0x40045436
"""Request of ioctl(2), asm-generic/ioctls.h: have a terminal send a signal to its foreground process group."""
_LOOKS_EVERY_S = 0.5
_SOON_S = 0.01
_QUIET_S = 0.3
"""A terminal that shows nothing for so long after its command has ended is not waited for: a child may have it open."""

_SENT = "{folder}/there/"
"""Beginning of a word that names a file which was sent; any other word stays as it is."""
_PR_SET_PDEATHSIG = 1

_SILENT = (
    f"testbed-leash: expected a sign of life from the client every {BEAT_S:g} s, got none for {PATIENCE_S:g} s; "
    "the command is ended, and what it measured stays on this host\n"
)
"""For a client that was stopped (SIGSTOP) and goes on; no other can read it."""

GONE = 129
"""Exit status where the client went before it named a command: 128 + SIGHUP."""


# ---- ending the command of a client that is gone: a command that undoes what it began has time for that; a user's
# program has nothing that the testbed would undo, and is gone after 5 s, even if it ignores signals


_Order: TypeAlias = Sequence[tuple[float, signal.Signals]]
"""Signals, and the seconds from the first of them to each."""

_UNDOES: Final[_Order] = ((0.0, signal.SIGINT), (20.0, signal.SIGTERM), (30.0, signal.SIGKILL))

_ENDS_RANKS: Final[_Order] = ((0.0, signal.SIGINT), (2.0, signal.SIGINT), (3.0, signal.SIGINT), *_UNDOES[1:])
"""Each further SIGINT is the next signal for a program's ranks, as each further Ctrl-C. The command itself writes the
report, and ``run`` takes its lab down."""

_BY_VERB: Final[Mapping[str, _Order]] = {
    "exec": ((0.0, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGKILL)),
    "launch": _ENDS_RANKS,
    "run": _ENDS_RANKS,
}


class Escalation:
    """The end of the command whose process leads process group and session ``leader``; it begins with :meth:`go_on`."""

    def __init__(self, leader: int, verb: str) -> None:
        self._leader = leader
        self._left = list(_BY_VERB.get(verb, _UNDOES))
        self._begun_t: float | None = None

    def go_on(self) -> None:
        """Send the signals that are due."""
        now = time.monotonic()
        self._begun_t = self._begun_t or now
        while self._left and now >= self._begun_t + self._left[0][0]:
            _, number = self._left.pop(0)
            _signal_group(self._leader, number)
            if number == signal.SIGKILL:
                # A program without a terminal, and a shell's jobs, have process groups of their own.
                process.kill_session(self._leader)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


# ---- the command


class _Files:
    """The folder of a command: what the client sent, and where the command starts. Removed when its last user ends."""

    def __init__(self) -> None:
        with told_what_helps(), contextlib.ExitStack() as undo:
            self._used = CommandFolder.make()
            undo.callback(self._used.leave)
            self.folder = self._used.path
            self.folder.chmod(0o711)  # programs of the lab run as another user, and may read what they are told of
            (self.folder / "here").mkdir(mode=0o755)
            undo.pop_all()
        self._written: list[str] = []
        self.runs = self.folder / "runs"
        self._open: io.FileIO | None = None
        self._left = 0
        self._total = 0

    def begin(self, header: dict[str, Any]) -> None:
        path = self._below(str(header["path"]))
        self._left = int(header["size"])
        self._total += self._left
        if self._left < 0 or self._total > MOST_SENT_BYTES:
            raise ValueError(f"expected at most {MOST_SENT_BYTES} bytes of files, got {self._total}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with told_what_helps():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o755 if header.get("executable") else 0o644)
            self._open = io.FileIO(descriptor, "wb")
        self._close_if_whole()

    def _below(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(f"expected a path below the folder, got {path!r}")
        return self.folder.joinpath(*parts)

    def expect(self, written: Sequence[str], folders: Sequence[str]) -> None:
        """Take down which files the command may write for the client, and make folders that the client has, too."""
        with told_what_helps():
            for path in folders:
                self._below(path).mkdir(mode=0o755, parents=True, exist_ok=True)
        self._written = [path for path in map(str, written) if self._below(path)]

    def open_written(self, path: str) -> BinaryIO:
        """Open a file that the command wrote for the client. Raises OSError unless it is a plain file."""
        if path not in self._written:
            raise OSError(f"{path} is not among the files that are written for the client")
        # Without O_NONBLOCK a pipe would be waited for.
        file = os.fdopen(os.open(self._below(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(f"{path} is not a plain file")
        return file

    def more(self, piece: bytes) -> None:
        if self._open is None or len(piece) > self._left:
            raise ValueError("more bytes than the file has")
        with told_what_helps():
            write_all(self._open.fileno(), piece)
        self._left -= len(piece)
        self._close_if_whole()

    def _close_if_whole(self) -> None:
        if self._left == 0 and self._open is not None:
            self._open.close()
            self._open = None

    def made(self) -> dict[str, list[str]]:
        """Return the run directories that the command made, and the files that it wrote for the client."""
        runs = self.runs.read_text().splitlines() if self.runs.exists() else []
        return {
            "runs": list(dict.fromkeys(runs)),
            "files": [path for path in self._written if os.path.lexists(self._below(path))],
        }

    def remove(self) -> None:
        self._used.leave()


class _Command:
    """The command, its stdin, and the terminal made for it."""

    def __init__(self, request: dict[str, Any], files: _Files) -> None:
        terminal: dict[str, Any] = request.get("terminal") or {}
        shown = {name for name in ("stdin", "stdout", "stderr") if terminal.get(name)}
        self.master, slave = pty.openpty() if shown else (-1, -1)
        if shown:
            self.resize(terminal)
        reads = bool(request.get("reads_stdin"))
        plain_in = subprocess.PIPE if reads else subprocess.DEVNULL
        argv = [str(word) for word in request["words"]]
        argv = [f"{files.folder}{word.removeprefix('{folder}')}" if word.startswith(_SENT) else word for word in argv]
        environment = {**os.environ, **{str(key): str(value) for key, value in request["environment"].items()}}
        environment[RUN_LIST] = str(files.runs)
        environment[PAGE_COPY] = str(files.folder / OPENED_PAGE)
        environment[COMMAND_FOLDER] = str(files.folder)
        self.marker = str(request.get("marker", ""))

        library = ctypes.CDLL(None)  # loaded before the fork

        def lead() -> None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # of a leash that is killed
            if slave >= 0:
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv,
            stdin=slave if "stdin" in shown else plain_in,
            stdout=slave if "stdout" in shown else None,
            stderr=slave if "stderr" in shown else None,
            cwd=files.folder / "here",
            env=environment,
            start_new_session=True,
            preexec_fn=lead,  # no other thread is there
        )
        if slave >= 0:
            os.close(slave)
        # Threads begin once the command has: a fork of a process of several threads may hang.
        self._shown = Shown(self.master, 1) if shown else None
        self._ended_t = 0.0
        self._input: Spool | None = None
        if "stdin" in shown:
            self._input = Spool(self.master, files.folder, MOST_SENT_BYTES, closes=False)
        elif self.process.stdin is not None:
            self._input = Spool(os.dup(self.process.stdin.fileno()), files.folder, MOST_SENT_BYTES, closes=True)
            self.process.stdin.close()
        self.pid_watch = os.pidfd_open(self.process.pid)
        self.end = Escalation(self.process.pid, str(request.get("verb", "")))

    def resize(self, size: dict[str, Any]) -> None:
        if self.master >= 0:
            packed = struct.pack("HHHH", int(size.get("rows") or 24), int(size.get("columns") or 80), 0, 0)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, packed)

    def put_in(self, piece: bytes) -> None:
        if self._input is not None:
            self._input.put(piece)

    def end_input(self) -> None:
        if self._input is not None:
            self._input.end()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def interrupt(self) -> None:
        """Do what Ctrl-C does, where the terminal sends the signal to its foreground group: each process gets one.

        To `exec` a signal of another process is one for its program, which has it already as part of the group.
        """
        try:
            fcntl.ioctl(self.master, _TIOCSIG, signal.SIGINT)
        except (OSError, ValueError):  # there is no terminal
            self.signal(signal.SIGINT)

    def has_shown_all(self) -> bool:
        """Whether all that the terminal showed is on stdout, once the command has ended. Nothing follows then."""
        self._ended_t = self._ended_t or time.monotonic()
        return self._shown is None or self._shown.is_drained(self._ended_t, _QUIET_S)


class _Leash:
    def __init__(self) -> None:
        self._frames = Frames()
        self._files = _Files()
        self._command: _Command | None = None
        self._status: int | None = None
        self._heard_t = time.monotonic()
        self._holds = True
        self._sending: Task | None = None

    def run(self) -> int:
        try:
            return self._run()
        except (ValueError, KeyError, TypeError, OSError) as error:
            sys.stderr.write(f"testbed-leash: {error}\n")
            self.let_go()
            self._run()
            return 3
        finally:
            self._files.remove()

    def let_go(self) -> None:
        """End the command as if the client were gone."""
        self._holds = False

    def _run(self) -> int:
        while True:
            command = self._command
            if not self._holds and (command is None or self._status is not None):
                return GONE if self._status is None else self._status
            watched = [0] if self._holds else []
            if command is not None and self._status is None:
                watched.append(command.pid_watch)
            ready, _, _ = select.select(watched, [], [], _LOOKS_EVERY_S)
            if 0 in ready:
                self._hear()
            if self._holds and time.monotonic() - self._heard_t > PATIENCE_S:
                self._holds = False
                Task(functools.partial(write_all, 2, _SILENT.encode()))
            if command is None or self._status is not None:
                continue
            if (status := command.process.poll()) is not None:
                if self._holds and not command.has_shown_all():
                    time.sleep(_SOON_S)  # select returns at once, since the command's pidfd stays readable
                    continue
                self._status = 128 - status if status < 0 else status
                if not command.marker:
                    return self._status
                line = command.marker.encode() + json.dumps(self._files.made()).encode() + b"\n"
                Task(functools.partial(write_all, 1, line))
            elif not self._holds:
                command.end.go_on()

    def _hear(self) -> None:
        piece = os.read(0, LONGEST)
        self._heard_t = time.monotonic()
        if not piece:
            self._holds = False
        for kind, content in self._frames.feed(piece):
            self._act(kind, content)

    def _reply(self, wanted: dict[str, Any]) -> Callable[[], None]:
        """Return what sends a run, or a file that the command wrote for the client."""
        if "file" in wanted:
            return functools.partial(send_file, 1, functools.partial(self._files.open_written, wanted["file"]))
        return functools.partial(send_run, 1, Path(wanted["path"]))

    def _act(self, kind: Kind, content: bytes) -> None:
        command = self._command
        if kind == "fetch":
            self._sending = Task(self._reply(json.loads(content)))
        elif kind == "done":
            self._holds = False
            self._status = self._status or 0
        elif kind == "file":
            self._files.begin(json.loads(content))
        elif kind == "bytes":
            self._files.more(content)
        elif kind == "start" and command is None and self._sending is None:
            request = json.loads(content)
            self._files.expect(request.get("written", ()), request.get("folders", ()))
            self._command = _Command(request, self._files)
        elif command is None:
            return
        elif kind == "interrupt":
            command.interrupt()
        elif kind == "terminate":
            command.signal(signal.SIGTERM)
        elif kind == "data":
            with told_what_helps():
                command.put_in(content)
        elif kind == "end":
            command.end_input()
        elif kind == "window":
            command.resize(json.loads(content))


def main() -> NoReturn:
    """Run the leash on stdin, stdout and stderr; exit with the command's status."""
    with contextlib.suppress(OSError):
        os.setsid()  # sshd's hang-up is not for the command: it learns of it from here
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the command would inherit
    os.write(1, hello(__version__).encode())
    try:
        leash = _Leash()
    except OSError as error:
        os.write(2, f"testbed-leash: {error}\n".encode())
        os._exit(3)
    signal.signal(signal.SIGTERM, lambda *_: leash.let_go())
    status = leash.run()
    sys.stderr.flush()
    os._exit(status)  # a thread may still wait for a client that is gone


if __name__ == "__main__":
    main()
