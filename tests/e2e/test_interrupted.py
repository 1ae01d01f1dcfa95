"""Ctrl-C in a real terminal: everything is undone, what was measured is kept, and each phase is marked as it ended."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path

import oracle
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="creates network namespaces: needs root"),
]

BOUND_S = 100.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Typed:
    """The command line in a terminal of its own. ``text`` is what it has shown so far."""

    def __init__(self, *words: str) -> None:
        self.text, self._raw = "", b""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            argv = [sys.executable, "-m", "testbed.cli.app", *words]
            os.execve(sys.executable, argv, {**os.environ, "TERM": "xterm", "COLUMNS": "150"})

    def until(self, words: str) -> None:
        until = time.monotonic() + BOUND_S
        while words not in self.text:
            assert time.monotonic() < until, self.text
            self._read()

    def _read(self) -> bool:
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # EIO: the last process of the terminal has closed it (pty(7))
            data = b""
        self._raw += data
        self.text = ESCAPES.sub("", self._raw.decode(errors="replace")).replace("\r", "")
        return bool(data)

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def status(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._terminal)

    @property
    def marks(self) -> dict[str, str]:
        """By finished phase, its sign."""
        return {name: sign for sign, name in re.findall(r" ([✓✗■]) (\w+) +\d+\.\d\d s", self.text)}


@pytest.mark.parametrize("presses", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_a_run_is_undone_and_what_succeeded_is_not_marked_as_failed(
    state_folder: Path, lab_name: str, tmp_path: Path, presses: int
) -> None:
    pytest.importorskip("torch")
    options = ("--steps", "100000", "--allow-uncertified", "--runs", str(tmp_path / "runs"))
    typed = Typed("run", "metro-40km", "--name", lab_name, *options)
    try:
        typed.until("run directory: ")
        typed.until("/100000")  # the live line, not what was predicted
        for _ in range(presses):  # people press it again
            typed.press_ctrl_c()
        assert typed.status() == 130
    finally:
        typed.end()
    marks = typed.marks
    assert (marks["train"], marks["report"], marks["down"]) == ("■", "✓", "✓"), typed.text
    assert "✗" not in typed.text
    (run,) = (tmp_path / "runs").iterdir()
    assert f"run directory: {run}" in typed.text.replace("\n", "")
    found = json.loads((run / "run.json").read_text())
    assert (found["status"], found["reason"]) == ("interrupted", "interrupted by the user")
    assert json.loads((run / "report.json").read_text())["run"]["status"] == "interrupted"
    oracle.until(lambda: not oracle.left_behind(lab_name, state_folder), 10.0, "nothing is left of the lab")


def test_a_bring_up_is_undone_and_the_undo_is_not_marked_as_failed(state_folder: Path, lab_name: str) -> None:
    typed = Typed("up", "metro-40km", "--name", lab_name, "--no-agents")
    try:
        typed.until("certify")
        typed.press_ctrl_c()
        typed.press_ctrl_c()
        assert typed.status() == 130
    finally:
        typed.end()
    assert typed.marks["down"] == "✓", typed.text
    assert "✗" not in typed.text
    assert [name for name, sign in typed.marks.items() if sign == "■"] == ["certify"]
    oracle.until(lambda: not oracle.left_behind(lab_name, state_folder), 10.0, "nothing is left of the lab")
