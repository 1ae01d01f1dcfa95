"""Start and control the fork server of the training agents.

docs/design.md has the protocol (JSON lines). The agents' package is never imported here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import LabError
from testbed.host import installation
from testbed.host.linux import process

MODULE = "testbed_agents.fork_server"

READ_BYTES = 1 << 16
READS_AT_ONCE = 16
"""Events are not kept waiting by a flood of output."""


def missing() -> str:
    """Return why this Python cannot run agents; empty if it can."""
    for name in ("torch", "testbed_agents"):
        if importlib.util.find_spec(name) is None:
            install = installation.adding("agents") if name == "torch" else installation.again()
            return f"package {name} is not installed; install it with: {install}"
    return ""


def start(argv: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start the process of a fork server, which then imports torch; the kernel ends it together with this thread.

    ``argv`` replaces the command, to start it in a container.
    """
    # While it imports torch, for seconds, it does not read stdin and would miss EOF.
    dying = [setpriv, "--pdeathsig", "KILL", "--"] if (setpriv := shutil.which("setpriv")) else []
    return subprocess.Popen(
        list(argv) or [*dying, sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A pipe: ranks without privileges inherit it, and must not hold the log, which is root's.
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


class ForkServer:
    """A process that imports torch once and forks the ranks.

    ``heard`` is called with every event, from a thread of this object; the last event is ``gone``, with a description
    in ``how``.
    """

    def __init__(
        self,
        log: Path,
        heard: Callable[[dict[str, Any]], None],
        child: subprocess.Popen[bytes],
        elsewhere: bool = False,
    ) -> None:
        """``child`` is the process from :func:`start`; ``elsewhere``: whether ``argv`` was passed there."""
        self._heard, self._child, self._elsewhere = heard, child, elsewhere
        self._lock = threading.Lock()
        self.exited = threading.Event()
        self._warm = False
        try:
            self._log = log.open("ab", buffering=0)
        except OSError:
            child.kill()
            child.wait()
            raise
        self.pid = self._child.pid
        self.began = process.started(self.pid)
        threading.Thread(target=self._listen, name="agents", daemon=True).start()

    @property
    def warm(self) -> bool:
        """Whether it has imported torch; messages sent before are handled afterwards."""
        return self._warm

    def say(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises LabError if the fork server has ended."""
        line = json.dumps(message).encode() + b"\n"
        assert self._child.stdin is not None
        with self._lock:
            try:
                self._child.stdin.write(line)
                self._child.stdin.flush()
            except (OSError, ValueError) as error:
                raise LabError("the training agents have ended") from error

    def stop(self) -> None:
        """End the fork server and all its ranks."""
        assert self._child.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            # While it imports torch it reads no stdin; it has no ranks yet, so SIGKILL is safe.
            self._child.wait(2.0 if self._warm else 0.0)
        except subprocess.TimeoutExpired:
            self._child.kill()  # not reaped, so the pid is its own even if its start time could not be read
            self._child.wait()

    def _listen(self) -> None:
        assert self._child.stdout is not None and self._child.stderr is not None
        with self._log, self._child.stdout as events, self._child.stderr as output:
            unread, writing = b"", True
            for stream in (events, output):
                os.set_blocking(stream.fileno(), False)
            while True:
                poll = select.poll()
                for stream in (events, output) if writing else (events,):
                    poll.register(stream, select.POLLIN)
                poll.poll()
                # The log first: what a process wrote before an event is there when the event is handled.
                writing = writing and self._copy(output.fileno())
                try:
                    got = os.read(events.fileno(), READ_BYTES)
                except BlockingIOError:
                    continue
                *lines, unread = (unread + got).split(b"\n")
                for line in lines:
                    self._handle(line)
                if not got:
                    self._copy(output.fileno())
                    break
        code = self._child.wait()
        self.exited.set()
        # `docker exec` reports a signal as a shell does.
        number = -code if code < 0 else code - 128 if self._elsewhere and code > 128 else 0
        how = {"signal": number} if number else {"code": code}
        self._heard({"event": "gone", "how": process.how_ended(code), **how, "t": time.monotonic()})

    def _copy(self, output: int) -> bool:
        """Append to the log what was written so far; False at the end of it. A full disk loses it."""
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(output, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            with contextlib.suppress(OSError):
                self._log.write(data)
        return True

    def _handle(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # a library in the child printed to stdout
        if isinstance(event, dict):
            self._warm = True
            self._heard(event)
