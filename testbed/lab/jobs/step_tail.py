"""Follow the steps that one rank reports, in its records, as the file grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["StepTail"]


@dataclass
class StepTail:
    """The records of one rank, of the agents (``step``) or of a program (``progress``)."""

    path: Path
    offset: int = 0
    step: int = 0
    before: int | None = None
    """The step of the record before the latest one; None if there is none in this attempt."""
    attempt: int = 1
    last: Mapping[str, Any] = field(default_factory=dict)
    fresh: list[Mapping[str, Any]] = field(default_factory=list)
    """Records of a program's steps not taken yet."""

    def take(self) -> list[Mapping[str, Any]]:
        """Read, and return the records of a program's steps since the last time."""
        self.read()
        found, self.fresh = self.fresh, []
        return found

    def read(self) -> None:
        """Read what was written since the last call."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return
        self.offset += len(whole) + 1
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn, on a disk that was full for a while: the next record supersedes it
            if record.get("attempt", 1) < self.attempt:
                continue  # late record of an attempt that has ended
            if record["kind"] == "job":
                self.before = None
                self.attempt, self.step = record.get("attempt", 1), record.get("resumed_from", 0)
            elif record["kind"] in ("step", "progress"):
                self.before = self.last.get("step") if self.last.get("attempt", 1) == record.get("attempt", 1) else None
                self.step, self.last = record["step"], record
                if record["kind"] == "progress":
                    self.fresh.append(record)
