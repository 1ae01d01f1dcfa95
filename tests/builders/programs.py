"""Programs that tests run from the repository's root, and harnesses in C that they compile."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from builders import ROOT
from builders.commands import Done, captured

FIBERD = ROOT / "testbed" / "fiberd"


def run(*argv: object, **options: Any) -> Done:
    """Run a program and capture its output, in the repository's root and for at most 60 s unless told otherwise."""
    return captured(argv, **{"cwd": ROOT, "timeout": 60, **options})


def python(*arguments: object, **options: Any) -> Done:
    return run(sys.executable, *arguments, **options)


def c_compiler() -> str:
    """Return a C compiler, or skip the test."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    return compiler


def compile_c(program: Path, sources: Iterable[Path], *flags: str, sanitized: tuple[str, ...] = ()) -> Path:
    """Compile a program with fiberd's headers; ``sanitized``: flags that are left out where they fail, as with musl."""
    argv = [c_compiler(), "-std=c11", "-D_GNU_SOURCE", f"-I{FIBERD}", *flags, "-o", program, *sources, "-lm"]
    if not sanitized or run(*argv, *sanitized, timeout=300).returncode != 0:
        run(*argv, check=True, timeout=300)
    return program
