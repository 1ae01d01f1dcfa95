"""Stand-in for ssh of an mpiexec in a container: ``python -m testbed_agents.launcher_client SOCKET HOST COMMAND…``.

From a container there is no way into another. So this says the words that it was called with to whoever listens at
SOCKET, outside of all containers, who runs the command there: one JSON list in one line. The answer is one line too,
the command's status, and comes when it has ended; ours is the same. If we end before, the command is ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

LOST = 255
"""Our status, as ssh's (ssh(1)), where there is none of the command's."""


def ask(path: Path, words: Sequence[str]) -> int:
    """The status of the command that ``words`` ask for, or ``LOST``."""
    try:
        os.chdir(path.parent)  # a socket's name may have 107 bytes (unix(7)), and a folder's more
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
