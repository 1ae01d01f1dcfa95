"""Run programs for a user: on the host, and inside nodes by nsenter(1). Always an argument list, never a shell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import select
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from testbed.errors import HostError, MissingTool
from testbed.host import installation
from testbed.host.linux import foreground, program_user
from testbed.host.linux.program_user import Access, ProgramUser
from testbed.host.linux.signals import handled

READ_BYTES = 1 << 16

LOOK_BOUND_S: Final = 30.0
"""Time limit of a program that only looks."""

_MOUNT: Final = 'while [ "$1" != -- ]; do mount --bind -- "$1" "$2" || exit 126; shift 2; done; shift; exec "$@"'
"""Shell command that mounts files over others, given in pairs until ``--``, and becomes the rest of its arguments."""


_MOUNT_TMP: Final = (
    '(cd -P -- "$1" && [ "$(pwd -P)" = "$1" ] && "$0" --no-canonicalize --bind . /tmp) || exit 126; shift; exec "$@"'
)
"""Shell command before a program: $0 is mount(8), $1 the folder that is to be its /tmp.

It is mounted by the working directory, once that is known to be this folder: the folder's user could replace it by a
link meanwhile, to a folder of root's that no program may see."""


@dataclass(frozen=True)
class Place:
    """Where a program runs: a network namespace, and for a node its other namespaces too."""

    net: Path
    handles: Path | None = None
    user: ProgramUser | None = None
    """Who programs run as, without privileges; None: root."""
    scratch: Path = Path("/var/tmp")
    """Folder of the user's: TESTBED_SCRATCH, with TMPDIR inside."""
    own_tmp: Path | None = None
    """Folder that programs see as /tmp; None: the host's own /tmp, which all nodes share."""
    files: tuple[tuple[Path, Path], ...] = ()
    """Files (ours, theirs) that take the place of others inside, for the program of a user and its children alone."""

    watched = False
    """Whether programs inside run under a watchdog, which ends them at EOF on stdin."""

    def enter(
        self,
        argv: Sequence[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        tied: bool = True,
        framed: bool = False,
    ) -> list[str]:
        """Return the argument list that runs ``argv`` inside; the program dies with the thread that started it.

        ``tied``: this process starts it; otherwise another one does, and the program ends at EOF on its stdin.
        ``framed`` is for a watchdog, which programs in namespaces do not have.
        ``environment`` is inherited and not part of the list, except HOME, USER and TMPDIR of another user. Raises
        MissingTool for util-linux's nsenter, setpriv, unshare and mount.
        """
        nsenter, setpriv = tool("nsenter"), tool("setpriv")
        # Namespaces are entered first, which needs root.
        line = [nsenter, f"--net={self.net}"]
        if self.user is None and tied:
            line = [setpriv, "--pdeathsig", "KILL", "--", *line]
        if self.handles is not None:
            line += [
                f"--{option}={self.handles / kind}"
                for option, kind in (("uts", "uts"), ("ipc", "ipc"), ("mount", "mnt"))
            ]
        if self.user is not None:
            parent = os.getpid() if tied else None
            inside = program_user.start(self.user, setpriv, argv, folder, self.scratch, environment or (), parent)
            return [*line, "--", *self._with_files(), *self._own_tmp_first(), *inside]
        if folder is not None:
            line.append(f"--wd={folder}")
        return [*line, "--", *self._own_tmp_first(), *argv]

    def enter_watched(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], watchdog: Sequence[str]
    ) -> list[str]:
        """Return the argument list that runs ``argv`` inside for another process, until EOF on its stdin.

        ``watchdog`` runs its arguments until then. It has a session of its own: SIGKILL to that of the process which
        started it would end it before its program.
        """
        return [tool("setsid"), *self.enter([*watchdog, *argv], folder, environment, tied=False)]

    def output(self, argv: Sequence[str], folder: Path = Path("/")) -> str:
        """Run a short program inside; return its output. Raises HostError, MissingTool."""
        try:
            done = subprocess.run(
                self.enter(argv, folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LOOK_BOUND_S
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{argv[0]} in a node did not end within {LOOK_BOUND_S:g} s") from error
        return done.stdout

    def existing(self, paths: Iterable[str]) -> str:
        """Return the first of ``paths`` that exists inside; empty if none does."""
        return next((path for path in paths if Path(path).exists()), "")

    def speak(self, argv: Sequence[str]) -> list[str]:
        """Return the argument list of a program that is controlled over its stdin and ends by itself at EOF."""
        return self.enter(argv)

    def first_refused(self, user: ProgramUser, wanted: Iterable[tuple[Access, Path]]) -> Path | None:
        """Return the first path that ``user`` cannot use as wanted, as :func:`program_user.first_refused` does."""
        return program_user.first_refused(user, wanted)

    def home(self, user: ProgramUser) -> str:
        """Return HOME of programs of ``user``; empty if they have none."""
        return str(user.home or "")

    def inherited(self) -> Mapping[str, str]:
        """Return the variables of this process that programs inside inherit."""
        return os.environ

    def with_tmp(self, folder: Path) -> Place:
        """Return this place with ``folder`` as /tmp."""
        return dataclasses.replace(self, own_tmp=folder)

    def _own_tmp_first(self) -> list[str]:
        """Return the words before a program that give it a /tmp of its own, in a copy of the node's mounts."""
        if self.own_tmp is None:
            return []
        folder = self.own_tmp.parent.resolve() / self.own_tmp.name
        return [tool("unshare"), "--mount", "--", "/bin/sh", "-c", _MOUNT_TMP, tool("mount"), str(folder)]

    def _with_files(self) -> list[str]:
        """Return the argument list that runs another, still as root, in a mount namespace with :attr:`files`."""
        if not self.files:
            return []
        pairs = [str(path) for pair in self.files for path in pair]
        return [tool("unshare"), "--mount", "--", "sh", "-c", _MOUNT, "sh", *pairs, "--"]

    def visit(self, argv: Sequence[str]) -> int:
        """Run a program on the caller's standard streams and in its working directory; return the exit status."""
        return run(self.enter(argv, Path.cwd()))


def tool(name: str) -> str:
    """Return the path of a program of util-linux. Raises MissingTool."""
    path = shutil.which(name)
    if path is None:
        raise MissingTool(name, installation.apt("util-linux"))
    return path


def run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run on the caller's standard streams; return the exit status, 128 + n for signal n as in a shell.

    Signals to this process are the program's (:mod:`testbed.host.linux.foreground`).
    """
    return shell_status(foreground.run(argv, environment))


def shell_status(code: int) -> int:
    """Convert a ``Popen.returncode`` to a shell's exit status: 128 + n for signal n."""
    return 128 - code if code < 0 else code


_FRAME: Final = struct.Struct(">cI")
"""Header of each frame on a watchdog's stdin (testbed_agents/watchdog.py): type, and number of bytes that follow."""


def run_under_watchdog(argv: Sequence[str]) -> int:
    """As :func:`run`, for a command that starts a watchdog in a container (testbed_agents/watchdog.py).

    Frames carry this process's stdin, and Ctrl-C as SIGINT. However this process ends, the program ends.
    """
    frames: queue.Queue[bytes] = queue.Queue(maxsize=16)
    # In a session of its own, or a terminal's Ctrl-C would end the command before the program gets the signal.
    with subprocess.Popen(list(argv), bufsize=0, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdin is not None
        for work in (lambda: _read_into(frames), lambda: _write_from(frames, child.stdin)):
            threading.Thread(target=work, daemon=True).start()
        try:
            with _interrupts(lambda: frames.put_nowait(signal_frame(signal.SIGINT))):
                status = child.wait()
        except BaseException:
            child.kill()  # the watchdog then reads EOF and ends the program
            raise
    return 128 - status if status < 0 else status


def _frame(kind: bytes, content: bytes = b"") -> bytes:
    return _FRAME.pack(kind, len(content)) + content


def _read_into(frames: queue.Queue[bytes]) -> None:
    with contextlib.suppress(OSError):  # stdin is closed, or its terminal is gone
        while data := os.read(0, READ_BYTES):
            frames.put(_frame(b"D", data))
    frames.put(END_OF_INPUT)


def _write_from(frames: queue.Queue[bytes], sink: IO[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):  # the command has ended
        while True:
            frame = frames.get()
            while frame:
                frame = frame[sink.write(frame) :]


@contextlib.contextmanager
def _interrupts(pass_on: Callable[[], None]) -> Iterator[None]:
    """Call ``pass_on`` on SIGINT, before the current handler; only in the main thread, which alone gets signals."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int) -> None:
        with contextlib.suppress(queue.Full):
            pass_on()
        if callable(before):
            before(number, None)

    with handled({signal.SIGINT: interrupt}):
        yield


END_OF_INPUT: Final = _frame(b"E")
"""What tells a watchdog with ``--stdin`` that its program gets no input, and is to go on."""


def signal_frame(number: signal.Signals) -> bytes:
    """Return what has a watchdog with ``--stdin`` send a signal to the whole session of its program."""
    return _frame(b"S", b"%d" % number)


def start_resident(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one: in a session of its own, stderr in ``log``, stdout in a pipe."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )


def first_line(child: subprocess.Popen[bytes], bound_s: float) -> str:
    """Return the first line of a child's stdout; empty if it ends or prints nothing for ``bound_s`` seconds."""
    assert child.stdout is not None
    poll = select.poll()  # select() takes no descriptor above 1023, and callers may have many
    poll.register(child.stdout, select.POLLIN)
    ready = poll.poll(bound_s * 1e3)
    with child.stdout:
        return child.stdout.readline().decode(errors="replace").strip() if ready else ""
