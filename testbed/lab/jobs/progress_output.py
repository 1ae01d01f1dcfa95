"""Read the steps of a rank from its output, line by line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from testbed.core.user_text import shown
from testbed.core.workload.output_lines import OutputLines
from testbed.core.workload.progress import LinePattern
from testbed.core.workload.progress_lines import LineParser
from testbed.lab.jobs.progress_records import ProgressRecords

__all__ = ["ProgressOutput", "StreamLines"]

LONGEST_S: Final = 1.0
"""A pattern that takes longer on one line is given up: nothing can interrupt it, and it holds up everything else."""


class ProgressOutput:
    """The lines of one rank, of all of its streams. ``warn`` is told once, should the patterns be given up."""

    def __init__(self, lines: LinePattern, records: ProgressRecords, warn: Callable[[str], None]) -> None:
        self._parser: LineParser | None = LineParser(lines)
        self._records, self._warn = records, warn
        self._lock = threading.Lock()

    def stream(self) -> StreamLines:
        return StreamLines(self._line)

    def _line(self, t: float, text: str) -> None:
        with self._lock:
            if self._parser is None:
                return
            began_t = time.thread_time()
            found = self._parser.read(text)
            took_s = time.thread_time() - began_t
            if took_s > LONGEST_S:
                self._parser = None
                self._warn(
                    f"the pattern of progress took {took_s:.1f} s on one line, {shown(text)}; no further lines are read"
                )
        if found:
            self._records.take(t, found)


class StreamLines:
    """One stream of a rank, as the thread that reads it sees it."""

    def __init__(self, heed: Callable[[float, str], None]) -> None:
        self._lines, self._heed = OutputLines(), heed

    def feed(self, t: float, data: bytes) -> None:
        """Take what was read at ``t``."""
        for at, text in self._lines.feed(t, data):
            self._heed(at, text)

    def quiet(self) -> None:
        """Nothing was read for a moment."""
        for at, text in self._lines.quiet():
            self._heed(at, text)

    def end(self) -> None:
        for at, text in self._lines.end():
            self._heed(at, text)
