"""Programs run on a user's behalf: here, and inside nodes by nsenter(1). Always an argument list, never a shell."""

from __future__ import annotations

import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool

UTIL_LINUX = "apt-get install util-linux"


@dataclass(frozen=True)
class Place:
    """Where a program runs: the network namespace, and for a node its other handles too."""

    net: Path
    handles: Path | None = None

    leashed = False
    """Whether what runs inside ends with its stdin."""

    def enter(
        self, argv: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """The argument list that runs ``argv`` inside; it dies with the thread that started it.

        ``environment`` is inherited, so there is nothing to be said of it. Raises MissingTool if util-linux's nsenter
        or setpriv is not there.
        """
        nsenter, setpriv = tool("nsenter"), tool("setpriv")
        line = [setpriv, "--pdeathsig", "KILL", "--", nsenter, f"--net={self.net}"]
        if self.handles is not None:
            line += [
                f"--{option}={self.handles / kind}"
                for option, kind in (("uts", "uts"), ("ipc", "ipc"), ("mount", "mnt"))
            ]
        if folder is not None:
            line.append(f"--wd={folder}")
        return [*line, "--", *argv]

    def visit(self, argv: Sequence[str]) -> list[str]:
        """As :meth:`enter`, for a person at our terminal, in the folder where they are."""
        return self.enter(argv, Path.cwd())


def tool(name: str) -> str:
    """Path of a program of util-linux. Raises MissingTool."""
    found = shutil.which(name)
    if found is None:
        raise MissingTool(name, UTIL_LINUX)
    return found


def run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run with our own stdin, stdout and stderr; exit status, 128 + n for a signal n as a shell says it."""
    status = subprocess.call(list(argv), env=dict(environment) if environment is not None else None)
    return 128 - status if status < 0 else status


def spawn(argv: Sequence[str], environment: Mapping[str, str], *, leashed: bool = False) -> subprocess.Popen[bytes]:
    """Start in a session of its own, with stdout and stderr in one pipe and no stdin, or, ``leashed``, one that says
    nothing and ends with us."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE if leashed else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )


def start_resident(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives us: a session of its own, errors in ``log``, its first words on its stdout."""
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )


def first_line(child: subprocess.Popen[bytes], bound_s: float) -> str:
    """The first line that a child says on its stdout; empty if it ends or stays silent for ``bound_s`` seconds."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], bound_s)
    with child.stdout:
        return child.stdout.readline().decode(errors="replace").strip() if ready else ""
