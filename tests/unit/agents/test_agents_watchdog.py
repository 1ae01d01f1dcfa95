"""A program under the watchdog: its exit status is passed on, and it ends when the watchdog's stdin reaches EOF."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from oracles import oracle
from testbed_agents.watchdog import run, stand_beside

WATCHDOG = [sys.executable, "-m", "testbed_agents.watchdog", "--"]
BOUND_S = 20

pytestmark = pytest.mark.timeout(60)


def start(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*WATCHDOG, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_programs(script: str, status: int) -> None:
    with start("sh", "-c", script) as watchdog:
        assert watchdog.wait(BOUND_S) == status


def test_a_program_that_is_not_there_is_127() -> None:
    with start("/no/such/program") as watchdog:
        assert watchdog.wait(BOUND_S) == 127


def test_the_program_ends_at_eof_of_the_watchdogs_stdin() -> None:
    with start("sh", "-c", "echo $$; exec sleep 1000") as watchdog:
        assert watchdog.stdout is not None and watchdog.stdin is not None
        pid = int(watchdog.stdout.readline())
        watchdog.stdin.close()
        assert watchdog.wait(BOUND_S) == 128 + signal.SIGTERM
    assert not alive(pid)


def test_what_it_started_ends_too() -> None:
    with start("sh", "-c", "sleep 1000 & echo $!") as watchdog:
        assert watchdog.stdout is not None
        pid = int(watchdog.stdout.readline())
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
        assert stand_beside("a-token-of-this-test", reader) == 0
        assert visitor.wait(BOUND_S) == -signal.SIGHUP
        assert set(Path("/proc/self/fd").iterdir()) <= before, "no handle is left open"
    os.close(reader)


FRAMED = [sys.executable, "-m", "testbed_agents.watchdog", "--stdin", "--"]


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def start_framed(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*FRAMED, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def send(watchdog: subprocess.Popen[bytes], data: bytes) -> None:
    assert watchdog.stdin is not None
    while data:
        data = data[watchdog.stdin.write(data) :]


def test_what_the_program_reads_comes_in_frames_however_they_are_cut() -> None:
    whole = b"".join(frame(b"D", b"x" * size) for size in (1, 70_000, 0, 300_000)) + frame(b"E")
    with start_framed("wc", "-c") as watchdog:
        for at in range(0, len(whole), 33_333):
            send(watchdog, whole[at : at + 33_333])
        assert watchdog.stdout is not None
        assert int(watchdog.stdout.read()) == 370_001
        assert watchdog.wait(BOUND_S) == 0


def test_the_end_of_what_it_reads_is_not_the_end_of_the_program() -> None:
    with start_framed("sh", "-c", "cat; sleep 0.3; exit 5") as watchdog:
        send(watchdog, frame(b"E"))
        assert watchdog.wait(BOUND_S) == 5


def test_a_signal_in_a_frame_reaches_it() -> None:
    with start_framed("sh", "-c", "trap 'exit 9' INT; echo on; while :; do sleep 0.05; done") as watchdog:
        assert watchdog.stdout is not None
        watchdog.stdout.readline()
        send(watchdog, frame(b"S", b"2"))
        assert watchdog.wait(BOUND_S) == 9


def test_it_ends_with_its_sender_even_if_it_reads_nothing() -> None:
    with start_framed("sh", "-c", "echo $$; exec sleep 1000") as watchdog:
        assert watchdog.stdout is not None and watchdog.stdin is not None
        pid = int(watchdog.stdout.readline())
        send(watchdog, frame(b"D", b"x" * 1_000_000))
        watchdog.stdin.close()
        assert watchdog.wait(BOUND_S) == 128 + signal.SIGTERM
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def visiting(token: str) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Return a program of the visit, a program of another visit, and the watchdog of the first."""
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TESTBED_VISIT": token})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TESTBED_VISIT": token + "x"})
    watchdog = subprocess.Popen(
        [sys.executable, "-m", "testbed_agents.watchdog", "--visit", token], stdin=subprocess.PIPE, bufsize=0
    )
    return mine, other, watchdog


@pytest.mark.parametrize(("written", "status"), [(b"", -signal.SIGHUP), (b"E", None)])
def test_the_watchdog_of_a_visit_ends_it_unless_it_was_over(written: bytes, status: int | None) -> None:
    mine, other, watchdog = visiting(f"t{os.getpid()}")
    try:
        assert watchdog.stdin is not None
        watchdog.stdin.write(written)
        watchdog.stdin.close()
        assert watchdog.wait(BOUND_S) == 0
        assert (mine.wait(BOUND_S) if written == b"" else mine.poll()) == status
        assert other.poll() is None
    finally:
        for process in (mine, other, watchdog):
            process.kill()
            process.wait()
