"""An mpiexec in a container and its daemons in others: one process of this host that stands for all of them.

mpiexec runs in the management network's container, as an unprivileged user, and has no way into the nodes' containers:
no docker, no capability. What it calls in place of ssh (testbed_agents/launcher_client.py) asks this process, at a
Unix socket in the run's folder, to start the daemon on a host; the argument lists that lead there were fixed
beforehand, and each host is entered once.

The ranks' containers show that folder too, and no rank is to run programs in another's node. Ranks are the user that
mpiexec is, and so may be somebody on this host: only processes in the management network's namespace are heard, which
neither can enter. mpiexec is there, and it calls each daemon by itself: MPICH's hydra always does, Open MPI's prterun
is told to (core/validation/mpi_launch.py).

All of it is one process group here, and this process alone has the other ends of the leashes inside
(testbed_agents/watchdog.py): however it ends, mpiexec and the daemons end. Its status is mpiexec's.
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
"""Of what is asked for: Open MPI names all hosts to each daemon."""

ASK_BOUND_S: Final = 10.0
"""Who connects says at once what it asks for. One that stays silent is let go: it holds a thread and a descriptor."""

_BUSY_S: Final = 0.05
"""Pause before the next try where a connection could not be taken."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group (unix(7), SO_PEERCRED)."""


def program(folder: Path) -> Path:
    """What is to be named to an mpiexec in a container. Raises HostError."""
    return launcher_shim.program(folder, ["python", "-m", "testbed_agents.launcher_client", str(folder / _SOCKET)])


def start(
    folder: Path,
    mpiexec: Sequence[str],
    ways: Mapping[str, Sequence[str]],
    *,
    within: Path,
    owner: tuple[int, int],
    environment: Mapping[str, str],
    log: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start it, in a session of its own; it dies with the thread that called this.

    Args:
        folder: both sides see it at the same path; the socket is made there.
        mpiexec: argument list that runs mpiexec on a leash.
        ways: for each host, the argument list that a command is appended to, on a leash too.
        within: handle of the network namespace that mpiexec is in, and whoever else may ask.
        owner: user and group who may ask.
        environment: of all of them here; ``mpiexec`` says what goes inside.
        log: what they say.

    Raises HostError, MissingTool.
    """
    table = launcher_shim.table(folder, ways)
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
        raise HostError(f"mpiexec cannot be started in its container: {error.strerror or error}") from error


def _listening(path: Path, owner: tuple[int, int]) -> socket.socket:
    """A socket at ``path`` that only ``owner`` may connect to: to write to it is what that takes (unix(7))."""
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as undone:
        made = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's name may have 107 bytes, and a folder's more
        finally:
            os.close(folder)
        path.chmod(0o600)
        os.chown(path, *owner, follow_symlinks=False)
        made.listen()
        undone.pop_all()
    return made


def serve(listener: socket.socket, mpiexec: Sequence[str], ways: Mapping[str, Sequence[str]], within: Path) -> int:
    """Run mpiexec, and what is asked for meanwhile from ``within``, the handle of a network namespace; mpiexec's
    status, 128 + n for a signal n."""
    left = dict(ways)
    threading.Thread(target=_listen, args=(listener, left, within), daemon=True).start()
    return runner.shell_status(_under_watchdog(mpiexec).wait())


def _under_watchdog(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Its stdin is a pipe that nobody else has the other end of."""
    return subprocess.Popen(list(argv), stdin=subprocess.PIPE)


def _listen(listener: socket.socket, left: dict[str, Sequence[str]], within: Path) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(_BUSY_S)  # out of file descriptors, for now: whoever asks waits in the backlog
            continue
        # Before a thread is spent on it, and before a way is: ranks may knock as often as they like.
        pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if is_inside(within, pid):
            threading.Thread(target=_answer, args=(connection, left), daemon=True).start()
        else:
            connection.close()
            _refuse(f"process {pid} is not in the management network, and nothing is done for it")


def _answer(connection: socket.socket, left: dict[str, Sequence[str]]) -> None:
    """Until the daemon has ended, whose status is said then, or who asked for it is gone."""
    with connection:
        try:
            connection.settimeout(ASK_BOUND_S)
            with connection.makefile("rb") as stream:
                asked = _understood(stream.readline(_LONGEST_BYTES))
            connection.settimeout(None)
            if asked is None:
                return _refuse("what it was called with makes no sense")
            way = left.pop(asked[0], None)
            if way is None:
                return _refuse(f"no way leads to {asked[0]}, or none any more")
            connection.sendall(b"%d\n" % _run([*way, "sh", "-c", asked[1]], connection))
        except (BrokenPipeError, ConnectionResetError):
            pass  # who asked is gone
        except TimeoutError:
            _refuse("one that connected did not say what it asks for")
        except OSError as error:
            _refuse(f"what was asked for cannot be started: {error.strerror or error}")


def _run(argv: Sequence[str], connection: socket.socket) -> int:
    """Its status; it is ended when ``connection`` is."""
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
    print(f"reach: {why}", file=sys.stderr, flush=True)


def _understood(line: bytes) -> tuple[str, str] | None:
    """Host and command; None for what our own side would not say."""
    try:
        words: Any = json.loads(line)
        if isinstance(words, list) and all(isinstance(it, str) for it in words):
            return launcher_shim.heard(words)
    except (ValueError, IndexError):
        pass
    return None


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _listener:
        sys.exit(serve(_listener, sys.argv[4:], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])))
