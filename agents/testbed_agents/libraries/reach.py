"""Stands for ssh where an mpiexec starts its daemons: ``python -m testbed_agents.libraries.reach [-x…] HOST COMMAND…``.

An mpiexec has no way into the nodes of a lab; who started it has. So this asks, by one line of JSON into the FIFO
``$TESTBED_REACH``:

    {"host": "10.1.1.2", "argv": ["/bin/sh", "-c", "…"], "environment": {…}, "status": "/…/reach-10.1.1.2-….status"}

and waits for the file ``status``, which holds the exit status of the command, in decimal digits; it is ours too then.
``{"end": status}`` asks for the command's end: the mpiexec sent SIGTERM, or is gone. As with sshd a shell reads the
command: the mpiexecs quote it for one. Nothing of the environment that belongs to this node alone is passed on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

POLL_S = 0.02
OF_THIS_NODE = ("HOSTNAME", "RANK", "LOCAL_RANK", "TESTBED_NODE", "TESTBED_SITE")


class _Ended(Exception):
    """Who started us wants the command's end."""


def reach(host: str, command: str, requests: Path) -> int:
    """Have ``command`` run on ``host`` by the reader of ``requests``; its exit status, 128 + n for a signal n."""
    try:
        fifo = os.open(requests, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        print(f"{requests}: {error.strerror}; nobody can reach {host}", file=sys.stderr)
        return 255  # ssh's, when it cannot connect
    os.set_blocking(fifo, True)
    status = requests.parent / f"reach-{host}-{time.monotonic_ns()}.status"
    environment = {name: value for name, value in os.environ.items() if name not in OF_THIS_NODE}
    argv = ["/bin/sh", "-c", command]
    parent = os.pidfd_open(os.getppid())
    watch = select.poll()
    watch.register(fifo, 0)  # an error, when the last reader has closed it
    watch.register(parent, select.POLLIN)
    try:
        _tell(fifo, {"host": host, "argv": argv, "environment": environment, "status": str(status)})
        while not status.exists():
            for number, _ in watch.poll(POLL_S * 1000):
                if number == fifo:
                    return 255
                raise _Ended
        return int(status.read_text())
    except _Ended:
        with contextlib.suppress(BrokenPipeError):
            _tell(fifo, {"end": str(status)})
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        return 255


def _tell(fifo: int, request: dict[str, Any]) -> None:
    # Several of us write to it, and only 4096 bytes go in one piece (pipe(7)).
    fcntl.flock(fifo, fcntl.LOCK_EX)
    try:
        line = json.dumps(request).encode() + b"\n"
        while line:
            line = line[os.write(fifo, line) :]
    finally:
        fcntl.flock(fifo, fcntl.LOCK_UN)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


def main(words: Sequence[str]) -> int:
    words = list(words)
    while words and words[0].startswith("-"):  # ssh's options; ours has none
        words.pop(0)
    if len(words) < 2 or "TESTBED_REACH" not in os.environ:
        print("usage: TESTBED_REACH=FIFO reach HOST COMMAND…", file=sys.stderr)
        return 255
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return reach(words[0], " ".join(words[1:]), Path(os.environ["TESTBED_REACH"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
