"""Write the records of a launched program's steps: ``ranks/rank-<r>.jsonl``, in the testbed's own hand."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Final

from testbed.core.workload.members import Member
from testbed.core.workload.progress_steps import StepCounter
from testbed.errors import StorageError
from testbed.host.files.store import RunDirectory

__all__ = ["ProgressRecords", "Reading"]

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
            records = [it for it in made if it is not None]
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
        self._file.write("".join(f"{_json(it)}\n" for it in (*job, *records)).encode())
        self.lines += len(records)

    def _job(self) -> dict[str, object]:
        it = self._member
        return {
            "kind": "job",
            "t": self.began_t,
            "rank": it.rank,
            "world_size": self._world_size,
            "node": it.node,
            "site": it.site,
            "attempt": 1,
        }
