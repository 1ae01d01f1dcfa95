"""Keeps late writers of an old attempt out.

A job that restarts numbers its attempts from 1. Before one starts, whoever starts it writes its number into one file;
a rank reads it before each thing that it commits, a record or a checkpoint. A rank that was paused in an old attempt
and wakes in a later one finds a newer number and writes nothing more.
"""

from __future__ import annotations

from pathlib import Path

FILE = "attempt"


class Fenced(Exception):
    """A newer attempt has begun: this one may write nothing more."""


class Fence:
    """``directory`` is the job's folder. Where no number is kept, nothing restarts, and nobody is kept out."""

    def __init__(self, directory: Path, attempt: int) -> None:
        self._path, self.attempt = directory / FILE, attempt

    def check(self) -> None:
        """Raises Fenced."""
        try:
            now = int(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return
        if now > self.attempt:
            raise Fenced(f"attempt {now} has begun, so attempt {self.attempt} writes nothing more")
