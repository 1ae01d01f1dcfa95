"""``testbed_agents.step``: one file of the standard library, which outside a lab does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import testbed_agents
from builders import json_files
from testbed_agents import progress_calls

from testbed.lab.jobs import reporting


def test_outside_a_lab_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    testbed_agents.step(1, train_loss=2.0)
    assert list(tmp_path.iterdir()) == []


def test_each_call_is_a_line_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls"
    monkeypatch.setenv("TESTBED_PROGRESS", str(path))

    class Tensor:
        def __float__(self) -> float:
            return 2.5

    before_t = time.monotonic()
    testbed_agents.step(7, train_loss=Tensor(), tokens=10, lr=None)
    testbed_agents.step(8, tokens_seen=20)
    first, second = json_files.read_lines(path)
    assert before_t <= first.pop("t") <= second.pop("t") <= time.monotonic()
    assert first == {"step": 7.0, "train_loss": 2.5, "tokens": 10.0}
    assert second == {"step": 8.0, "tokens_seen": 20.0}


def test_a_forked_child_writes_whole_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls"
    program = (
        "import os, testbed_agents\ntestbed_agents.step(0)\n"
        "for rank in range(4):\n    if os.fork() == 0:\n"
        "        for step in range(500): testbed_agents.step(step, rank=rank)\n        os._exit(0)\n"
        "for _ in range(4): os.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TESTBED_PROGRESS": str(path)}, check=True)
    assert len(json_files.read_lines(path)) == 2001


@pytest.mark.parametrize("place", ["missing/calls", "pipe", "folder"])
def test_it_never_raises_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("TESTBED_PROGRESS", str(tmp_path / place))
    testbed_agents.step(1)
    testbed_agents.step("no number", train_loss=object())  # type: ignore[arg-type]


def alone(tmp_path: Path) -> Path:
    module = tmp_path / "python" / "testbed_agents.py"
    module.parent.mkdir()
    module.write_bytes(reporting.source())
    return module


def test_the_file_alone_needs_the_standard_library_only(tmp_path: Path) -> None:
    module = alone(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(module.parent)!r}); from testbed_agents import step; step(1, lr=2)\n"
        "import testbed_agents; print(testbed_agents.__file__)\n"
        "print([it for it in sys.modules if it.partition('.')[0] not in sys.stdlib_module_names])"
    )
    path = tmp_path / "calls"
    environment = {"TESTBED_PROGRESS": str(path)}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(module), "['__main__', 'testbed_agents']"]
    assert json_files.read_lines(path)[0]["lr"] == 2.0


def test_the_file_alone_hides_none_of_the_agents_modules(tmp_path: Path) -> None:
    agents = Path(progress_calls.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{alone(tmp_path).parent}:{agents}"}
    program = "import testbed_agents; print(testbed_agents.__file__); import testbed_agents.watchdog"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))


def test_variables_hide_nothing_that_was_there(tmp_path: Path) -> None:
    module = tmp_path / "testbed_agents.py"
    found = reporting.variables(False, module, {"PYTHONPATH": "/a:/b", "LD_PRELOAD": "/x.so"}, "/stdbuf.so")
    assert found["PYTHONPATH"] == f"/a:/b:{tmp_path}"
    assert found["LD_PRELOAD"] == "/x.so:/stdbuf.so"
    bare = reporting.variables(False, module, {}, "")
    assert bare["PYTHONPATH"] == str(tmp_path) and "LD_PRELOAD" not in bare
    assert "PYTHONPATH" not in reporting.variables(True, module, {}, ""), "images have the agents on their path"
    inside = reporting.variables(True, module, {"PYTHONPATH": "/a"}, "")
    assert inside["PYTHONPATH"] == "/a:/opt/testbed/agents", "which the watchdog is imported from"
