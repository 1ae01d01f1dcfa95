"""A command on another host, held by a leash: its output here as it comes, its exit status, Ctrl-C and terminal."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import inspect
import json
import os
import queue
import secrets
import select
import signal
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from testbed.core.remote.leash_frames import BEAT_S, FAILED, HELLO, LONGEST, WHY_BYTES, Kind, frame
from testbed.core.user_text import printable
from testbed.errors import HostError, StorageError, UserError
from testbed.host.linux import invocation
from testbed.host.linux.descriptor import write_all
from testbed.host.linux.signals import Handler, handled
from testbed.version import __version__

if TYPE_CHECKING:
    import paramiko

__all__ = ["Request", "SentFile", "WrittenFile", "fetch", "run"]

_Pieces: TypeAlias = Generator[bytes, None, None]

_LEASH = "testbed-leash"
_ANSWER_S = 20.0
_PIECE = 1 << 16
_POLL_S = 0.1
_LINGERS_S = 5.0
_MOST_SHOWN = 300
_MOST_NOISE = 1 << 16
"""Of what start-up files of a login shell print before the leash's first line."""


@dataclass(frozen=True)
class SentFile:
    """A file of this host, and its path below the folder of the command there."""

    here: Path
    there: str


@dataclass(frozen=True)
class WrittenFile:
    """A file of this host that the command there writes, and its path below the folder there."""

    here: Path
    there: str


@dataclass
class Request:
    """A command for the leash.

    Attributes:
        argv: ``{folder}`` at the beginning of a word ``{folder}/there/...`` stands for the folder there.
        environment: added to that of the leash.
        files: sent before the command starts.
        sending: called with the bytes of them that have been sent.
        reads_stdin: this process's stdin is the command's.
        arrived: called with each run directory that the command made, by its path there, and a function that fetches it
            as a tar stream; None if nothing is to be fetched.
        written: files that the command may write.
        folders: folders below the one there that have to exist.
        stdout: descriptor that takes the command's stdout.
        written_arrived: called with each of them that the command wrote, and its content.
        verb: decides how the command is ended there if this client goes (testbed.host.remote.leash).
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[SentFile] = ()
    reads_stdin: bool = False
    arrived: Callable[[str, Callable[[], Iterator[bytes]]], None] | None = None
    written: Sequence[WrittenFile] = ()
    folders: Sequence[str] = ()
    stdout: int = 1
    written_arrived: Callable[[WrittenFile, Iterator[bytes]], None] = lambda file, pieces: None
    sending: Callable[[int], None] = lambda byte_count: None
    verb: str = ""


class _Held:
    """The leash's channel. :meth:`say` may wait for the connection, so handlers of signals :meth:`order`."""

    def __init__(self, transport: paramiko.Transport, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._orders: queue.SimpleQueue[tuple[Kind, Mapping[str, Any]]] = queue.SimpleQueue()
        root = transport.get_username() == "root"
        import paramiko

        try:
            self.channel = transport.open_session(timeout=_ANSWER_S)
            self.channel.exec_command(_LEASH if root else " ".join(("sudo", "-n", _LEASH)))
        except (paramiko.SSHException, EOFError, OSError) as error:
            why = printable(str(getattr(error, "text", None) or error))
            fix = "see MaxSessions of sshd_config(5) there"
            raise HostError(f"{where}: no command can be started: {why}; {fix}") from error
        self._greet()
        for work in (self._beat, self._say_orders):
            threading.Thread(target=work, daemon=True, name=work.__name__).start()

    def _greet(self) -> None:
        """Read up to the leash's first line. Raises UserError if there is none, or it names another version."""
        received, version_text = bytearray(), b""
        self.channel.settimeout(_ANSWER_S)
        with contextlib.suppress(TimeoutError, OSError):
            while not version_text and len(received) < _MOST_NOISE and (piece := self.channel.recv(1)):
                received += piece
                if piece == b"\n":
                    line = bytes(received[received.rfind(b"\n", 0, -1) + 1 :])
                    version_text = line.partition(f"{HELLO} ".encode())[2]
        self.channel.settimeout(None)
        if not version_text:
            raise UserError(self._why_not(bytes(received)))
        version = printable(version_text.decode(errors="replace").strip())
        if version != __version__:
            here = f"{__version__} is here; install the same there"
            raise UserError(f"{self._where} has testbed {version}, but {here}: {self._prepare()}")

    def _why_not(self, shown: bytes) -> str:
        """Return why there is no leash; ``shown``: what came in place of its first line."""
        stderr, deadline = b"", time.monotonic() + 2.0
        while time.monotonic() < deadline and not (
            self.channel.exit_status_ready() and not self.channel.recv_stderr_ready()
        ):
            if self.channel.recv_stderr_ready():
                stderr += self.channel.recv_stderr(4096)
            else:
                time.sleep(0.01)
        text = printable(" ".join((stderr or shown).decode(errors="replace").split()))[:_MOST_SHOWN]
        if b"password" in stderr or b"sudoers" in stderr:
            return f"{self._where}: a password is asked for there; let sudoers(5) allow {_LEASH} without one"
        if b"must have a tty" in stderr:
            return f"{self._where}: a terminal is wanted there ({text}); let sudoers(5) have: Defaults !requiretty"
        return f"{self._where}: the testbed is not installed there ({text or 'no answer'}): {self._prepare()}"

    def _prepare(self) -> str:
        return invocation.command("host", "prepare", self._where)

    def say(self, kind: Kind, content: bytes | Mapping[str, Any] = b"") -> None:
        """Send a frame; if the connection is gone, what follows tells."""
        with self._lock, contextlib.suppress(OSError):
            self.channel.sendall(frame(kind, content))

    def order(self, kind: Kind, content: Mapping[str, Any] | None = None) -> None:
        """Send a frame soon. A handler of a signal may interrupt any call of :meth:`say`, whose lock it cannot take."""
        self._orders.put((kind, content or {}))

    def _say_orders(self) -> None:
        while True:
            self.say(*self._orders.get())

    def send(self, sent_file: SentFile) -> Iterator[int]:
        """Send a file; yield the size of each piece. Raises StorageError if it cannot be read, or changes meanwhile."""
        try:
            with sent_file.here.open("rb") as file:
                state = os.fstat(file.fileno())
                self.say(
                    "file", {"path": sent_file.there, "size": state.st_size, "executable": bool(state.st_mode & 0o111)}
                )
                left = state.st_size
                while left and not self.channel.closed and (piece := file.read(min(left, LONGEST))):
                    self.say("bytes", piece)
                    left -= len(piece)
                    yield len(piece)
        except OSError as error:
            raise StorageError(f"{sent_file.here}: {error.strerror}") from error
        if left and not self.channel.closed:  # a leash that ended says why
            raise StorageError(f"{sent_file.here}: the file became shorter while it was sent")

    def close(self) -> None:
        self._ended.set()
        self.channel.close()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.say("beat")


def run(transport: paramiko.Transport, where: str, request: Request) -> int:
    """Run a command there, with this process's streams, and return its exit status.

    Ctrl-C is passed on, as often as it is typed; the command decides what it means. The leash there ends the command if
    the connection is lost, which raises HostError, or if stdout here cannot be written: BrokenPipeError if its reader
    is gone, else StorageError. What stderr here does not take is left out, as of a command here.
    """
    held = _Held(transport, where)
    try:
        sent = 0
        for sent_file in request.files:
            for count in held.send(sent_file):
                sent += count
                request.sending(sent)
        return _follow(held, where, request)
    finally:
        held.close()


def _follow(held: _Held, where: str, request: Request) -> int:
    shown = {name: os.isatty(number) for number, name in enumerate(("stdin", "stdout", "stderr"))}
    if not request.reads_stdin:
        shown["stdin"] = False
    shown["stdout"] = os.isatty(request.stdout)
    marker = b"" if request.arrived is None and not request.written else b"\0" + secrets.token_hex(16).encode()
    begin = {
        "words": list(request.argv),
        "verb": request.verb,
        "environment": dict(request.environment),
        "terminal": {**shown, **_size()} if any(shown.values()) else {},
        "reads_stdin": request.reads_stdin,
        "marker": marker.decode(),
        "written": [file.there for file in request.written],
        "folders": list(request.folders),
    }
    try:
        held.say("start", begin)
    except ValueError as error:
        raise UserError(f"the command line is too long for --on: {error}; put words into a file") from error
    out, err = _Copy(held.channel.recv, request.stdout, marker), _Copy(held.channel.recv_stderr, 2, needed=False)
    with _terminal(held, shown, request.reads_stdin):
        while not held.channel.status_event.wait(_POLL_S) and not out.after_marker.is_set():
            out.check()  # the leash ends the command
            if held.channel.closed:
                break
    if out.after_marker.is_set():
        out.join(_LINGERS_S)
        stream = _Received(held.channel, out.rest)
        made = _made(where, stream)
        for file in request.written:
            if file.there in made["files"]:
                content = _pieces(held, where, stream, {"file": file.there}, str(file.here))
                request.written_arrived(file, content)
                _drain(content)
        for path in made["runs"]:
            if request.arrived is None:
                break
            fetched = _fetch(held, where, stream, path)
            request.arrived(path, functools.partial(iter, fetched))
            if path != made["runs"][-1]:
                _drain(fetched)
        held.say("done")
        held.channel.status_event.wait(_ANSWER_S)
    for copy in (out, err):
        copy.join(_LINGERS_S)
    status = int(held.channel.exit_status) if held.channel.status_event.is_set() else -1
    if status < 0:
        raise HostError(f"{where}: the connection was lost; the command there is ended, what it measured stays there")
    if status == 0:  # otherwise the command's own failure is told
        out.check()
    return status


def _made(where: str, stream: _Received) -> dict[str, Any]:
    """Return what the command made, as the leash tells it after the marker."""
    try:
        made: dict[str, Any] = json.loads(stream.line())
    except (EOFError, OSError, ValueError) as error:
        raise HostError(f"{where}: the connection was lost at the end; what the command made stays there") from error
    return made


def _drain(pieces: _Pieces) -> None:
    """Take what is left of pieces that were asked for, which would be the beginning of the next ones."""
    if inspect.getgeneratorstate(pieces) != inspect.GEN_CREATED:
        collections.deque(pieces, maxlen=0)


class _Copy(threading.Thread):
    """Copies what arrives to a descriptor, at once, up to a marker; ``rest`` is what came with and after it.

    ``needed``: the first failure to write ends it; otherwise what cannot be written is left out.
    """

    def __init__(
        self, receive: Callable[[int], bytes], descriptor: int, marker: bytes = b"", *, needed: bool = True
    ) -> None:
        super().__init__(daemon=True)
        self._receive, self._descriptor, self._marker, self._needed = receive, descriptor, marker, needed
        self._failure: OSError | None = None
        self.after_marker = threading.Event()
        self.rest = b""
        self.start()

    def run(self) -> None:
        held = b""
        with contextlib.suppress(Exception):
            while piece := self._receive(_PIECE):
                shown, held = self._split(held + piece)
                if not self._put(shown):
                    return
                if self.after_marker.is_set():
                    return
            self._put(held)

    def _split(self, content: bytes) -> tuple[bytes, bytes]:
        """Return what is shown now, and what may be the beginning of the marker."""
        if not self._marker:
            return content, b""
        before, marker, self.rest = content.partition(self._marker)
        if marker:
            self.after_marker.set()
            return before, b""
        start = content.rfind(self._marker[:1], -len(self._marker))
        if start >= 0 and self._marker.startswith(content[start:]):
            return content[:start], content[start:]
        return content, b""

    def _put(self, piece: bytes) -> bool:
        try:
            write_all(self._descriptor, piece)
        except OSError as error:
            self._failure = error
        return self._failure is None or not self._needed

    def check(self) -> None:
        """Raise BrokenPipeError or StorageError if the descriptor could not be written, and is needed."""
        if self._failure is None or not self._needed:
            return
        if isinstance(self._failure, BrokenPipeError):
            raise self._failure
        raise StorageError(f"could not write the output: {self._failure.strerror}") from self._failure


class _Received:
    """Reads exactly so many bytes of a channel; ``already_read`` came before."""

    def __init__(self, channel: paramiko.Channel, already_read: bytes) -> None:
        self._channel, self._rest = channel, bytearray(already_read)

    def line(self) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > LONGEST:
                raise ValueError(f"expected a line of at most {LONGEST} bytes")
            self._more()
        line, _, following = bytes(self._rest).partition(b"\n")
        self._rest = bytearray(following)
        return line

    def take(self, count: int) -> bytes:
        while len(self._rest) < count:
            self._more()
        taken = bytes(self._rest[:count])
        del self._rest[:count]
        return taken

    def _more(self) -> None:
        piece = self._channel.recv(LONGEST)
        if not piece:
            raise EOFError
        self._rest += piece


def _fetch(held: _Held, where: str, stream: _Received, path: str) -> _Pieces:
    """Yield the name of a run of that host, then its directory as a tar stream, in pieces.

    Raises HostError unless all of it arrives.
    """
    yield from _pieces(held, where, stream, {"path": path}, path)


def _pieces(held: _Held, where: str, stream: _Received, wanted: Mapping[str, str], path: str) -> _Pieces:
    """Ask for something and yield its pieces. Raises HostError unless all of it arrives."""
    held.say("fetch", wanted)
    try:
        while size := int.from_bytes(stream.take(4), "big"):
            if size == FAILED:
                raise HostError(f"{where}: {printable(stream.take(WHY_BYTES).decode(errors='replace').strip())}")
            if size > LONGEST:
                raise HostError(
                    f"{where}: {path} did not arrive: expected pieces of at most {LONGEST} bytes, got {size}"
                )
            yield stream.take(size)
    except (EOFError, OSError) as error:
        raise HostError(f"{where}: the connection was lost before {path} was here") from error


def _size() -> dict[str, int]:
    for descriptor in (1, 2, 0):
        with contextlib.suppress(OSError):
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
            return {"rows": rows, "columns": columns}
    return {}


@contextlib.contextmanager
def _terminal(held: _Held, shown: Mapping[str, bool], reads_stdin: bool) -> Iterator[None]:
    """Pass on stdin, Ctrl-C and the size of the terminal; the terminal is as before at the end."""
    handlers: dict[signal.Signals, Handler] = {
        signal.SIGINT: lambda number: held.order("interrupt"),
        signal.SIGTERM: lambda number: held.order("terminate"),
        signal.SIGWINCH: lambda number: held.order("window", _size()),
    }
    before = termios.tcgetattr(0) if shown["stdin"] else None
    ended, wake = os.pipe()
    reader = threading.Thread(target=_read_stdin, args=(held, ended), daemon=True)
    with handled(handlers):
        try:
            if before is not None:
                tty.setraw(0)
            if reads_stdin:
                reader.start()
            yield
        finally:
            os.close(wake)
            if reads_stdin:
                reader.join()
            os.close(ended)
            if before is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, before)


def _read_stdin(held: _Held, ended: int) -> None:
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            return
        try:
            piece = os.read(0, _PIECE)
        except OSError:
            piece = b""
        if not piece:
            held.say("end")
            return
        held.say("data", piece)


def fetch(transport: paramiko.Transport, where: str, path: str) -> Iterator[bytes]:
    """Yield the name of a run of that host, then its directory as a tar stream, in pieces.

    Raises HostError unless all of it arrives: there is no such run, it has not ended, or the connection is lost.
    """
    held = _Held(transport, where)
    try:
        yield from _fetch(held, where, _Received(held.channel, b""), path)
    finally:
        held.close()
