"""Programs that tests start, and what /proc reports of processes and descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import pytest
from oracles import oracle

BOUND_S = 20.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Child(subprocess.Popen[str]):
    """A program with pipes to its stdin and from its stdout. The end of a ``with`` block kills it."""

    def __init__(self, *words: object, **options: Any) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        super().__init__([str(word) for word in words], **{**pipes, **options})

    def read_line(self) -> str:
        return cast("IO[str]", self.stdout).readline().strip()

    def __exit__(self, *exception: Any) -> None:
        self.kill()
        super().__exit__(*exception)


def python(code: str, *words: object, **options: Any) -> Child:
    """Start Python code with ``words`` as its arguments."""
    return Child(sys.executable, "-c", code, *words, **options)


def write_program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def state(pid: int) -> str:
    """Return the state of a process, of proc_pid_stat(5); empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def has_ended(pid: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it."""
    return state(pid) in ("", "Z")


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def until_ended(*pids: int) -> None:
    """Wait for the end of processes, not for a parent that waits for them: that of orphans may take a second."""
    oracle.until(lambda: all(map(has_ended, pids)), BOUND_S, f"processes {pids} have ended")


def until_gone(*pids: int) -> None:
    oracle.until(lambda: all(map(is_gone, pids)), BOUND_S, f"processes {pids} have ended and are waited for")


def open_files() -> set[str]:
    """Return the numbers of this process's descriptors."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def call_by_sudo(monkeypatch: pytest.MonkeyPatch, uid: object = 4242, gid: object = 4343) -> None:
    """Set the environment that sudo sets for a command of this user."""
    monkeypatch.setenv("SUDO_UID", str(uid))
    monkeypatch.setenv("SUDO_GID", str(gid))
