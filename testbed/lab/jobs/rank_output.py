"""Copy what a rank prints into its log and to whoever follows it, line by line, and stamp it for its progress."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import IO, Final, TypeAlias

from testbed.errors import StorageError
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs.progress_output import StreamLines
from testbed.lab.jobs.rank_process import RankProcess

__all__ = ["Echo", "copy"]

Echo: TypeAlias = Callable[[str], None]

_READ_BYTES: Final = 1 << 16
_LONGEST_BYTES: Final = 1 << 16
"""A longer line is passed on in parts, so that a program that never ends one takes no memory."""
_QUIET_MS: Final = 200.0
"""After this long without output, the state of a progress bar counts as drawn."""


def copy(
    rank: int,
    label: str,
    child: RankProcess,
    run: RunDirectory,
    echo: Echo,
    progress: StreamLines | None = None,
) -> None:
    """Copy a rank's output until it ends, even if the log cannot be written: a full pipe would block the rank.

    ``label`` is what each line of it is prefixed with for ``echo``, in brackets.
    ``progress`` receives it with the time at which it was read.
    """
    assert child.stdout is not None
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | None = None
        with contextlib.suppress(StorageError):
            log = stack.enter_context(run.open_log(rank))

        def pass_on(whole: bytes) -> None:
            with contextlib.suppress(OSError):
                if log is not None:
                    log.write(whole)
            for line in whole.removesuffix(b"\n").split(b"\n"):
                echo(f"[{label}] {_last_drawn(line).decode(errors='replace').rstrip()}")

        rest = b""
        for data in _read(child.stdout.fileno(), progress):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end:
                pass_on(whole + end)
            if len(rest) >= _LONGEST_BYTES:
                pass_on(rest)
                rest = b""
        if rest:
            pass_on(rest)


def _read(stream: int, progress: StreamLines | None) -> Iterator[bytes]:
    """Yield what can be read, as soon as it can, until the end."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while True:
        if progress is not None and not poll.poll(_QUIET_MS):
            progress.quiet()
            poll.poll()
        data = os.read(stream, _READ_BYTES)
        if progress is not None:
            progress.feed(time.monotonic(), data)
        if not data:
            break
        yield data
    if progress is not None:
        progress.end()


def _last_drawn(line: bytes) -> bytes:
    """Return what a terminal would show: a progress bar draws each state over the one before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
