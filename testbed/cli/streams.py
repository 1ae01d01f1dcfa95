"""Standard streams that report a full disk, a closed descriptor or a vanished reader once, as a plain message.

A result that cannot be written to stdout is an error. Failed writes to stderr are ignored: no one would see the report,
and neither a lab nor a run may end because a terminal was closed.
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
    """The reader of stdout has closed its end (EPIPE); the program ends without a message."""


class _Results(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderGone("the reader of the output has closed it") from error
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

    A closed descriptor is filled first, or the next file opened would become stdout. As in GNU programs it is opened in
    the wrong direction, so that a write to a closed stdout still fails.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free descriptor. Those below are taken, so this is ``descriptor``.
            os.set_inheritable(os.open(os.devnull, mode), True)
    sys.stdout = _text(_Results(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Remarks(2, "w", closefd=False), sys.stderr)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 (for as long as the program runs)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """Wrap ``raw`` as Python does, but replace characters that the terminal's encoding lacks."""
    encoding = before.encoding if before is not None else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=raw.isatty(), write_through=False
    )


def flush() -> None:
    """Flush both streams now, while a failure can still be reported. Raises OutputError."""
    sys.stdout.flush()
    sys.stderr.flush()


def discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
