"""``--detach`` of procedures that do not begin: the output is as without it, and nothing is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders.held_slot import holder

__all__ = ["holder"]  # a fixture

BEGIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def begin(line: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", BEGIN, sys.executable, "-m", "testbed", *line.split()]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_detach_reports_a_mistake_as_without_it(runs: Path) -> None:
    near, far = begin("validate torch-glo"), begin("validate torch-glo --detach")
    assert near.communicate(timeout=60) == far.communicate(timeout=60)
    assert near.returncode == far.returncode == 2
    assert list(runs.iterdir()) == []


@pytest.mark.usefixtures("holder")
def test_detach_reports_a_held_host(runs: Path) -> None:
    refused = begin("validate torch-gloo --detach")
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (3, "")
    assert "found run metro-40km in lab first (pid " in err
    assert list(runs.iterdir()) == []


@pytest.mark.usefixtures("holder")
def test_detach_is_ended_by_ctrl_c_before_its_beginning(runs: Path) -> None:
    waiting = begin("validate torch-gloo --detach --wait")
    assert waiting.stderr is not None
    output, until = b"", time.monotonic() + 60
    while b"for run metro-40km" not in output and time.monotonic() < until:
        if select.select([waiting.stderr], [], [], 0.1)[0]:
            output += os.read(waiting.stderr.fileno(), 65536)
    (child,) = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split()
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert list(runs.iterdir()) == []
