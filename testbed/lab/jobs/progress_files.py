"""Read the steps of ranks from files that they write: CSV, TensorBoard's, or what ``testbed_agents.step`` writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from testbed.core.workload.progress_call_lines import CallReader
from testbed.core.workload.progress_csv import CsvReader
from testbed.core.workload.progress_source import CsvFile, EventFiles
from testbed.host.progress.event_folder import EventFolder
from testbed.host.progress.file_tail import LAST_BOUND_S, FileTail, monotonic
from testbed.lab.jobs.progress_records import Reading

__all__ = ["CallFile", "EventSource", "FileSource", "TableFile"]


class FileSource(Protocol):
    """A file, or a folder of files, that one rank's steps are read from."""

    def read(self, *, last: bool) -> Iterator[Reading]:
        """Yield what is new; ``last``: nothing will come any more."""

    @property
    def trouble(self) -> str:
        """Why nothing can be read of it; empty as long as it can."""


class TableFile:
    """A CSV file; what it has before the job is skipped. ``began_t``: no line can be from before."""

    def __init__(self, folder: Path, name: str, file: CsvFile, began_t: float) -> None:
        self._file, self._name, self._began_t = file, name, began_t
        self._tail = FileTail(folder, name, skip=True)
        self._reader = CsvReader(file)
        self._reader.begin(self._tail.head)
        self._exists = False

    @property
    def trouble(self) -> str:
        if not self._exists:
            return f"{self._name}: no such file, or it is not a regular file"
        return f"{self._name}: no column {self._reader.missing!r}" if self._reader.missing else ""

    def read(self, *, last: bool) -> Iterator[Reading]:
        until_t = time.monotonic() + LAST_BOUND_S
        while (grown := self._tail.read()) is not None:
            self._exists = True
            if grown.anew:
                self._reader = CsvReader(self._file)
            for unix_s, found in self._reader.read(grown.data):
                t = grown.t if unix_s is None else monotonic(unix_s)
                yield max(self._began_t, min(t, time.monotonic())), found
            if not grown.more or not last or time.monotonic() >= until_t:
                return


class EventSource:
    """TensorBoard's files below a folder."""

    def __init__(self, folder: Path, name: str, events: EventFiles, began_t: float) -> None:
        self._name, self._folder = name, EventFolder(folder, name, events, began_t)
        self._found = False

    @property
    def trouble(self) -> str:
        tags = "" if self._found else f"{self._name}: no event file with a scalar that was asked for"
        return self._folder.damage or tags

    def read(self, *, last: bool) -> Iterator[Reading]:
        for reading in self._folder.read(last=last):
            self._found = True
            yield reading


class CallFile:
    """What calls of ``testbed_agents.step`` wrote, in the rank's own folder."""

    trouble = ""

    def __init__(self, folder: Path, name: str, began_t: float) -> None:
        self._tail, self._reader, self._began_t = FileTail(folder, name), CallReader(), began_t

    def read(self, *, last: bool) -> Iterator[Reading]:
        until_t = time.monotonic() + LAST_BOUND_S
        while (grown := self._tail.read()) is not None:
            if grown.anew:
                self._reader = CallReader()
            for t, found in self._reader.read(grown.data):
                yield max(self._began_t, min(grown.t if t is None else t, time.monotonic())), found
            if not grown.more or not last or time.monotonic() >= until_t:
                return
