"""Runs a program for as long as somebody holds our stdin: ``python -m testbed_agents.leash -- PROGRAM…``.

What is started in a container by ``docker exec`` goes on when the one who asked for it is gone. This ends it: end of
file on stdin is SIGTERM to the program's session, and SIGKILL when that did not help. Our status is the program's,
128 + n for a signal n.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

GRACE_S = 5.0
READ_BYTES = 1 << 12


def run(argv: Sequence[str], stdin: int = 0) -> int:
    """Start ``argv`` without a stdin of its own and wait for it, or for the end of file on ``stdin``."""
    try:
        child = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, start_new_session=True)
    except FileNotFoundError:
        print(f"{argv[0]}: not found in this container", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 126
    watched = os.pidfd_open(child.pid)
    held = True
    while child.poll() is None:
        ready, _, _ = select.select([watched, stdin] if held else [watched], [], [], None if held else GRACE_S)
        if stdin in ready and not os.read(stdin, READ_BYTES):
            held = False
            _signal(child.pid, signal.SIGTERM)
        elif not ready:
            _signal(child.pid, signal.SIGKILL)
    _signal(child.pid, signal.SIGKILL)  # what it started and left behind
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _signal(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run(words[1:] if words[:1] == ["--"] else words))
