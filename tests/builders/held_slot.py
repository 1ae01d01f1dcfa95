"""Another process that holds the host's slot of procedures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOLD = """
from testbed.lab import own_lab
from testbed.lab.progress import Silent
with own_lab.held("run metro-40km", "first", Silent()):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that runs metro-40km in lab first, with its state in ``tmp_path / "state"``, as the test."""
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()
