"""Progress of many predictions: a line that is redrawn on a terminal, a line now and then in a file."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self, TypeVar

from testbed.cli import console

__all__ = ["Counted"]

SILENT_S: Final = 1.0
"""What takes no longer shows no progress."""
Result = TypeVar("Result")


class Counted:
    """Count results as they come, on stderr: ``counted(result)`` returns ``result``."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._drawn = console.err().is_terminal
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._next_s = time.monotonic() + SILENT_S
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._drawn and self._done and not console.quiet():
            console.err().print(" " * 40, end="\r")

    def __call__(self, result: Result) -> Result:
        self._done += 1
        if not console.quiet() and self._done < self._total and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + (0.2 if self._drawn else console.TICK_EVERY_S)
            console.err().print(f"{self._done} of {self._total} {self._what}", end="\r" if self._drawn else "\n")
        return result
