"""Step records: JSON, one object a line, appended (contract: docs/design.md, "Step records").

Each line is one write(2) to a file opened for appending: what a rank recorded before it was killed is whole.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from testbed_agents.fence import Fence, Fenced


class RecordsError(Exception):
    """A record could not be kept; says which file and why."""


class Records:
    """Appends to the file at ``path``, making its folder. May be used from several threads. Raises RecordsError.

    With a ``fence`` each record says of which attempt it is, and none is written once a newer one has begun.
    """

    def __init__(self, path: Path, fence: Fence | None = None) -> None:
        self.path, self._fence = path, fence
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a full disk tore the last line: ours must not be lost with it
        except OSError as error:
            raise RecordsError(f"cannot write {path}: {error.strerror}") from error

    def write(self, kind: str, **fields: object) -> None:
        """Append one record. Numbers must be finite: JSON has no others."""
        attempt = {"attempt": self._fence.attempt} if self._fence else {}
        line = json.dumps({"kind": kind, **attempt, **fields}, allow_nan=False).encode() + b"\n"
        with self._lock:
            try:
                if self._fence:
                    self._fence.check()
            except Fenced as error:
                raise RecordsError(str(error)) from error
            if self._file < 0:
                raise RecordsError(f"{self.path} is closed")
            try:
                # A full disk takes a part of the line first, and says so at the next write.
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError as error:
                raise RecordsError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Nothing can be written afterwards. Closing twice is no error."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
