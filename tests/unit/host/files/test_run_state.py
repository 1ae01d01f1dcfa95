"""The state of a run follows the process that makes it, which is a real one here, and may end without a word."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from builders.processes import python
from builders.tables import table

from testbed.host.files import store
from testbed.host.files.store import RunDirectory, RunState
from testbed.lab import api

MAKER = """
import sys
from pathlib import Path
from testbed.host.files.store import RunDirectory
run = RunDirectory.create(Path(sys.argv[1]), "r")
if sys.argv[2] == "job":
    run.write_json("run.json", {"status": "running"})
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["job", "validation"])
def test_a_run_whose_process_was_killed_is_lost(tmp_path: Path, kind: str) -> None:
    with python(MAKER, tmp_path, kind) as maker:
        assert maker.read_line() == "made"
        (live,) = api.runs(tmp_path)
        assert (live.state, live.pid) == ("running", maker.pid)
        assert abs(live.started_unix_s - time.time()) < 60
    assert store.read_state(RunDirectory(tmp_path / "r")).word == "lost"
    assert [(run.state, run.pid) for run in api.runs(tmp_path)] == [("lost", None)]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "r")


def test_a_run_that_recorded_its_end_has_that_state(run: RunDirectory) -> None:
    assert (store.read_state(run).word, store.read_state(run).pid) == ("running", os.getpid())
    for state in ("finished", "interrupted", "failed"):
        run.record_end(state)
        assert store.read_state(run).word == state, "of a validation"
    run.write_json("run.json", {"status": "running"})
    assert store.read_state(run).word == "running", "run.json has the last word"
    for state in ("finished", "interrupted", "failed"):
        run.write_json("run.json", {"status": state})
        assert store.read_state(run) == RunState(state, None, store.read_state(run).since_unix_s)


@table(
    "changed",
    {
        "another boot": {"boot": "another"},
        "another beginning": {"began": 1},
        "another process": {"pid": 1},
        "no number": {"pid": "x"},
        "a torn record": None,
    },
)
def test_a_process_of_another_host_or_boot_is_not_taken_for_it(
    run: RunDirectory, changed: dict[str, object] | None
) -> None:
    record = run.path / "process.json"
    record.write_text("{" if changed is None else json.dumps(json.loads(record.read_text()) | changed))
    assert store.read_state(run).word == "lost"


def test_a_validation_of_a_version_without_processes_has_finished(run: RunDirectory) -> None:
    (run.path / "process.json").unlink()
    run.write_json("validate.json", {})
    assert store.read_state(run) == RunState("finished", None, None)
