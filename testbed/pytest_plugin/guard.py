"""Takes labs down when pytest can no longer do it itself: after SIGKILL, or a library that crashed the interpreter.

A small process of its own watches the one that runs the tests, and ends with it. It is started with the first lab, by
this file's path: it needs neither pytest nor, as long as all goes well, the testbed.
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
    """Our end: which labs are to be taken down if we die."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._remembered: dict[str, bytes] = {}
        """What a guard must know of each lab; the next one, if somebody ends this one."""

    def remember(self, name: str) -> None:
        """Before the lab is brought up: we may die while it is."""
        state = os.environ.get("TESTBED_STATE")
        self._remembered[name] = _line("remember", name, str(Path(state).absolute()) if state else None)
        self._say(self._remembered[name])

    def forget(self, name: str) -> None:
        """After it is down."""
        self._remembered.pop(name, None)
        self._say(_line("forget", name, None))

    def _say(self, line: bytes) -> None:
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
        with contextlib.suppress(BrokenPipeError):  # it has been ended just now: the next word finds that out
            self._child.stdin.write(line)


def _line(what: str, name: str, state: str | None) -> bytes:
    return json.dumps({"do": what, "name": name, "state": state}).encode() + b"\n"


def watch(parent: int, root: str) -> None:
    """Hear what to remember until ``parent`` is gone, then take down what is left."""
    remembered: dict[str, str | None] = {}
    try:
        alive = [os.pidfd_open(parent)]  # as well as our stdin, whose other end a process that it forked holds too
    except ProcessLookupError:
        alive = []
    rest = b""
    while 0 in select.select([0, *alive], [], [])[0] and (data := os.read(0, 65536)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if said["do"] == "remember":
                remembered[said["name"]] = said["state"]
            else:
                remembered.pop(said["name"], None)
    if remembered:
        _down(remembered, root)


def _down(remembered: dict[str, str | None], root: str) -> None:
    # Run as a file, we have the plugin's folder first in the path; its modules are no top-level ones.
    sys.path[0] = root
    from testbed.lab import api

    for name, state in remembered.items():
        os.environ.pop("TESTBED_STATE", None)
        if state is not None:
            os.environ["TESTBED_STATE"] = state
        try:
            api.down(name)
        except Exception as error:  # whatever it is, the next lab is taken down
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
