"""How an MPI's own launcher gets into the nodes: what it calls in place of ssh, as ``reach HOST COMMAND…``.

mpiexec starts one process a host by a remote shell and speaks to it over TCP; that process starts the ranks. Here the
remote shell enters the node instead, by the argument list that ``$TESTBED_REACH``, a JSON file, has for the host.
mpiexec itself runs in the management network, which reaches all nodes: what it says to them is no collective's, and
must neither cross the fiber nor be lost with it. In a container, from where there is no way into another, it asks
outside (``relay.py``).
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.errors import HostError

__all__ = ["VARIABLE", "heard", "main", "program", "table", "write"]

VARIABLE: Final = "TESTBED_REACH"


def write(folder: Path, ways: Mapping[str, Sequence[str]]) -> tuple[Path, dict[str, str]]:
    """The program to be named to mpiexec, and the variables that it needs. ``ways``: for each name or address that a
    host may be called by, the argument list that a command is appended to. Raises HostError."""
    # -P: it is called where the user's own files may lie, and a json.py among them must not run as root.
    return program(folder, [sys.executable, "-P", "-m", __name__]), {VARIABLE: str(table(folder, ways))}


def table(folder: Path, ways: Mapping[str, Sequence[str]]) -> Path:
    """A JSON file of ``ways``, as :func:`write` takes them. Raises HostError."""
    path = folder / "reach.json"
    try:
        path.write_text(json.dumps({host: list(way) for host, way in ways.items()}))
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    return path


def program(folder: Path, argv: Sequence[str]) -> Path:
    """An executable of one word that becomes ``argv`` and the words that it is called with. Raises HostError."""
    path = folder / "reach"
    try:
        path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        path.chmod(0o755)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    return path


def heard(words: Sequence[str]) -> tuple[str, str]:
    """Host and command in the words of a remote shell (ssh(1)): options, a host, a command of which the words are
    joined by blanks and read by a shell there. Raises IndexError where there is no host."""
    left = list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in _WITH_VALUE:
            left.pop(0)
    host = left.pop(0).rpartition("@")[2]
    return host, " ".join(left)


def main(words: Sequence[str], ways: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The argument list to become, for the words of a remote shell. Raises KeyError for a host that is none of ours."""
    host, command = heard(words)
    return [*ways[host], "sh", "-c", command]


_WITH_VALUE: Final = frozenset(f"-{it}" for it in "BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh(1) that take the word after them."""


if __name__ == "__main__":
    argv = main(sys.argv[1:], json.loads(Path(os.environ[VARIABLE]).read_text()))
    os.execvp(argv[0], list(argv))
