"""A program on a leash: its status is passed on, and it ends with whoever holds the other end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

LEASH = [sys.executable, "-m", "testbed_agents.watchdog", "--"]
BOUND_S = 20


def start(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*LEASH, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_programs(script: str, status: int) -> None:
    with start("sh", "-c", script) as leash:
        assert leash.wait(BOUND_S) == status


def test_a_program_that_is_not_there_is_127() -> None:
    with start("/no/such/program") as leash:
        assert leash.wait(BOUND_S) == 127


def test_the_program_ends_when_nobody_holds_the_leash() -> None:
    with start("sh", "-c", "echo $$; exec sleep 1000") as leash:
        assert leash.stdout is not None and leash.stdin is not None
        pid = int(leash.stdout.readline())
        leash.stdin.close()
        assert leash.wait(BOUND_S) == 128 + signal.SIGTERM
    assert not alive(pid)


def test_what_it_started_ends_too() -> None:
    with start("sh", "-c", "sleep 1000 & echo $!") as leash:
        assert leash.stdout is not None
        pid = int(leash.stdout.readline())
        assert leash.wait(BOUND_S) == 0
    until = time.monotonic() + BOUND_S
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


FRAMED = [sys.executable, "-m", "testbed_agents.watchdog", "--stdin", "--"]


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def start_framed(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*FRAMED, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def send(leash: subprocess.Popen[bytes], data: bytes) -> None:
    assert leash.stdin is not None
    while data:
        data = data[leash.stdin.write(data) :]


def test_what_the_program_reads_comes_in_frames_however_they_are_cut() -> None:
    whole = b"".join(frame(b"D", b"x" * size) for size in (1, 70_000, 0, 300_000)) + frame(b"E")
    with start_framed("wc", "-c") as leash:
        for at in range(0, len(whole), 33_333):
            send(leash, whole[at : at + 33_333])
        assert leash.stdout is not None
        assert int(leash.stdout.read()) == 370_001
        assert leash.wait(BOUND_S) == 0


def test_the_end_of_what_it_reads_is_not_the_end_of_the_program() -> None:
    with start_framed("sh", "-c", "cat; sleep 0.3; exit 5") as leash:
        send(leash, frame(b"E"))
        assert leash.wait(BOUND_S) == 5


def test_a_signal_in_a_frame_reaches_it() -> None:
    with start_framed("sh", "-c", "trap 'exit 9' INT; echo on; while :; do sleep 0.05; done") as leash:
        assert leash.stdout is not None
        leash.stdout.readline()
        send(leash, frame(b"S", b"2"))
        assert leash.wait(BOUND_S) == 9


def test_it_ends_with_its_sender_even_if_it_reads_nothing() -> None:
    with start_framed("sh", "-c", "echo $$; exec sleep 1000") as leash:
        assert leash.stdout is not None and leash.stdin is not None
        pid = int(leash.stdout.readline())
        send(leash, frame(b"D", b"x" * 1_000_000))
        leash.stdin.close()
        assert leash.wait(BOUND_S) == 128 + signal.SIGTERM
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def visiting(token: str) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """(a program of the visit, one that is not, the one that stands beside the first)."""
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TESTBED_VISIT": token})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TESTBED_VISIT": token + "x"})
    beside = subprocess.Popen(
        [sys.executable, "-m", "testbed_agents.watchdog", "--visit", token], stdin=subprocess.PIPE, bufsize=0
    )
    return mine, other, beside


@pytest.mark.parametrize(("said", "status"), [(b"", -signal.SIGHUP), (b"E", None)])
def test_who_stands_beside_a_visit_ends_it_unless_it_was_over(said: bytes, status: int | None) -> None:
    mine, other, beside = visiting(f"t{os.getpid()}")
    try:
        assert beside.stdin is not None
        beside.stdin.write(said)
        beside.stdin.close()
        assert beside.wait(BOUND_S) == 0
        assert (mine.wait(BOUND_S) if said == b"" else mine.poll()) == status
        assert other.poll() is None
    finally:
        for it in (mine, other, beside):
            it.kill()
            it.wait()
