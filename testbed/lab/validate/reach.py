"""How an MPI's own launcher gets into the nodes: what it calls in place of ssh, as ``reach HOST COMMAND…``.

mpiexec starts one process a host by a remote shell and speaks to it over TCP; that process starts the ranks. Here the
remote shell enters the node instead, by the argument list that ``$TESTBED_REACH``, a JSON file, has for the host.
mpiexec itself runs in the management network, which reaches all nodes: what it says to them is no collective's, and
must neither cross the fiber nor be lost with it.
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

__all__ = ["VARIABLE", "main", "write"]

VARIABLE: Final = "TESTBED_REACH"


def write(folder: Path, ways: Mapping[str, Sequence[str]]) -> tuple[Path, dict[str, str]]:
    """The program to be named to mpiexec, and the variables that it needs. ``ways``: for each name or address that a
    host may be called by, the argument list that a command is appended to."""
    table, program = folder / "reach.json", folder / "reach"
    try:
        table.write_text(json.dumps({host: list(way) for host, way in ways.items()}))
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {__name__} "$@"\n')
        program.chmod(0o755)
    except OSError as error:
        raise HostError(f"cannot write {table}: {error.strerror}") from error
    return program, {VARIABLE: str(table)}


def main(words: Sequence[str], table: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The argument list to become, for the words of a remote shell (ssh(1)): options, a host, a command of which the
    words are joined by blanks and read by a shell there. Raises KeyError for a host that is none of ours."""
    left = list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in _WITH_VALUE:
            left.pop(0)
    host = left.pop(0).rpartition("@")[2]
    return [*table[host], "sh", "-c", " ".join(left)]


_WITH_VALUE: Final = frozenset(f"-{it}" for it in "BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh(1) that take the word after them."""


if __name__ == "__main__":
    argv = main(sys.argv[1:], json.loads(Path(os.environ[VARIABLE]).read_text()))
    os.execvp(argv[0], list(argv))
