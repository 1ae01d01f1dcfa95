"""Read the steps of a rank from its output, line by line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from testbed.core.user_text import shown
from testbed.core.workload.output_lines import OutputLines
from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_source import LinePattern
from testbed.lab.jobs.progress_records import ProgressRecords, Reading

__all__ = ["ProgressOutput", "StreamLines"]

LONGEST_S: Final = 1.0
"""Patterns that take longer, in CPU time, on what one read returned are given up: nothing can interrupt them, and they
hold up everything else. 64 KiB of ordinary lines take milliseconds."""

LONGEST_TRY_S: Final = 0.05
"""So are those that take longer on the begin of a line: on the rest of it, they could take hours."""


class ProgressOutput:
    """The lines of one rank, of all of its streams. ``warn`` is told once, should the patterns be given up."""

    def __init__(self, lines: LinePattern, records: ProgressRecords, warn: Callable[[str], None]) -> None:
        self._parser: LineParser | None = LineParser(lines)
        self._records, self._warn = records, warn
        self._lock = threading.Lock()

    def stream(self) -> StreamLines:
        return StreamLines(self._take)

    def _take(self, lines: Sequence[tuple[float, str]]) -> None:
        if not lines:
            return
        with self._lock:
            if (parser := self._parser) is None:
                return
            found, slow = _read(parser, lines)
            if slow:
                self._parser = None
                self._warn(f"{slow}; no further lines are read")
        self._records.take(found)


def _read(parser: LineParser, lines: Sequence[tuple[float, str]]) -> tuple[list[Reading], str]:
    """Return what lines say, and why the rest of them was not read; empty if all were."""
    began_s = time.thread_time()
    found: list[Reading] = []
    for number, (t, text) in enumerate(lines, 1):
        tried_s = time.thread_time()
        for _ in parser.tries(text):
            before_s, tried_s = tried_s, time.thread_time()
            if tried_s - before_s > LONGEST_TRY_S:
                return found, f"the pattern of progress takes too long on the line {shown(text)}"
        if (said := parser.read(text)) is not None:
            found.append((t, said))
        if (took_s := time.thread_time() - began_s) > LONGEST_S:
            longest = max((text for _, text in lines[:number]), key=len)
            return found, f"the pattern of progress took {took_s:.1f} s on {number} lines, such as {shown(longest)}"
    return found, ""


class StreamLines:
    """One stream of a rank, as the thread that reads it sees it."""

    def __init__(self, take: Callable[[Sequence[tuple[float, str]]], None]) -> None:
        self._lines, self._take = OutputLines(), take

    def feed(self, t: float, data: bytes) -> None:
        """Take what was read at ``t``."""
        self._take(self._lines.feed(t, data))

    def quiet(self) -> None:
        """Take the state of a progress bar: nothing was read for a moment."""
        self._take(self._lines.quiet())

    def end(self) -> None:
        self._take(self._lines.end())
