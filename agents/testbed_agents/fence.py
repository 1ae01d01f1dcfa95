"""Fence off late writers of an earlier attempt.

A job numbers its attempts from 1. Before an attempt starts, its number is written to a file, which each rank reads
before it commits a record or a checkpoint. A rank that was paused in an earlier attempt and resumes later finds a newer
number and writes nothing more.
"""

from __future__ import annotations

import os
from pathlib import Path

FILE = "attempt"


class Fenced(Exception):
    """A newer attempt has begun; this one must not write."""


class Fence:
    """The fence of one attempt. ``directory`` is the job's folder; without a number in it, every write is allowed."""

    def __init__(self, directory: Path, attempt: int) -> None:
        self._path, self.attempt = directory / FILE, attempt

    def check(self) -> None:
        """Raises Fenced."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)  # twice a step, in half of Path.read_text's time
            try:
                now = int(os.read(file, 32))
            finally:
                os.close(file)
        except (FileNotFoundError, ValueError):
            return
        if now > self.attempt:
            raise Fenced(f"attempt {now} has begun, so attempt {self.attempt} must not write")
