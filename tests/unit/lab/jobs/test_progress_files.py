"""The last reading of a program's files ends, whatever the program has left there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.core.workload.progress_source import CsvFile, EventFiles
from testbed.host.progress import event_folder
from testbed.lab.jobs import progress_reader
from testbed.lab.jobs.progress_reader import CallFile, EventSource, FileSource, TableFile


@pytest.mark.parametrize("kind", ["csv", "calls", "events"])
def test_the_last_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for module in (progress_reader, event_folder):
        monkeypatch.setattr(module, "LAST_BOUND_S", 0.05, raising=False)
    began_t = time.monotonic()
    sources: dict[str, Callable[[], FileSource]] = {
        "csv": lambda: TableFile(tmp_path, "runs/tfevents", CsvFile("runs/tfevents"), began_t),
        "calls": lambda: CallFile(tmp_path, "runs/tfevents", began_t),
        "events": lambda: EventSource(tmp_path, "runs", EventFiles("runs"), began_t),
    }
    source = sources[kind]()
    (tmp_path / "runs").mkdir()
    with (tmp_path / "runs" / "tfevents").open("wb") as stream:
        stream.truncate(1 << 40)  # a hole of a terabyte, which would take hours
    assert list(source.read(last=True)) == []
