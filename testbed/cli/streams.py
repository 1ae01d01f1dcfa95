"""Our standard streams, so that a full disk, a closed descriptor or a reader that has gone is said plainly, once.

Results that cannot be written are an error. Whatever cannot be said on stderr is not said: nobody could be told, and
neither a lab nor a run may end because a terminal was closed.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from testbed.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputError", "ReaderGone", "discard_output", "flush", "install"]


class OutputError(StorageError):
    """A result could not be written to stdout."""


class ReaderGone(OutputError):
    """Whoever read our stdout has closed its end (EPIPE): nothing to say, nobody to say it to."""


class _Results(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderGone("whoever read the output has gone") from error
        except OSError as error:
            raise OutputError(f"could not write the output: {error.strerror or error}") from error


class _Remarks(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def install() -> None:
    """Put :class:`_Results` and :class:`_Remarks` below sys.stdout and sys.stderr.

    A descriptor that is closed is filled first, or the next file that we open would become our stdout. As in GNU
    programs it is filled with what cannot be used that way round: who writes to a closed stdout is told so.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free, and those below it are taken by now: this is ``descriptor``.
            os.set_inheritable(os.open(os.devnull, mode), True)
    sys.stdout = _text(_Results(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Remarks(2, "w", closefd=False), sys.stderr)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 (for as long as the program runs)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """As Python makes its own, but a character that the terminal's encoding lacks is no error."""
    encoding = before.encoding if before is not None else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=raw.isatty(), write_through=False
    )


def flush() -> None:
    """What is still in buffers, now, where a failure has somebody to tell it. Raises OutputError."""
    sys.stdout.flush()
    sys.stderr.flush()


def discard_output() -> None:
    """From now on what is written goes nowhere, so that flushing at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
