"""Append step records as JSON lines (format: docs/design.md, "Step records").

Each line is one write(2) to a file opened for appending, so the records of a killed rank are complete.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from testbed_agents.fence import Fence, Fenced

_encoded = json.JSONEncoder(allow_nan=False).encode


class RecordsError(Exception):
    """A record could not be written; the message has the file and the reason."""


class Records:
    """Appends to the file at ``path``, creating its folder. Thread-safe. Raises RecordsError.

    With a ``fence``, each record has the number of the attempt, and none is written once a newer attempt has begun.
    """

    def __init__(self, path: Path, fence: Fence | None = None) -> None:
        self.path, self._fence = path, fence
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a full disk tore the last line; do not append to it
        except OSError as error:
            raise RecordsError(f"cannot write {path}: {error.strerror}") from error

    def write(self, kind: str, **fields: object) -> None:
        """Append one record. Numbers must be finite, as JSON has no others."""
        attempt = {"attempt": self._fence.attempt} if self._fence else {}
        line = _encoded({"kind": kind, **attempt, **fields}).encode() + b"\n"
        with self._lock:
            try:
                if self._fence:
                    self._fence.check()
            except Fenced as error:
                raise RecordsError(str(error)) from error
            if self._file < 0:
                raise RecordsError(f"{self.path} is closed")
            try:
                # A full disk accepts a part of the line first, and fails the next write.
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError as error:
                raise RecordsError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
