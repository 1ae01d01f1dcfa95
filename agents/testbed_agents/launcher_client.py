"""Replacement of ssh in nodes: ``launcher_client.py SOCKET [OPTION…] HOST COMMAND…``.

A program in a node cannot start programs in another one. So this client sends its arguments, as one line with a JSON
list, and its stdin, stdout and stderr to the launcher proxy listening at SOCKET on the host, which runs the command on
these streams. The answer, sent when the command has ended, is one line with its exit status, which this client exits
with, or with why it was not started, as a JSON string. If the client ends earlier, the proxy ends the command.

It imports only the standard library: where the testbed's own Python is barred, any other runs it as a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

LOST = 255
"""Exit status if there is none of the command's, like ssh's (ssh(1))."""


def run(path: Path, command: Sequence[str]) -> int:
    """Run ``words`` by the launcher proxy at ``path``; return the exit status, or ``LOST``."""
    try:
        os.chdir(path.parent)  # a socket's path is limited to 107 bytes (unix(7))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as proxy:
            proxy.connect(path.name)
            with contextlib.suppress(BrokenPipeError):  # refused already; why can be read
                _send(proxy, json.dumps(list(command)).encode() + b"\n")
            with proxy.makefile("rb") as stream:
                answer = stream.readline().strip()
    except ConnectionResetError:
        answer = b""
    except OSError as error:
        print(f"{path}: {error.strerror or error}", file=sys.stderr)
        return LOST
    if answer.isdigit():
        return int(answer)
    if answer:  # otherwise the proxy has ended, and with it what both served
        print(f"launcher proxy: {_why(answer)}", file=sys.stderr)
    return LOST


def _send(proxy: socket.socket, line: bytes) -> None:
    """Send a request, and the three streams with its first bytes."""
    streams = []
    for number in range(3):
        try:
            os.fstat(number)
            streams.append(number)
        except OSError:  # closed, as with `<&-`
            streams.append(os.open(os.devnull, os.O_RDWR))
    sent = socket.send_fds(proxy, [line], streams)
    if unsent := line[sent:]:
        proxy.sendall(unsent)


def _why(answer: bytes) -> str:
    try:
        return str(json.loads(answer))
    except ValueError:
        return answer.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
