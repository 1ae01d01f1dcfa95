"""Read the newest TensorBoard event files below a folder, as they grow.

Writers flush every two minutes, or every ten events (``SummaryWriter(flush_secs=…, max_queue=…)``), so steps become
known late; their times are those of the events.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from testbed.core.workload.progress_events import EventReader, Scalar
from testbed.core.workload.progress_source import EventFiles
from testbed.host.files import beneath
from testbed.host.progress.file_tail import LAST_BOUND_S, FileTail, monotonic

__all__ = ["EventFolder"]

_MARK: Final = "tfevents"
_DEEPEST: Final = 4
_MOST_NAMES: Final = 1000
"""Names looked at in one search."""
_MOST_FILES: Final = 64
_SEARCH_S: Final = 1.0
_STAMP_S: Final = 0.05
"""How much older than its writing the stamp of a file may be: the kernel takes it from its last tick."""


class _EventFile:
    def __init__(self, folder: Path, name: str) -> None:
        self.tail, self.reader = FileTail(folder, name), EventReader()
        self.step: int | None = None
        self.t = 0.0
        self.values: dict[str, float] = {}


class EventFolder:
    """The event files below ``name`` in ``folder`` that are written to after ``began_t`` (CLOCK_MONOTONIC).

    Scalars of one step in one file are one reading, at the time of the first.
    """

    def __init__(self, folder: Path, name: str, events: EventFiles, began_t: float) -> None:
        self._folder, self._name, self._began_t = folder, name, began_t - _STAMP_S
        self._fields = {tag: field for field, tag in events.sources.by_field().items()}
        self._files: dict[str, _EventFile] = {}
        self._searched_t = -_SEARCH_S
        self.damage = ""

    def read(self, *, last: bool = False) -> Iterator[tuple[float, Mapping[str, float]]]:
        """Yield (t, numbers by field) of what is new; ``last``: nothing will come any more."""
        if last or time.monotonic() - self._searched_t >= _SEARCH_S:
            self._searched_t = time.monotonic()
            self._search()
        until_t = time.monotonic() + LAST_BOUND_S
        for name, file in self._files.items():
            quiet = True
            while (grown := file.tail.read()) is not None:
                quiet = False
                if grown.anew:
                    file.reader = EventReader()
                for scalar in file.reader.read(grown.data):
                    yield from self._take(file, scalar)
                if not grown.has_unread or not last or time.monotonic() >= until_t:
                    break
            if file.reader.damage:
                self.damage = self.damage or f"{self._name}/{name}: {file.reader.damage}"
            if quiet or last:
                yield from self._flush(file)

    def _take(self, file: _EventFile, scalar: Scalar) -> Iterator[tuple[float, Mapping[str, float]]]:
        t = monotonic(scalar.wall_s)
        field = self._fields.get(scalar.tag) if self._fields else ""
        if field is None or t < self._began_t:
            return  # a tag that was not asked for, or a run before this one
        if scalar.step != file.step:
            yield from self._flush(file)
            file.step, file.t, file.values = scalar.step, min(t, time.monotonic()), {"step": float(scalar.step)}
        if field:
            file.values[field] = scalar.value

    def _flush(self, file: _EventFile) -> Iterator[tuple[float, Mapping[str, float]]]:
        if file.values:
            yield file.t, file.values
            file.values = {}
            file.step = None

    def _search(self) -> None:
        left = _MOST_NAMES
        folders = [(self._name, 0)]
        while folders and left > 0:
            folder, depth = folders.pop()
            try:
                names = sorted(beneath.names(self._folder, folder), reverse=True)
            except OSError:
                continue
            for name in names[:left]:
                left -= 1
                path = f"{folder}/{name}"
                if _MARK in name:
                    if path not in self._files and len(self._files) < _MOST_FILES and self._recent(path):
                        self._files[path] = _EventFile(self._folder, path)
                elif depth < _DEEPEST:
                    folders.append((path, depth + 1))

    def _recent(self, path: str) -> bool:
        try:
            descriptor = beneath.open_file(self._folder, path)
        except OSError:
            return False
        try:
            state = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return stat.S_ISREG(state.st_mode) and monotonic(state.st_mtime) >= self._began_t
