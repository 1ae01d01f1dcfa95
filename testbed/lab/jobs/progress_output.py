"""Read the steps of a rank from its output, line by line."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Final

from testbed.core.user_text import shown
from testbed.core.workload.members import Member
from testbed.core.workload.output_lines import OutputLines
from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_source import LinePattern
from testbed.core.workload.progress_steps import StepCounter
from testbed.errors import StorageError
from testbed.host.files.store import RunDirectory

__all__ = ["ProgressOutput", "ProgressRecords", "Reading", "StreamLines"]


Reading = tuple[float, Mapping[str, float]]
"""When the program said something (seconds, CLOCK_MONOTONIC), and its numbers by field."""

_json: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

_MOST_LINES: Final = 2_000_000
"""Records of one rank; a program that reports more is no longer recorded, or it would fill the disk."""


class ProgressRecords:
    """The records of one rank. Several threads may report its steps; the file is made with its first step."""

    def __init__(self, run: RunDirectory, member: Member, world_size: int, tokens_per_step: float | None) -> None:
        self._run, self._member, self._world_size = run, member, world_size
        self._counter = StepCounter(tokens_per_step)
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._closed = False
        self.lines = 0
        """Lines written so far."""
        self.began_t = 0.0
        """When the rank's process began."""
        self.error = ""

    def take(self, readings: Iterable[Reading]) -> None:
        """Record what the program said, in one write; never raises: an error is in :attr:`error`."""
        with self._lock:
            made = [self._counter.take(t, values) for t, values in readings]
            records = [record for record in made if record is not None]
            if not records or self.error or self._closed:
                return
            try:
                self._write(records)
            except (OSError, StorageError) as error:
                self.error = f"the steps of rank {self._member.rank} cannot be recorded: {error}"

    def close(self) -> None:
        """Record nothing any more, even if a process that the program left behind goes on printing."""
        with self._lock, contextlib.suppress(OSError):
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, records: Sequence[Mapping[str, object]]) -> None:
        if self.lines >= _MOST_LINES:
            raise OSError(0, f"more than {_MOST_LINES} lines")
        if self._file is None:
            self._file = self._run.open_records(self._member.rank)
        job = [] if self.lines else [self._job()]
        # Whole lines at once: readers of a running job never see a part of one, unless the disk is full.
        self._file.write("".join(f"{_json(record)}\n" for record in (*job, *records)).encode())
        self.lines += len(records)

    def _job(self) -> dict[str, object]:
        member = self._member
        return {
            "kind": "job",
            "t": self.began_t,
            "rank": member.rank,
            "world_size": self._world_size,
            "node": member.node,
            "site": member.site,
            "attempt": 1,
        }


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
            readings, slow = _read(parser, lines)
            if slow:
                self._parser = None
                self._warn(f"{slow}; no further lines are read")
        self._records.take(readings)


def _read(parser: LineParser, lines: Sequence[tuple[float, str]]) -> tuple[list[Reading], str]:
    """Return what lines say, and why the rest of them was not read; empty if all were."""
    began_s = time.thread_time()
    readings: list[Reading] = []
    for number, (t, text) in enumerate(lines, 1):
        tried_s = time.thread_time()
        for _ in parser.tries(text):
            before_s, tried_s = tried_s, time.thread_time()
            if tried_s - before_s > LONGEST_TRY_S:
                return readings, f"the pattern of progress takes too long on the line {shown(text)}"
        if (values := parser.read(text)) is not None:
            readings.append((t, values))
        if (took_s := time.thread_time() - began_s) > LONGEST_S:
            longest = max((text for _, text in lines[:number]), key=len)
            return readings, f"the pattern of progress took {took_s:.1f} s on {number} lines, such as {shown(longest)}"
    return readings, ""


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
