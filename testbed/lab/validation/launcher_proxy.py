"""The launcher proxy: starts the daemons of an mpiexec, which runs in one node, in the other nodes.

mpiexec runs in the management network as an unprivileged user and cannot enter the nodes: it has no docker and no
capability. The program that it calls in place of ssh (testbed_agents/launcher_client.py) asks this
process, over a Unix socket in the run's folder, to start the daemon on a host. The argument lists for all hosts are
fixed beforehand, and each host is entered once.

The ranks' nodes see that folder too, but no rank may run programs in another's node. Ranks have the same user as
mpiexec, and so may any user on this host: only processes in the management network's namespace are accepted, which
neither can enter. mpiexec is there, and it starts each daemon itself: MPICH's hydra always does, Open MPI's prterun is
configured to (core/validation/mpi_launch.py).

All of it is one process group on the host, and only this process holds the other ends of the watchdogs' pipes
(testbed_agents/watchdog.py): however it ends, mpiexec and the daemons end. Its exit status is mpiexec's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from testbed.errors import HostError
from testbed.host import runner
from testbed.host.linux.inside import is_inside
from testbed.lab.validation import launcher_shim

__all__ = ["program", "serve", "start"]

_SOCKET: Final = "reach.socket"
_LONGEST_BYTES: Final = 1 << 20
"""Longest request: Open MPI names all hosts to each daemon."""

ASK_BOUND_S: Final = 10.0
"""A client sends its request at once. A silent one is disconnected, because it holds a thread and a descriptor."""

_BUSY_S: Final = 0.05
"""Pause before the next try when a connection could not be accepted."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group (unix(7), SO_PEERCRED)."""


def program(folder: Path, python: Sequence[str] = ("python",)) -> Path:
    """Return the executable for mpiexec to call in place of ssh. Raises HostError."""
    return launcher_shim.program(folder, [*python, "-m", "testbed_agents.launcher_client", str(folder / _SOCKET)])


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
    """Start the proxy in a session of its own; it dies with the thread that called this.

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
        with _listening(folder / _SOCKET, owner) as listener:
            # -P and /: a select.py beside the user's library must not run as root.
            line = [runner.tool("setpriv"), "--pdeathsig", "KILL", "--", sys.executable, "-P", "-m", __name__]
            return subprocess.Popen(
                [*line, str(listener.fileno()), str(table), str(within), *mpiexec],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment),
                pass_fds=[listener.fileno()], start_new_session=True, cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise HostError(f"cannot start the launcher proxy of mpiexec: {error.strerror or error}") from error


def _listening(path: Path, owner: tuple[int, int]) -> socket.socket:
    """Return a socket at ``path`` that only ``owner`` may connect to: connecting takes write permission (unix(7))."""
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as undone:
        made = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path is limited to 107 bytes
        finally:
            os.close(folder)
        path.chmod(0o600)
        os.chown(path, *owner, follow_symlinks=False)
        made.listen()
        undone.pop_all()
    return made


def serve(listener: socket.socket, mpiexec: Sequence[str], entries: Mapping[str, Sequence[str]], within: Path) -> int:
    """Run mpiexec and serve requests from ``within``, the handle of a network namespace, until it ends; return
    mpiexec's status, 128 + n for a signal n."""
    left = dict(entries)
    threading.Thread(target=_listen, args=(listener, left, within), daemon=True).start()
    return runner.shell_status(_under_watchdog(mpiexec).wait())


def _under_watchdog(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process whose stdin is a pipe with its only other end here."""
    return subprocess.Popen(list(argv), stdin=subprocess.PIPE)


def _listen(listener: socket.socket, left: dict[str, Sequence[str]], within: Path) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(_BUSY_S)  # out of file descriptors, for now: clients wait in the backlog
            continue
        # Checked before a thread starts and before a host's entry is used up: ranks may connect as often as they like.
        pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if is_inside(within, pid):
            threading.Thread(target=_answer, args=(connection, left), daemon=True).start()
        else:
            connection.close()
            _refuse(f"refused process {pid}: it is not in the management network")


def _answer(connection: socket.socket, left: dict[str, Sequence[str]]) -> None:
    """Serve one request until the daemon has ended, and send its status, or until the client is gone."""
    with connection:
        try:
            connection.settimeout(ASK_BOUND_S)
            with connection.makefile("rb") as stream:
                asked = _parse_request(stream.readline(_LONGEST_BYTES))
            connection.settimeout(None)
            if asked is None:
                return _refuse("malformed request")
            entry = left.pop(asked[0], None)
            if entry is None:
                return _refuse(f"unknown host {asked[0]}, or its daemon was started already")
            connection.sendall(b"%d\n" % _run([*entry, "sh", "-c", asked[1]], connection))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client is gone
        except TimeoutError:
            _refuse(f"a client sent no request within {ASK_BOUND_S:g} s")
        except OSError as error:
            _refuse(f"cannot start the requested command: {error.strerror or error}")


def _run(argv: Sequence[str], connection: socket.socket) -> int:
    """Run a command and return its status; it is ended when ``connection`` is closed."""
    daemon = _under_watchdog(argv)
    assert daemon.stdin is not None
    with daemon.stdin:
        watched = os.pidfd_open(daemon.pid)
        try:
            poller = select.poll()
            for it in (watched, connection.fileno()):
                poller.register(it, select.POLLIN)
            poller.poll()
        finally:
            os.close(watched)
    return runner.shell_status(daemon.wait())


def _refuse(why: str) -> None:
    print(f"launcher proxy: {why}", file=sys.stderr, flush=True)


def _parse_request(line: bytes) -> tuple[str, str] | None:
    """Parse host and command; None for a request that our own client would not send."""
    try:
        request: Any = json.loads(line)
        if isinstance(request, list) and all(isinstance(it, str) for it in request):
            return launcher_shim.parse(request)
    except (ValueError, IndexError):
        pass
    return None


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _listener:
        sys.exit(serve(_listener, sys.argv[4:], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])))
