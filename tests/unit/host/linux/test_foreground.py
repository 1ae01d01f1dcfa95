"""Signals of a program in the foreground, with and without a terminal; /proc shows what ends."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.processes import Child, has_ended, state
from builders.tables import table
from oracles.oracle import until

pytestmark = pytest.mark.timeout(60)

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RUN = "import sys; from testbed.host.linux import foreground; print('=', foreground.run(sys.argv[1:]), flush=True)"
COUNTS = (
    "import os, signal, sys, time\n"
    "for it in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
    "    signal.signal(it, lambda number, frame: print('got', number, flush=True))\n"
    "print('pid', os.getpid(), flush=True)\n"
    "while True: time.sleep(0.05)\n"
)
"""A program that prints each signal it gets. It sleeps briefly: a signal just before a sleep is handled after it."""

needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")


def attend(*words: str, by: tuple[str, ...] = ()) -> Child:
    """Attend a program without a terminal, in a process group of its own."""
    return Child(*by, sys.executable, "-c", RUN, *words, start_new_session=True)


def read_pid(process: Child) -> int:
    return int(process.read_line().removeprefix("pid "))


@table("send", {"to it alone": os.kill, "to its process group": os.killpg})
def test_without_a_terminal_each_signal_arrives_once(send: Callable[[int, int], None]) -> None:
    with attend(sys.executable, "-c", COUNTS) as process:
        pid = read_pid(process)
        for number in NUMBERS * 2:
            send(process.pid, number)
            assert process.read_line() == f"got {number}"
        os.kill(pid, signal.SIGKILL)
        assert process.read_line() == "= -9"
        assert process.wait(10) == 0


def test_under_nohup_neither_it_nor_its_program_gets_a_hang_up() -> None:
    with attend(sys.executable, "-c", COUNTS.replace(", signal.SIGHUP)", ")"), by=("nohup",)) as process:
        pid = read_pid(process)
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.killpg(process.pid, number)
        os.kill(pid, signal.SIGHUP)
        assert process.read_line() == f"got {signal.SIGTERM}"
        os.kill(pid, signal.SIGKILL)
        assert process.read_line() == "= -9"


def test_what_a_program_started_gets_signals_too() -> None:
    with attend("sh", "-c", "sleep 7151 & echo $!; wait") as process:
        pid = read_pid(process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.read_line() == "= -15"
        until(lambda: has_ended(pid), 20.0, "the sleep has ended")


def test_nothing_of_a_program_is_left_after_a_kill() -> None:
    with attend("sh", "-c", "trap '' INT TERM HUP; sleep 7152 & echo $$ $!; wait") as process:
        pids = {int(pid) for pid in process.read_line().split()}
        # The guard is the last thing that is started.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: len(children.read_text().split()) == 2, 20.0, "program and guard run")
        pids |= {int(pid) for pid in children.read_text().split()}
        process.kill()
        until(lambda: all(map(has_ended, pids)), 20.0, "neither program nor guard is left")


def test_an_ordinary_end_leaves_what_went_to_the_background() -> None:
    with attend("sh", "-c", "sleep 7153 >/dev/null & echo $!; exit 5") as process:
        pid = read_pid(process)
        try:
            assert process.read_line() == "= 5"
            process.wait(10)
            assert not has_ended(pid)
        finally:
            os.kill(pid, signal.SIGKILL)


class Terminal:
    """A shell with job control on a terminal of its own; ``reads`` waits for a text that it shows."""

    def __init__(self) -> None:
        self.pid, self.side = pty.fork()
        if self.pid == 0:
            shell = ["bash", "--norc", "--noprofile", "-i"]
            os.execvpe(shell[0], shell, {**os.environ, "PS1": "> ", "TERM": "dumb", "HISTFILE": ""})
        self.seen = ""

    def types(self, text: str) -> None:
        os.write(self.side, text.encode())

    def reads(self, text: str, seconds: float = 20.0) -> str:
        """Return what was shown up to a text, which is gone then."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"expected {text!r}, got {self.seen!r}"
            if select.select([self.side], [], [], left)[0]:
                self.seen += os.read(self.side, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal()
    made.reads("> ")
    yield made
    os.close(made.side)
    with contextlib.suppress(ProcessLookupError):
        os.kill(made.pid, signal.SIGKILL)
    os.waitpid(made.pid, 0)


@needs_setpriv
def test_a_terminal_has_its_job_control(terminal: Terminal, tmp_path: Path) -> None:
    """Ctrl-Z stops both, fg goes on; Ctrl-C arrives once, and so does what another process sends to this one alone."""
    program, attend = tmp_path / "program.py", tmp_path / "attend.py"
    program.write_text(COUNTS)
    attend.write_text(f"import os; print('attends', os.getpid(), flush=True)\n{RUN}\n")
    root = Path(__file__).resolve().parents[4]
    words = f"setpriv --pdeathsig KILL -- {sys.executable} {program}"
    terminal.types(f"PYTHONPATH={root} {sys.executable} {attend} {words}\n")
    terminal.reads("attends ")
    own = int(terminal.reads("\r\n"))
    terminal.reads("pid ")
    pid = int(terminal.reads("\r\n"))
    for number in NUMBERS:
        os.kill(own, number)
        assert "got" not in terminal.reads(f"got {number}\r\n")
    terminal.types("\x03")
    assert "got" not in terminal.reads("got 2\r\n")
    terminal.types("\x1a")
    terminal.reads("> ")
    until(lambda: {state(own), state(pid)} == {"T"}, 20.0, "both are stopped")
    terminal.types("fg\n")
    until(lambda: "T" not in (state(own), state(pid)), 20.0, "both go on")
    os.kill(own, signal.SIGKILL)
    until(lambda: has_ended(pid), 20.0, "the program ends with what attends it")
    assert "got" not in terminal.reads("> "), "no signal came twice"
