"""A real terminal: Ctrl-C undoes everything, keeps what was measured and marks each phase as it ended; what nohup runs
goes on after the terminal is closed."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import ROOT
from builders.conditions import ALONE, thorough
from builders.json_files import read_json
from builders.labs import bring_up
from oracles import oracle

import testbed

pytestmark = [*ALONE, pytest.mark.e2e]

BOUND_S = 100.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Typed:
    """The command line in a terminal of its own. ``text`` is what it has shown so far."""

    def __init__(self, *words: str, by: Sequence[str] = (), folder: Path = ROOT) -> None:
        self.text, self._raw = "", b""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            argv = [*by, sys.executable, "-m", "testbed", *words]
            os.execvpe(argv[0], argv, {**os.environ, "TERM": "xterm", "COLUMNS": "150"})

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

    def close(self) -> None:
        """Close the terminal; the kernel has sent its SIGHUP on return."""
        os.close(self._terminal)
        self._terminal = os.open(os.devnull, os.O_RDWR)

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


@pytest.mark.parametrize("presses", [thorough(1), 3])
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
    found = read_json(run / "run.json")
    assert (found["status"], found["reason"]) == ("interrupted", "interrupted by the user")
    assert read_json(run / "report.json")["run"]["status"] == "interrupted"
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


@pytest.mark.parametrize("verb", ["run", "launch"])
def test_what_nohup_runs_goes_on_after_its_terminal_is_closed(
    state_folder: Path, lab_name: str, tmp_path: Path, verb: str
) -> None:
    tmp_path.chmod(0o777)
    sleep = f"1{tmp_path.stat().st_ino}"  # a unique sleep time
    program = ["sh", "-c", f"sleep {sleep}; echo on"]
    words = ["--name", lab_name, "x.yaml"] if verb == "run" else ["-l", lab_name, "--", *program]
    if verb == "run":
        (tmp_path / "x.yaml").write_text(f"topology: metro-single\nworkload: {{command: {json.dumps(program)}}}\n")
    else:
        bring_up(lab_name, "metro-single")
    options = ("--allow-uncertified", "--runs", str(tmp_path / "runs"))
    typed = Typed(verb, *options, *words, by=["nohup"], folder=tmp_path)

    def sleeping() -> list[int]:
        return [pid for pid, argv, _ in oracle.processes() if argv == ["sleep", sleep]]

    try:
        oracle.until(lambda: len(sleeping()) == 4, BOUND_S, "all ranks run")
        typed.close()
        for pid in sleeping():
            os.kill(pid, signal.SIGTERM)
        status = typed.status()
    finally:
        typed.end()
        testbed.down(lab_name)
    shown = (tmp_path / "nohup.out").read_text()
    assert status in (0, 1, 3) and "testbed: " not in shown, shown  # the verdict on its fibers is not the subject
    (run,) = (tmp_path / "runs").iterdir()
    assert read_json(run / "run.json")["status"] == "finished"
    assert ["on" in (run / "ranks" / f"rank-{rank}.log").read_text().split() for rank in range(4)] == [True] * 4
