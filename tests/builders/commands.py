"""Commands that tests run, and what they must end with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oracles import oracle

Done = subprocess.CompletedProcess[str]
Child = subprocess.Popen[str]
Command = oracle.Command

TESTBED = [sys.executable, "-m", "testbed"]


def words_of(line: str, *arguments: object) -> list[str]:
    """Return the words of a command as it is typed, and ``arguments`` as they are."""
    return [*shlex.split(line), *map(str, arguments)]


def argv_of(line: str, *arguments: object) -> list[str]:
    """Return the words of ``testbed`` and a command of it."""
    return [*TESTBED, *words_of(line, *arguments)]


def run_line(line: str, *arguments: object, **options: Any) -> str:
    """Run a program, which must succeed; return its output."""
    return oracle.run(*words_of(line, *arguments), **options)


def captured(argv: Sequence[object], **options: Any) -> Done:
    """Run a program; return its status and output."""
    return subprocess.run([str(word) for word in argv], **{"capture_output": True, "text": True, **options})


def piped(argv: Sequence[str | Path], **options: Any) -> Child:
    """Start a program whose output is read from pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in argv], **{**pipes, **options})


def check(done: Done) -> str:
    """Return the output of a command, which must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_refused(done: Done, status: int, *sentences: str) -> None:
    """A command must have failed with a status, and have each of ``sentences`` in its stderr."""
    assert done.returncode == status, done.stderr
    assert [sentence for sentence in sentences if sentence not in done.stderr] == [], done.stderr
