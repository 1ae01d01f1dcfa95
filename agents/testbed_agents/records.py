"""Append step records as JSON lines (format: docs/design.md, "Step records"), and fence off late writers.

Each line is one write(2) to a file opened for appending, so the records of a killed rank are complete.

A job numbers its attempts from 1. Before an attempt starts, its number is written to a file, which each rank reads
before it commits a record or a checkpoint. A rank that was paused in an earlier attempt and resumes later finds a newer
number and writes nothing more.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

_encoded = json.JSONEncoder(allow_nan=False).encode

ATTEMPT_FILE = "attempt"


class Fenced(Exception):
    """A newer attempt has begun; this one must not write."""


class Fence:
    """The fence of one attempt. ``directory`` is the job's folder; without a number in it, every write is allowed."""

    def __init__(self, directory: Path, attempt: int) -> None:
        self._path, self.attempt = directory / ATTEMPT_FILE, attempt

    def check(self) -> None:
        """Raises Fenced."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)  # twice a step, in half of Path.read_text's time
            try:
                newest = int(os.read(file, 32))
            finally:
                os.close(file)
        except (FileNotFoundError, ValueError):
            return
        if newest > self.attempt:
            raise Fenced(f"attempt {newest} has begun, so attempt {self.attempt} must not write")


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
