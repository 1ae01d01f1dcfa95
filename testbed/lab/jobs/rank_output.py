"""Copy what a rank prints into its log and to those who follow it, line by line, and stamp it for its progress."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import IO, Final, TypeAlias

from testbed.errors import StorageError
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs.progress_output import StreamLines
from testbed.lab.jobs.rank_launcher import RankProcess

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
    echoes: tuple[Echo, Echo],
    progress: tuple[StreamLines | None, StreamLines | None] = (None, None),
) -> None:
    """Copy a rank's output until it ends, even if the log cannot be written: a full pipe would block the rank.

    ``label`` is what each line of it is prefixed with, in brackets. ``echoes`` get the lines of stdout and of stderr,
    and ``progress`` what was read of each, with the time. The log has both, in the order in which they were read: lines
    of the two streams that are less than a millisecond apart may change places, lines of one stream never. Both streams
    are closed at their end.
    """
    assert child.stdout is not None and child.stderr is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(child.stdout)
        stack.enter_context(child.stderr)
        log: IO[bytes] | None = None
        with contextlib.suppress(StorageError):
            log = stack.enter_context(run.open_log(rank))
        _Copy(label, log, (child.stdout.fileno(), child.stderr.fileno()), echoes, progress).run()


class _Copy:
    """The two streams of a rank while they are read."""

    def __init__(
        self,
        label: str,
        log: IO[bytes] | None,
        streams: tuple[int, int],
        echoes: tuple[Echo, Echo],
        progress: tuple[StreamLines | None, StreamLines | None],
    ) -> None:
        self._label, self._log = label, log
        self._echo, self._progress = dict(zip(streams, echoes, strict=True)), dict(zip(streams, progress, strict=True))
        self._rest = dict.fromkeys(streams, b"")

    def run(self) -> None:
        poll = select.poll()
        for stream in self._rest:
            poll.register(stream, select.POLLIN)
        heeded = [stream_lines for stream_lines in self._progress.values() if stream_lines is not None]
        while self._rest:
            ready = poll.poll(_QUIET_MS if heeded else None)
            if not ready:
                for stream_lines in heeded:
                    stream_lines.quiet()
                ready = poll.poll()
            for stream in [
                stream for stream in self._rest if any(stream == readable for readable, _ in ready)
            ]:  # stdout first
                if not self._read(stream):
                    poll.unregister(stream)
                    del self._rest[stream]

    def _read(self, stream: int) -> bool:
        """Pass on what can be read; return whether more may come."""
        data, progress = os.read(stream, _READ_BYTES), self._progress[stream]
        if progress is not None:
            progress.feed(time.monotonic(), data)
        whole, end, unfinished = (self._rest[stream] + data).rpartition(b"\n")
        if end:
            self._pass_on(stream, whole + end)
        if unfinished and (not data or len(unfinished) >= _LONGEST_BYTES):
            self._pass_on(stream, unfinished)
            unfinished = b""
        self._rest[stream] = unfinished
        if not data and progress is not None:
            progress.end()
        return bool(data)

    def _pass_on(self, stream: int, whole: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._log is not None:
                self._log.write(whole if whole.endswith(b"\n") or len(whole) >= _LONGEST_BYTES else whole + b"\n")
        for line in whole.removesuffix(b"\n").split(b"\n"):
            self._echo[stream](f"[{self._label}] {_last_drawn(line).decode(errors='replace').rstrip()}")


def _last_drawn(line: bytes) -> bytes:
    """Return what a terminal would show: a progress bar draws each state over the one before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
