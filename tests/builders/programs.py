"""Programs that tests run from the repository's root, and harnesses in C that they compile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIBERD = ROOT / "testbed" / "fiberd"


def run(*argv: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output, in the repository's root and for at most 60 s unless told otherwise."""
    defaults = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([str(word) for word in argv], **{**defaults, **options})


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
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
