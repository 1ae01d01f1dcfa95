"""Copy what a rank prints into its log and to whoever follows it, line by line."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import IO, TypeAlias

from testbed.errors import StorageError
from testbed.host.files.store import RunDirectory

__all__ = ["Echo", "copy"]

Echo: TypeAlias = Callable[[str], None]


def copy(rank: int, child: subprocess.Popen[bytes], run: RunDirectory, echo: Echo) -> None:
    """Copy a rank's output until it ends, even if the log cannot be written: a full pipe would block the rank."""
    assert child.stdout is not None
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | None = None
        with contextlib.suppress(StorageError):
            log = stack.enter_context(run.open_log(rank))
        for line in child.stdout:
            with contextlib.suppress(OSError):
                if log is not None:
                    log.write(line)
            echo(f"[rank {rank}] {line.decode(errors='replace').rstrip()}")
