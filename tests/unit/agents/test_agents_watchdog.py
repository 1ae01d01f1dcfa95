"""A program under the watchdog: its exit status is passed on, and it ends when the watchdog's stdin reaches EOF."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.tables import table
from oracles import oracle
from testbed_agents.watchdog import hang_up_at_eof, run

BOUND_S = 20

pytestmark = pytest.mark.timeout(60)


class Watchdog(subprocess.Popen[bytes]):
    """A program under the watchdog; ``options`` of the watchdog."""

    def __init__(self, *argv: str, options: Sequence[str] = ()) -> None:
        program = [sys.executable, "-m", "testbed_agents.watchdog", *options]
        program += ["--", *argv] if argv else []
        super().__init__(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def read_pid(self) -> int:
        assert self.stdout is not None
        return int(self.stdout.readline())

    def send(self, data: bytes) -> None:
        assert self.stdin is not None
        while data:
            data = data[self.stdin.write(data) :]

    def end(self) -> int:
        """Close its input; return its exit status."""
        assert self.stdin is not None
        self.stdin.close()
        return self.wait(BOUND_S)


@table(
    "argv, status",
    {
        "success": (["sh", "-c", "exit 0"], 0),
        "failure": (["sh", "-c", "exit 7"], 7),
        "a signal": (["sh", "-c", "kill -9 $$"], 137),
        "a program that is not there": (["/no/such/program"], 127),
    },
)
def test_the_status_is_the_programs(argv: list[str], status: int) -> None:
    with Watchdog(*argv) as watchdog:
        assert watchdog.wait(BOUND_S) == status


@pytest.mark.parametrize("framed", [False, True])
def test_the_program_ends_at_eof_of_the_watchdogs_stdin_even_if_it_reads_nothing(framed: bool) -> None:
    with Watchdog("sh", "-c", "echo $$; exec sleep 1000", options=["--stdin"] * framed) as watchdog:
        pid = watchdog.read_pid()
        watchdog.send(frame(b"D", b"x" * 1_000_000) * framed)
        assert watchdog.end() == 128 + signal.SIGTERM
    assert not alive(pid)


def test_what_it_started_ends_too() -> None:
    with Watchdog("sh", "-c", "sleep 1000 & echo $!") as watchdog:
        pid = watchdog.read_pid()
        assert watchdog.wait(BOUND_S) == 0
    oracle.until(lambda: not alive(pid), BOUND_S, "the sleep has ended")


def test_what_is_left_of_its_session_is_killed_before_its_number_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is reaped, another session may have its number, which gets the signal instead."""
    states: list[str] = []

    def killpg(session: int, number: int) -> None:
        with contextlib.suppress(OSError):
            states.append(Path(f"/proc/{session}/stat").read_text().rpartition(")")[2].split()[0])

    monkeypatch.setattr(os, "killpg", killpg)
    reader, writer = os.pipe()
    assert run(["sh", "-c", "exit 3"], reader) == 3
    os.close(reader)
    os.close(writer)
    assert states == ["Z"]


def test_a_visitor_is_signalled_by_a_handle_that_no_other_process_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", None)
    reader, writer = os.pipe()
    os.close(writer)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "TESTBED_VISIT": "a-token-of-this-test"}) as visitor:
        before = set(Path("/proc/self/fd").iterdir())
        assert hang_up_at_eof("a-token-of-this-test", reader) == 0
        assert visitor.wait(BOUND_S) == -signal.SIGHUP
        assert set(Path("/proc/self/fd").iterdir()) <= before, "no handle is left open"
    os.close(reader)


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def test_what_the_program_reads_comes_in_frames_however_they_are_cut() -> None:
    whole = b"".join(frame(b"D", b"x" * size) for size in (1, 70_000, 0, 300_000)) + frame(b"E")
    with Watchdog("wc", "-c", options=["--stdin"]) as watchdog:
        for begin in range(0, len(whole), 33_333):
            watchdog.send(whole[begin : begin + 33_333])
        assert watchdog.read_pid() == 370_001
        assert watchdog.wait(BOUND_S) == 0


def test_the_end_of_what_it_reads_is_not_the_end_of_the_program() -> None:
    with Watchdog("sh", "-c", "cat; sleep 0.3; exit 5", options=["--stdin"]) as watchdog:
        watchdog.send(frame(b"E"))
        assert watchdog.wait(BOUND_S) == 5


def test_a_signal_in_a_frame_reaches_it() -> None:
    program = "trap 'exit 9' INT; echo 1; while :; do sleep 0.05; done"
    with Watchdog("sh", "-c", program, options=["--stdin"]) as watchdog:
        watchdog.read_pid()
        watchdog.send(frame(b"S", b"2"))
        assert watchdog.wait(BOUND_S) == 9


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("written", "status"), [(b"", -signal.SIGHUP), (b"E", None)])
def test_the_watchdog_of_a_visit_ends_it_unless_it_was_over(written: bytes, status: int | None) -> None:
    token = f"t{os.getpid()}"
    mine, other = (
        subprocess.Popen(["sleep", "1000"], env={**os.environ, "TESTBED_VISIT": visit})
        for visit in (token, token + "x")
    )
    watchdog = Watchdog(options=["--visit", token])
    try:
        watchdog.send(written)
        assert watchdog.end() == 0
        assert (mine.wait(BOUND_S) if written == b"" else mine.poll()) == status
        assert other.poll() is None
    finally:
        for process in (mine, other, watchdog):
            process.kill()
            process.wait()
