"""The state of a run follows the process that makes it, which is a real one here, and may end without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == b"made\n"
    run = RunDirectory(tmp_path / "r")
    (live,) = api.runs(tmp_path)
    assert (live.state, live.pid) == ("running", maker.pid)
    assert abs(live.started_unix_s - time.time()) < 60
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=10)
    assert store.read_state(run).word == "lost"
    assert [(it.state, it.pid) for it in api.runs(tmp_path)] == [("lost", None)]


def test_a_run_that_recorded_its_end_has_that_state(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r")
    assert (store.read_state(run).word, store.read_state(run).pid) == ("running", os.getpid())
    for state in ("finished", "interrupted", "failed"):
        run.record_end(state)
        assert store.read_state(run).word == state, "of a validation"
    run.write_json("run.json", {"status": "running"})
    assert store.read_state(run).word == "running", "run.json has the last word"
    for state in ("finished", "interrupted", "failed"):
        run.write_json("run.json", {"status": state})
        assert store.read_state(run) == RunState(state, None, store.read_state(run).since_unix_s)


@pytest.mark.parametrize("changed", [{"boot": "another"}, {"began": 1}, {"pid": 1}, {"pid": "x"}, None])
def test_a_process_of_another_host_or_boot_is_not_taken_for_it(
    tmp_path: Path, changed: dict[str, object] | None
) -> None:
    run = RunDirectory.create(tmp_path, "r")
    record = run.path / "process.json"
    record.write_text("{" if changed is None else json.dumps(json.loads(record.read_text()) | changed))
    assert store.read_state(run).word == "lost"


def test_a_validation_of_a_version_without_processes_has_finished(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r")
    (run.path / "process.json").unlink()
    run.write_json("validate.json", {})
    assert store.read_state(run) == RunState("finished", None, None)
