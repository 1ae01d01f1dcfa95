"""The launcher proxy: starts programs in nodes for unprivileged programs, which can enter no other node themselves.

A program asks over a Unix socket (testbed_agents/launcher_client.py), as it would ask ssh: a host, and a command for a
shell there. The kernel tells who asks (unix(7), SO_PEERCRED), and the rules of each proxy whether that process may, and
how the command is started. There are two: those of the mpiexec that this module runs, below, and those of a whole lab
(``remote_starts.py``).

mpiexec runs in the management network as an unprivileged user and cannot enter the nodes: it has no docker and no
capability. The argument lists for all hosts are fixed beforehand, and each host is entered once. The ranks' nodes see
the folder of the socket too, but no rank may start programs this way, and neither may any user on this host: only
processes in the management network's namespace are accepted, which neither can enter. mpiexec is there, and it starts
each daemon itself: MPICH's hydra always does, Open MPI is configured to (core/workload/mpi_launch.py).

All of it is one process group on the host, and only this process holds the other ends of the watchdogs' pipes
(testbed_agents/watchdog.py): however it ends, mpiexec and the daemons end. Its exit status is mpiexec's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from testbed.errors import HostError, TestbedError
from testbed.host import launcher_shim, runner
from testbed.host.launcher_shim import Wanted
from testbed.host.linux.inside import is_inside

__all__ = ["Entered", "Peer", "Rules", "bind", "listen", "serve", "socket_of", "start"]

_SOCKET: Final = "reach.socket"
_LONGEST_BYTES: Final = 1 << 20
"""Longest request: Open MPI names all hosts to each daemon."""

ASK_BOUND_S: Final = 10.0
"""A client sends its request at once. A silent one is disconnected, because it holds a thread and a descriptor."""

MOST_CLIENTS: Final = 1024
"""More at the same time are refused: each has a thread."""

_GRACE_S: Final = 5.0
"""How long a command may take to end after SIGTERM, when its client is gone."""

REPORT_EVERY_S: Final = 1.0
"""Refusals within this time after another are not reported: any user of this host could fill its disk with them."""

_BUSY_S: Final = 0.05
"""Pause before the next try when a connection could not be accepted."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group (unix(7), SO_PEERCRED)."""

_STREAMS: Final = 3
"""stdin, stdout and stderr of a client, which come with its request (SCM_RIGHTS)."""


@dataclass(frozen=True)
class Peer:
    """The process that asks, as it was when it connected."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Entered:
    """How a requested command is started.

    Attributes:
        argv: the whole argument list.
        watched: whether it ends at EOF on its stdin, a pipe of the proxy's; otherwise it gets the client's stdin.
        environment: of the process on the host; None: the proxy's own.
    """

    argv: Sequence[str]
    watched: bool = True
    environment: Mapping[str, str] | None = None


class Rules(Protocol):
    """Who may start what. Methods are called from several threads."""

    def refusal(self, peer: Peer) -> str:
        """Return why a process may ask for nothing; empty if it may ask."""

    def enter(self, peer: Peer, wanted: Wanted) -> Entered | str:
        """Return how to start a command, or why it is not started. Raises TestbedError."""


def socket_of(folder: Path) -> Path:
    """Return the path of a proxy's socket in its folder."""
    return folder / _SOCKET


def start(
    folder: Path,
    mpiexec: Sequence[str],
    entries: Mapping[str, Sequence[str]],
    *,
    within: Path,
    owner: tuple[int, int],
    environment: Mapping[str, str],
    log: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start the proxy of an mpiexec in a session of its own; it dies with the thread that called this.

    Args:
        folder: visible to both sides at the same path; the socket is made there.
        mpiexec: argument list that runs mpiexec under a watchdog.
        entries: for each host, the argument list to which a command is appended, under a watchdog too.
        within: handle of the network namespace of mpiexec; only processes in it may send requests.
        owner: user and group who may connect.
        environment: of all processes on the host; ``mpiexec`` sets what goes inside.
        log: receives their output.

    Raises HostError, MissingTool.
    """
    table = launcher_shim.table(folder, entries)
    try:
        with bind(socket_of(folder), 0o600, owner) as listener:
            # -P and /: a select.py beside the user's library must not run as root.
            line = [runner.tool("setpriv"), "--pdeathsig", "KILL", "--", sys.executable, "-P", "-m", __name__]
            return subprocess.Popen(
                [*line, str(listener.fileno()), str(table), str(within), *mpiexec],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment),
                pass_fds=[listener.fileno()], start_new_session=True, cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise HostError(f"cannot start the launcher proxy of mpiexec: {error.strerror or error}") from error


def bind(path: Path, mode: int, owner: tuple[int, int] | None = None) -> socket.socket:
    """Return a listening socket at ``path``: who may write it may connect (unix(7)). Raises OSError."""
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as undone:
        made = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path is limited to 107 bytes
        finally:
            os.close(folder)
        path.chmod(mode)
        if owner is not None:
            os.chown(path, *owner, follow_symlinks=False)
        made.listen(128)
        undone.pop_all()
    return made


class OnceEach:
    """The rules of an mpiexec: each host is entered once, by an argument list that was fixed beforehand."""

    def __init__(self, entries: Mapping[str, Sequence[str]], within: Path) -> None:
        self._left, self._within = dict(entries), within

    def refusal(self, peer: Peer) -> str:
        return "" if is_inside(self._within, peer.pid) else "it is not in the management network"

    def enter(self, peer: Peer, wanted: Wanted) -> Entered | str:
        entry = self._left.pop(wanted.host, None)
        if entry is None:
            return f"unknown host {wanted.host}, or its daemon was started already"
        return Entered([*entry, "sh", "-c", wanted.command])


def serve(listener: socket.socket, mpiexec: Sequence[str], entries: Mapping[str, Sequence[str]], within: Path) -> int:
    """Run mpiexec and serve requests from ``within``, the handle of a network namespace, until it ends; return
    mpiexec's status, 128 + n for a signal n. SIGINT ends mpiexec in its own way, which ends the ranks."""
    threading.Thread(target=listen, args=(listener, OnceEach(entries, within)), daemon=True).start()
    child = subprocess.Popen(list(mpiexec), stdin=subprocess.PIPE)
    try:
        return runner.shell_status(child.wait())
    except KeyboardInterrupt:
        assert child.stdin is not None
        child.stdin.close()  # the watchdog sends SIGTERM
        return runner.shell_status(child.wait())


def listen(listener: socket.socket, rules: Rules) -> None:
    """Serve requests until ``listener`` is closed."""
    free = threading.BoundedSemaphore(MOST_CLIENTS)
    reported_t = -REPORT_EVERY_S
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(_BUSY_S)  # out of file descriptors, for now: clients wait in the backlog
            continue
        # Checked before a thread starts and before a host's entry is used up: ranks may connect as often as they like.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        peer = Peer(*_CREDENTIALS.unpack(credentials))
        why = rules.refusal(peer)
        if not why and not free.acquire(blocking=False):
            why = f"{MOST_CLIENTS} clients are connected already"
        if why:
            connection.setblocking(False)  # a program that is refused must not hold up the others
            _refuse(connection, f"this process may not start programs: {why}")
            connection.close()
            if time.monotonic() - reported_t >= REPORT_EVERY_S:
                reported_t = time.monotonic()
                _report(f"refused process {peer.pid}: {why}")
            continue
        threading.Thread(target=_served, args=(connection, peer, rules, free), daemon=True).start()


def _served(connection: socket.socket, peer: Peer, rules: Rules, free: threading.BoundedSemaphore) -> None:
    try:
        _answer(connection, peer, rules)
    finally:
        free.release()


def _answer(connection: socket.socket, peer: Peer, rules: Rules) -> None:
    """Serve one request until the command has ended, and send its status, or until the client is gone."""
    with connection:
        try:
            connection.settimeout(ASK_BOUND_S)
            with _request(connection) as (line, streams):
                connection.settimeout(None)
                wanted = _parse_request(line)
                entered = rules.enter(peer, wanted) if wanted is not None else "malformed request"
                if isinstance(entered, str):
                    return _refuse(connection, entered)
                child = _started(entered, streams)
            status = _await_end(child, connection, watched=entered.watched)
            connection.sendall(b"%d\n" % status)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client is gone
        except ValueError as error:  # a zero byte, or half of a surrogate pair, in what is to be started
            _refuse(connection, f"cannot start the requested command: {error}")
        except TimeoutError:
            _report(f"a client sent no request within {ASK_BOUND_S:g} s")
        except TestbedError as error:
            _refuse(connection, str(error))
        except OSError as error:
            _refuse(connection, f"cannot start the requested command: {error.strerror or error}")


@contextlib.contextmanager
def _request(connection: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    """Yield the line of a request, and the client's streams as long as the context lasts."""
    streams: list[int] = []
    try:
        # Close-on-exec from the start: another thread may be starting a program.
        line, streams, _, _ = socket.recv_fds(connection, 1 << 16, _STREAMS, socket.MSG_CMSG_CLOEXEC)
        data = bytearray(line)
        while b"\n" not in data and len(data) < _LONGEST_BYTES and (chunk := connection.recv(1 << 16)):
            data += chunk
        yield bytes(data.partition(b"\n")[0]), streams
    finally:
        for stream in streams:
            os.close(stream)


def _started(entered: Entered, streams: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a command on the client's streams; on the proxy's own if the client, an older one, sent none."""
    stdin, stdout, stderr = streams if len(streams) == _STREAMS else (subprocess.DEVNULL, None, None)
    return subprocess.Popen(
        list(entered.argv),
        stdin=subprocess.PIPE if entered.watched else stdin, stdout=stdout, stderr=stderr,
        env=None if entered.environment is None else dict(entered.environment),
        # A watchdog ends its program itself. Otherwise the command's session is what can be signalled.
        start_new_session=not entered.watched,
    )  # fmt: skip


def _await_end(child: subprocess.Popen[bytes], connection: socket.socket, *, watched: bool) -> int:
    """Return a command's status; it is ended when ``connection`` is closed."""
    ended = os.pidfd_open(child.pid)
    try:
        poller = select.poll()
        for descriptor in (ended, connection.fileno()):
            poller.register(descriptor, select.POLLIN)
        ready = dict(poller.poll())
        if watched:
            assert child.stdin is not None
            child.stdin.close()
        elif ended not in ready:
            poller.unregister(connection.fileno())
            for number, patience_s in ((signal.SIGHUP, 0.0), (signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, number)  # not reaped yet, so the number is its own
                if poller.poll(patience_s * 1e3):
                    break
    finally:
        os.close(ended)
    return runner.shell_status(child.wait())


def _refuse(connection: socket.socket, why: str) -> None:
    """Tell the client why nothing was started."""
    with contextlib.suppress(OSError):
        connection.sendall(f"{json.dumps(why)}\n".encode())


def _report(why: str) -> None:
    print(f"launcher proxy: {why}", file=sys.stderr, flush=True)


def _parse_request(line: bytes) -> Wanted | None:
    """Parse a request; None for one that our own client would not send."""
    try:
        request: Any = json.loads(line)
        if isinstance(request, list) and all(isinstance(argument, str) for argument in request):
            return launcher_shim.parse(request)
    except (ValueError, IndexError, RecursionError):
        pass
    return None


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _listener:
        sys.exit(serve(_listener, sys.argv[4:], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])))
