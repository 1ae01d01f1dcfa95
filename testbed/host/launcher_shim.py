"""The replacement for ssh that an MPI's own launcher calls to enter the nodes, as ``reach HOST COMMAND…``.

mpiexec starts one process a host by a remote shell and controls it over TCP; that process starts the ranks. Here the
remote shell asks the launcher proxy (``launcher_proxy.py``), root's process on the host, to enter the node: mpiexec has
no privileges. mpiexec itself runs in the management network, which reaches all nodes: its control traffic is no
collective's, and must neither cross the fiber nor be lost with it.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import HostError

__all__ = ["Wanted", "client", "parse", "table", "watchdog"]

_ANY_PYTHON: Final = """#!/bin/sh
for python in {python} python3 python; do
    if command -v "$python" >/dev/null 2>&1; then exec "$python" -I {arguments} "$@"; fi
done
echo "$0: no Python found" >&2
exit 255
"""
"""Runs a file of the standard library alone: the testbed's own Python may be barred to the user."""


@dataclass(frozen=True)
class Wanted:
    """What a remote shell is asked for: a host, a command for a shell there, and as whom (``-l``), empty if unsaid."""

    host: str
    command: str
    login: str = ""


def table(folder: Path, entries: Mapping[str, Sequence[str]]) -> Path:
    """Write a JSON file of ``entries``: for each name or address of a host, the argument list to which a command is
    appended. Raises HostError."""
    path = folder / "reach.json"
    try:
        path.write_text(json.dumps({host: list(entry) for host, entry in entries.items()}))
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    return path


def client(folder: Path, socket: Path, python: str) -> Path:
    """Write an executable that asks the proxy at ``socket``, by ``python`` or any other. Raises HostError."""
    return _any_python(folder, "reach", "launcher_client", python, [str(socket)])


def watchdog(folder: Path, python: str) -> Path:
    """Write an executable that runs its arguments until EOF on its stdin, by ``python`` or any other. Raises
    HostError."""
    return _any_python(folder, "watched", "watchdog", python, ["--"])


def _any_python(folder: Path, name: str, module: str, python: str, arguments: Sequence[str]) -> Path:
    spec = importlib.util.find_spec(f"testbed_agents.{module}")
    if spec is None or spec.origin is None:
        raise HostError("testbed_agents, a part of this testbed, is not installed")
    copy, path = folder / f"{module}.py", folder / name
    try:
        shutil.copyfile(spec.origin, copy)
        copy.chmod(0o644)
        path.write_text(_ANY_PYTHON.format(python=shlex.quote(python), arguments=shlex.join([str(copy), *arguments])))
        path.chmod(0o755)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    return path


def parse(arguments: Sequence[str]) -> Wanted:
    """Parse the arguments of a remote shell (ssh(1)): options, a host, and a command whose words are joined by blanks
    and run by a shell there. Raises IndexError if there is no host."""
    left, login = list(arguments), ""
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in _WITH_VALUE:
            value = left.pop(0)
            login = value if option == "-l" else login
    name, _, host = left.pop(0).rpartition("@")
    return Wanted(host, " ".join(left), login or name)


_WITH_VALUE: Final = frozenset(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh(1) that take a value."""
