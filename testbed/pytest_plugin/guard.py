"""Take labs down when pytest cannot: after SIGKILL, or after a library crashed the interpreter.

A small separate process watches the one that runs the tests, and ends with it. It is started with the first lab, from
this file's path; it needs neither pytest nor, until a lab must be taken down, the testbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

__all__ = ["Guard"]


class Guard:
    """The test process's side: tells the guard which labs to take down if this process dies."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._remembered: dict[str, bytes] = {}
        """The message about each lab, repeated to a new guard if this one is killed."""

    def remember(self, name: str) -> None:
        """Register a lab; call before bring-up, during which this process may die."""
        state = os.environ.get("TESTBED_STATE")
        self._remembered[name] = _line("remember", name, str(Path(state).absolute()) if state else None)
        self._send(self._remembered[name])

    def forget(self, name: str) -> None:
        """Unregister a lab; call after it is down."""
        self._remembered.pop(name, None)
        self._send(_line("forget", name, None))

    def _send(self, line: bytes) -> None:
        if self._child is None or self._child.poll() is not None:
            line = b"".join(self._remembered.values())
            self._child = subprocess.Popen(
                [sys.executable, __file__, str(os.getpid()), str(Path(__file__).parents[2])],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal is pytest's
                cwd="/",
            )
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard has just been killed: the next message starts another
            self._child.stdin.write(line)


def _line(what: str, name: str, state: str | None) -> bytes:
    return json.dumps({"do": what, "name": name, "state": state}).encode() + b"\n"


def watch(parent: int, root: str) -> None:
    """Read which labs to remember until ``parent`` has ended, then take down the remaining ones."""
    remembered: dict[str, str | None] = {}
    try:
        alive = [os.pidfd_open(parent)]  # not only stdin, whose other end its forked children hold too
    except ProcessLookupError:
        alive = []
    unfinished = b""
    while 0 in select.select([0, *alive], [], [])[0] and (data := os.read(0, 65536)):
        *lines, unfinished = (unfinished + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] == "remember":
                remembered[message["name"]] = message["state"]
            else:
                remembered.pop(message["name"], None)
    if remembered:
        _down(remembered, root)


def _down(remembered: dict[str, str | None], root: str) -> None:
    # Run as a file, this process has the plugin's folder first in sys.path; replace it with the project's root.
    sys.path[0] = root
    from testbed.lab import api

    for name, state in remembered.items():
        os.environ.pop("TESTBED_STATE", None)
        if state is not None:
            os.environ["TESTBED_STATE"] = state
        try:
            api.down(name)
        except Exception as error:  # continue with the next lab
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
