"""``--detach`` of whole procedures that do not begin: each is told as without it, and leaves nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

HOLDS = """
from testbed.lab import host_slot
from testbed.lab.progress import Silent
with host_slot.held("run metro-40km", "first", Silent()):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def told(tmp_path: Path) -> dict[str, str]:
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "TESTBED_STATE": str(tmp_path / "state")}
    return {**os.environ, **paths, "TESTBED_RUNS": str(tmp_path / "runs")}


@pytest.fixture
def holder(told: dict[str, str]) -> Iterator[None]:
    """Provide another process that holds the host's slot."""
    words = [sys.executable, "-c", HOLDS]
    child = subprocess.Popen(words, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    yield
    child.kill()
    child.communicate()


def begun(told: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "os.execvp(sys.argv[1], sys.argv[1:])",
            *(sys.executable, "-m", "testbed", *words),
        ],
        env=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "runs").iterdir()]


def test_a_mistake_is_told_as_without_it(told: dict[str, str], tmp_path: Path) -> None:
    near, far = (begun(told, "validate", "torch-glo", *more) for more in ([], ["--detach"]))
    (out, err), (detached_out, detached_err) = near.communicate(timeout=60), far.communicate(timeout=60)
    assert (far.returncode, detached_out, detached_err) == (near.returncode, out, err)
    assert near.returncode == 2
    assert left(tmp_path) == []


@pytest.mark.usefixtures("holder")
def test_a_held_host_is_told(told: dict[str, str], tmp_path: Path) -> None:
    refused = begun(told, "validate", "torch-gloo", "--detach")
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (3, "")
    assert "found run metro-40km in lab first (pid " in err
    assert left(tmp_path) == []


@pytest.mark.usefixtures("holder")
def test_ctrl_c_before_its_beginning_ends_it(told: dict[str, str], tmp_path: Path) -> None:
    waits = begun(told, "validate", "torch-gloo", "--detach", "--wait")
    assert waits.stderr is not None
    seen, until = b"", time.monotonic() + 60
    while b"for run metro-40km" not in seen and time.monotonic() < until:
        if select.select([waits.stderr], [], [], 0.1)[0]:
            seen += os.read(waits.stderr.fileno(), 65536)
    (child,) = Path(f"/proc/{waits.pid}/task/{waits.pid}/children").read_text().split()
    waits.send_signal(signal.SIGINT)
    out, err = waits.communicate(timeout=20)
    assert (waits.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert left(tmp_path) == []
