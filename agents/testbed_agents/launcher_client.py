"""Replacement of ssh for mpiexec in a container: ``python -m testbed_agents.launcher_client SOCKET HOST COMMAND…``.

A container cannot start programs in another one. So this client sends its arguments, as one line with a JSON list, to
the launcher proxy listening at SOCKET on the host, which runs the command. The answer, sent when the command has ended,
is one line with its exit status, which this client exits with. If the client ends earlier, the proxy ends the command.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

LOST = 255
"""Exit status if there is none of the command's, like ssh's (ssh(1))."""


def ask(path: Path, words: Sequence[str]) -> int:
    """Run ``words`` by the launcher proxy at ``path``; return the exit status, or ``LOST``."""
    try:
        os.chdir(path.parent)  # a socket's path is limited to 107 bytes (unix(7))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.connect(path.name)
            asked.sendall(json.dumps(list(words)).encode() + b"\n")
            with asked.makefile("rb") as stream:
                answer = stream.readline().strip()
    except OSError as error:
        print(f"{path}: {error.strerror or error}", file=sys.stderr)
        return LOST
    return int(answer) if answer.isdigit() else LOST


if __name__ == "__main__":
    sys.exit(ask(Path(sys.argv[1]), sys.argv[2:]))
